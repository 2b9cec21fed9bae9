//! What the programs contain.

use mesh_test_support::command::built;

/// The path of the dashboard's script, which its server has as a literal.
const SCRIPT: &[u8] = b"/dist/app.js";

fn contains_dashboard(program: &str) -> bool {
    let bytes = std::fs::read(built(program)).unwrap();
    bytes.windows(SCRIPT.len()).any(|part| part == SCRIPT)
}

#[test]
fn only_the_program_of_the_extension_contains_the_dashboard() {
    assert!(contains_dashboard("mesh-viz"));
    assert!(!contains_dashboard("mesh-controller"));
}
