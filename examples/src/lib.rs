//! Small complete programs over the library: see `examples/`.
