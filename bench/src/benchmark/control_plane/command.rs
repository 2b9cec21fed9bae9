//! The commands that run the programs of a row, each on the CPU of its role.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::testbed::{Testbed, pod};

/// Returns the command of one of our controllers, with a file that tells it where the API server
/// is.
pub(super) fn ours(testbed: &Testbed, name: &str, kubeconfig: &Path) -> anyhow::Result<Command> {
    let mut command = on_cpu(testbed, testbed.cpus.proxies, &testbed.programs.controller)?;
    command.arg(name).arg("--kubeconfig").arg(kubeconfig);
    Ok(command)
}

/// Returns a command outside of the pods, on one CPU, with enough files for all connections.
pub(super) fn on_cpu(testbed: &Testbed, cpu: usize, program: &Path) -> anyhow::Result<Command> {
    let cgroup = testbed.cgroup.join("control-plane");
    fs::create_dir_all(&cgroup)?;
    let mut command = pod::within_with_files(&cgroup);
    command.args(["taskset", "-c"]);
    command.arg(cpu.to_string()).arg(program);
    Ok(command)
}
