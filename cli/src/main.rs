//! The command line of the mesh.
fn main() {}
