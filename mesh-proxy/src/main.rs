//! The per-pod proxy.
fn main() {}
