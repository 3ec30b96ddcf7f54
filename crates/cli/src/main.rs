//! The `periplus` program.

fn main() {}
