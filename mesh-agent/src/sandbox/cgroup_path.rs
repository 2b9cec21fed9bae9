//! Parses `/proc/PID/cgroup` and matches it with a pod. Pure.

use crate::registry::check_container_id;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodProcess {
    /// Absent when the process is in the pod's cgroup and not in one of a container.
    pub(super) container_id: Option<String>,
}

/// Searches all hierarchies: on a node with both versions of cgroups, the kubelet may use any.
pub(super) fn find_pod_process(text: &str, uid: &str) -> Option<PodProcess> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut matches = paths.filter_map(|path| find_in_path(path, uid));
    // Prefers a line that also has the container.
    let first = matches.next()?;
    match first.container_id {
        Some(_) => Some(first),
        None => Some(
            matches
                .find(|found| found.container_id.is_some())
                .unwrap_or(first),
        ),
    }
}

fn find_in_path(path: &str, uid: &str) -> Option<PodProcess> {
    let mut parts = path.split('/');
    parts.find(|part| is_pod_component(part, uid))?;
    Some(PodProcess {
        container_id: parts.next().and_then(container_id),
    })
}

/// `pod<uid>` with the cgroupfs driver; `<parents>-pod<uid>.slice` with the systemd driver, which
/// replaces the UID's dashes with underscores because a dash separates levels.
fn is_pod_component(part: &str, uid: &str) -> bool {
    let tail = |text: &str| text.rsplit_once("pod").map(|(_, tail)| tail.to_owned());
    match part.strip_suffix(".slice") {
        Some(slice) => tail(slice).is_some_and(|found| found == uid.replace('-', "_")),
        None => part.strip_prefix("pod") == Some(uid),
    }
}

/// `<id>` with the cgroupfs driver; `<runtime>-<id>.scope` with the systemd driver.
fn container_id(part: &str) -> Option<String> {
    let id = match part.strip_suffix(".scope") {
        Some(scope) => scope.rsplit('-').next().unwrap_or(scope),
        None => part,
    };
    check_container_id(id).ok().map(|()| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f3c9d8e-6b1a-4d5e-9f00-112233445566";

    #[test]
    fn pod_is_found_with_any_cgroup_driver_version_and_parent() {
        let check = |text: &str, container: Option<&str>| {
            let found = find_pod_process(text, UID).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found.container_id.as_deref(), container, "{text}");
        };
        let uid = UID;
        let slice = UID.replace('-', "_");
        check(
            &format!("0::/kubepods/besteffort/pod{uid}/c0ffee"),
            Some("c0ffee"),
        );
        check(
            &format!("0::/kubepods/pod{uid}/c0ffee/init.scope"),
            Some("c0ffee"),
        );
        check(
            &format!("0::/../../burstable/pod{uid}/c0ffee"),
            Some("c0ffee"),
        );
        check(
            &format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-c0ffee.scope"
            ),
            Some("c0ffee"),
        );
        check(
            &format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice/crio-c0ffee.scope"
            ),
            Some("c0ffee"),
        );
        check(
            &format!("12:cpu,cpuacct:/kubepods/pod{uid}/c0ffee\n1:name=systemd:/x:y\n0::/"),
            Some("c0ffee"),
        );
        check(
            &format!("3:memory:/kubepods/pod{uid}\n0::/kubepods/pod{uid}/c0ffee"),
            Some("c0ffee"),
        );
        check(&format!("0::/kubepods/pod{uid}"), None);
        check(&format!("0::/kubepods/pod{uid}/.."), None);
    }

    #[test]
    fn static_pod_has_a_hash_as_uid() {
        let hash = "9c0a2f1d4e5b6a7c8d9e0f1a2b3c4d5e";
        let text = format!("0::/kubepods.slice/kubepods-pod{hash}.slice/cri-containerd-a1.scope");
        let process = find_pod_process(&text, hash).unwrap();
        assert_eq!(process.container_id.unwrap(), "a1");
    }

    #[test]
    fn unrelated_cgroup_paths_do_not_match() {
        for text in [
            "",
            "0::/",
            "garbage",
            "0::/system.slice/containerd.service",
            "0::/kubepods/pod0f3c9d8e-6b1a-4d5e-9f00-112233445567/c0ffee",
            "0::/kubepods/pod0f3c9d8e-6b1a-4d5e-9f00-1122334455667/c0ffee",
            "0::/user.slice/0f3c9d8e-6b1a-4d5e-9f00-112233445566",
        ] {
            assert_eq!(find_pod_process(text, UID), None, "{text}");
        }
    }
}
