//! How much memory a connection takes before its protocol is known: clients that connect and send
//! nothing cost as much for each descriptor of theirs.

/// Thousands of such connections must fit beside the traffic of a small pod.
const MOST: usize = 4 * 1024;

#[test]
fn silent_connection_holds_at_most_four_kilobytes() {
    let held = mesh_fuzz::silent_connection();
    assert!(held <= MOST, "{held} bytes");
    println!("{held} bytes");
}
