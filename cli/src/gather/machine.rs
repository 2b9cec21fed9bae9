//! Reads the properties of this machine from the file system.

use std::fs;
use std::path::Path;

use crate::facts::Machine;
use crate::facts::names::BTF;

pub(super) fn read() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    Machine {
        root: nix::unistd::geteuid().is_root(),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        mounts: read("/proc/mounts"),
        btf: Path::new(BTF).exists(),
    }
}
