//! The `awaken` program.

fn main() {}
