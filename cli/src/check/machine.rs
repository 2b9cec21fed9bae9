//! The prerequisites of a local node on this machine.

use super::framework::{AppliesTo, Category, Check, CheckResult, Outcome};
use crate::facts::names::BTF;
use crate::facts::{Environment, Facts, Mode};

pub(super) const CATEGORY: Category = Category {
    name: "machine",
    applies: |facts| facts.environment != Environment::Cluster && facts.mode != Mode::Host,
    checks: &[
        Check::new(
            "privileges",
            "meshctl runs as root",
            "run the command again with sudo",
            |facts| {
                Ok(if facts.machine.root {
                    Outcome::ok("root")
                } else {
                    Outcome::warn(
                        "you are not root: sockets and files of the node may be inaccessible",
                    )
                })
            },
        )
        .applies_to(AppliesTo::Machine),
        Check::new(
            "kernel",
            "kernel release is known",
            "mount -t proc proc /proc",
            kernel,
        )
        .applies_to(AppliesTo::Machine),
        Check::new(
            "cgroup2",
            "cgroup2 is mounted",
            "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
            |facts| {
                Ok(match facts.machine.mount_point("cgroup2") {
                    Some(place) => Outcome::ok(place),
                    None => Outcome::fail(
                        "no cgroup2 file system is mounted: the eBPF tiers cannot work; the node falls back to packet filters",
                    ),
                })
            },
        )
        .applies_to(AppliesTo::Machine),
        Check::new(
            "btf",
            "kernel has type information (BTF)",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are",
            |facts| {
                Ok(if facts.machine.btf {
                    Outcome::ok(BTF)
                } else {
                    Outcome::warn(format!(
                        "{BTF} is missing: the eBPF tiers cannot work; the node falls back to packet filters"
                    ))
                })
            },
        )
        .applies_to(AppliesTo::Machine),
        Check::new(
            "bpffs",
            "bpf file system is mounted",
            "mount -t bpf bpf /sys/fs/bpf",
            |facts| {
                Ok(match facts.machine.mount_point("bpf") {
                    Some(place) => Outcome::ok(place),
                    None => Outcome::warn(
                        "no bpf file system is mounted: mesh-agent mounts it when it starts",
                    ),
                })
            },
        )
        .applies_to(AppliesTo::Machine),
    ],
};

/// Shows the kernel release. No decision depends on it, because distributions backport features.
fn kernel(facts: &Facts) -> CheckResult {
    Ok(if facts.machine.kernel.is_empty() {
        Outcome::fail("cannot read /proc/sys/kernel/osrelease")
    } else {
        Outcome::ok(&facts.machine.kernel)
    })
}
