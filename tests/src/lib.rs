//! Whole-program tests; the tests are in `tests/`.
