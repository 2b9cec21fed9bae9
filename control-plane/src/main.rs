//! The mesh controllers: identity, destination, policy.
fn main() {}
