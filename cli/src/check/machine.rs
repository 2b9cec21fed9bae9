//! What the machine offers, whether or not a node runs on it.

use std::path::Path;

use super::{Category, Check, Look, Outcome, Subject};

pub(crate) const CATEGORY: Category = Category {
    name: "machine",
    needs_node: false,
    checks: &[
        Check {
            anchor: "privileges",
            description: "you may see everything",
            fatal: false,
            look: privileges,
        },
        Check {
            anchor: "kernel",
            description: "kernel release is known",
            fatal: false,
            look: kernel,
        },
        Check {
            anchor: "cgroup2",
            description: "cgroup2 is mounted",
            fatal: false,
            look: cgroup2,
        },
        Check {
            anchor: "btf",
            description: "kernel describes its types (BTF)",
            fatal: false,
            look: btf,
        },
        Check {
            anchor: "bpffs",
            description: "bpf file system is mounted",
            fatal: false,
            look: bpffs,
        },
    ],
};

fn privileges(_: &Subject) -> Look<'_> {
    Box::pin(async {
        if nix::unistd::geteuid().is_root() {
            Outcome::Ok("root".to_owned())
        } else {
            Outcome::Warn(
                "you are not root: sockets and files of the node may be closed to you".to_owned(),
            )
        }
    })
}

/// For the reader only: no decision is taken by the release, because distributions move features between releases.
fn kernel(_: &Subject) -> Look<'_> {
    Box::pin(async {
        match std::fs::read_to_string("/proc/sys/kernel/osrelease") {
            Ok(release) => Outcome::Ok(release.trim().to_owned()),
            Err(error) => Outcome::Fail(format!("cannot read /proc/sys/kernel/osrelease: {error}")),
        }
    })
}

fn cgroup2(_: &Subject) -> Look<'_> {
    Box::pin(async {
        mounted(
            "cgroup2",
            "the eBPF tiers cannot work; the node falls back to packet filters",
        )
    })
}

fn bpffs(_: &Subject) -> Look<'_> {
    Box::pin(async {
        match mounted("bpf", "mesh-agent mounts it when it starts") {
            Outcome::Fail(missing) => Outcome::Warn(missing),
            other => other,
        }
    })
}

fn btf(_: &Subject) -> Look<'_> {
    Box::pin(async {
        let path = "/sys/kernel/btf/vmlinux";
        if Path::new(path).exists() {
            Outcome::Ok(path.to_owned())
        } else {
            Outcome::Warn(format!(
                "{path} is missing (CONFIG_DEBUG_INFO_BTF): the eBPF tiers cannot work; the node falls back to packet filters"
            ))
        }
    })
}

fn mounted(kind: &str, without: &str) -> Outcome {
    match std::fs::read_to_string("/proc/mounts") {
        Err(error) => Outcome::Fail(format!("cannot read /proc/mounts: {error}")),
        Ok(mounts) => match mount_point(&mounts, kind) {
            Some(place) => Outcome::Ok(place.to_owned()),
            None => Outcome::Fail(format!("no {kind} file system is mounted: {without}")),
        },
    }
}

/// A place where a file system of this kind is mounted; below /sys when there is one, where everybody looks first.
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
