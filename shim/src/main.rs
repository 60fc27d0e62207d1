//! Entry point of a Session pod.

fn main() {}
