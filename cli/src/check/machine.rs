//! What this machine offers, whether or not a local node runs on it.

use super::{Category, Check, Ends, Facts, On, Outcome, Place, Verdict};

pub(super) const CATEGORY: Category = Category {
    name: "machine",
    applies: |facts| facts.place != Place::Cluster,
    checks: &[
        Check {
            anchor: "privileges",
            description: "you may see everything",
            advice: "run the command again with sudo",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Machine,
            look: |facts| {
                Ok(if facts.machine.root {
                    Outcome::ok("root")
                } else {
                    Outcome::warn(
                        "you are not root: sockets and files of the node may be closed to you",
                    )
                })
            },
        },
        Check {
            anchor: "kernel",
            description: "kernel release is known",
            advice: "mount -t proc proc /proc",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Machine,
            look: kernel,
        },
        Check {
            anchor: "cgroup2",
            description: "cgroup2 is mounted",
            advice: "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Machine,
            look: |facts| {
                Ok(match mount_point(&facts.machine.mounts, "cgroup2") {
                    Some(place) => Outcome::ok(place),
                    None => Outcome::fail(
                        "no cgroup2 file system is mounted: the eBPF tiers cannot work; the node falls back to packet filters",
                    ),
                })
            },
        },
        Check {
            anchor: "btf",
            description: "kernel describes its types (BTF)",
            advice: "use a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions' kernels are",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Machine,
            look: |facts| {
                Ok(if facts.machine.btf {
                    Outcome::ok(BTF)
                } else {
                    Outcome::warn(format!(
                        "{BTF} is missing: the eBPF tiers cannot work; the node falls back to packet filters"
                    ))
                })
            },
        },
        Check {
            anchor: "bpffs",
            description: "bpf file system is mounted",
            advice: "mount -t bpf bpf /sys/fs/bpf",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Machine,
            look: |facts| {
                Ok(match mount_point(&facts.machine.mounts, "bpf") {
                    Some(place) => Outcome::ok(place),
                    None => Outcome::warn(
                        "no bpf file system is mounted: mesh-agent mounts it when it starts",
                    ),
                })
            },
        },
    ],
};

/// Where the kernel describes its types.
pub(super) const BTF: &str = "/sys/kernel/btf/vmlinux";

/// For the reader only: no decision is taken by the release, because distributions move features
/// between releases.
fn kernel(facts: &Facts) -> Verdict {
    Ok(if facts.machine.kernel.is_empty() {
        Outcome::fail("cannot read /proc/sys/kernel/osrelease")
    } else {
        Outcome::ok(&facts.machine.kernel)
    })
}

/// A place where a file system of this kind is mounted; below /sys when there is one, where
/// everybody looks first.
fn mount_point<'a>(mounts: &'a str, kind: &str) -> Option<&'a str> {
    let places = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, mounted) = (fields.next()?, fields.next()?);
        (mounted == kind).then_some(place)
    });
    places.min_by_key(|place| !place.starts_with("/sys/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nx /bpf ext4 rw 0 0\nbpf /tmp/x bpf rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n";
        assert_eq!(
            mount_point(mounts, "cgroup2"),
            Some("/sys/fs/cgroup/unified")
        );
        assert_eq!(mount_point(mounts, "bpf"), Some("/sys/fs/bpf"));
        assert_eq!(mount_point(mounts, "tracefs"), None);
    }
}
