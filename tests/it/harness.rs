//! The test harness: a node with pods, and a whole mesh.

pub(crate) mod cni;
pub(crate) mod mesh;
pub(crate) mod node;
pub(crate) mod prometheus;

use std::path::PathBuf;

use mesh_test_support::command::built;

/// Returns the variant of the kernel programs that has other instructions.
pub(crate) fn other_programs() -> PathBuf {
    let path = built("mesh-agent")
        .ancestors()
        .nth(2)
        .expect("a program is in target/<profile>")
        .join("bpf/mesh-ebpf-other.o");
    assert!(
        path.exists(),
        "{} is not built: run `cargo xtask ebpf`",
        path.display()
    );
    path
}
