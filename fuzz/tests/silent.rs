//! The memory of a connection before its protocol is detected, which clients that connect and send
//! nothing can use per descriptor.

/// Thousands of such connections must fit alongside the traffic of a small pod.
const MAX_MEMORY: usize = 4 * 1024;

#[test]
fn silent_connection_uses_at_most_four_kilobytes() {
    let memory = mesh_fuzz::silent_connection();
    assert!(memory <= MAX_MEMORY, "{memory} bytes");
    println!("{memory} bytes");
}
