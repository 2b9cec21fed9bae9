//! Scripts of the simulator between pods, on sockets of the kernel.

use std::process::Command;

use mesh_test_support::command::{built, succeed};
use mesh_test_support::require_root;

use crate::harness::mesh::Mesh;

const PODS: &str = include_str!("../../../mesh-simulator/node/pods.yaml");

#[test]
fn scripts_on_sockets_of_the_kernel_agree_with_the_simulation() {
    require_root!();
    let mesh = Mesh::up(&[("pods.yaml", PODS)]);
    let mut simulate = Command::new(built("mesh-simulate"));
    // The seed draws the scripts.
    let summary = succeed(simulate.args(["--node", mesh.name(), "--seed", "1"]));
    assert!(summary.contains("50 scripts at 4 places"), "{summary}");
}
