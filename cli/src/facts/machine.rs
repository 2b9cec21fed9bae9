//! Properties of this machine that need no daemon.

/// Properties of this machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) root: bool,
    pub(crate) kernel: String,
    pub(crate) mounts: String,
    pub(crate) btf: bool,
}

impl Machine {
    /// Returns a mount point of a file system type, preferably below /sys, where programs look
    /// first.
    pub(crate) fn mount_point(&self, kind: &str) -> Option<&str> {
        let places = self.mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, mounted) = (fields.next()?, fields.next()?);
            (mounted == kind).then_some(place)
        });
        places.min_by_key(|place| !place.starts_with("/sys/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_below_sys_is_preferred() {
        let machine = Machine {
            mounts: "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\nx /bpf ext4 rw 0 0\nbpf /tmp/x bpf rw 0 0\nbpf /sys/fs/bpf bpf rw 0 0\n".to_owned(),
            ..Machine::default()
        };
        assert_eq!(
            machine.mount_point("cgroup2"),
            Some("/sys/fs/cgroup/unified")
        );
        assert_eq!(machine.mount_point("bpf"), Some("/sys/fs/bpf"));
        assert_eq!(machine.mount_point("tracefs"), None);
    }
}
