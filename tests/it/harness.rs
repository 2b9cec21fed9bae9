//! The test harness: programs under test, probe processes, and a node with pods.

pub(crate) mod cni;
pub(crate) mod mesh;
pub(crate) mod node;
pub(crate) mod process;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Timeout of conditions, each of which normally holds in a fraction of it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns the path of a program of this workspace, built next to the test binary
/// (`cargo build --workspace --bins`, which `cargo xtask test` runs first).
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let dir = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("the test is in target/<profile>/deps");
    let path = dir.join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --workspace --bins`",
        path.display()
    );
    path
}

/// Returns the variant of the kernel programs that has other instructions.
pub(crate) fn other_programs() -> PathBuf {
    let path = program("mesh-agent")
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

/// Returns whether this process can create namespaces and load BPF programs; otherwise prints why
/// the test is skipped.
pub(crate) fn privileged(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: {test}: network namespaces, cgroups and BPF need root");
    }
    root
}

/// Waits until a condition holds; panics with `why` on timeout.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool, why: impl Fn() -> String) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "timed out: {what}\n{}", why());
        std::thread::park_timeout(POLL_INTERVAL);
    }
}
