//! Parses `/proc/PID/cgroup` and matches it with a pod. Pure.

use crate::registry::check_container_id;

/// Hexadecimal digits of a UID.
const UID_DIGITS: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodProcess {
    /// Absent when the process is in the pod's cgroup and not in one of a container.
    pub(super) container_id: Option<String>,
}

/// Searches all hierarchies: on a node with both versions of cgroups, the kubelet may use any.
/// `own` is the file of the calling process.
pub(super) fn find_pod_process(text: &str, own: &str, uid: &str) -> Option<PodProcess> {
    let mut matches = text.lines().filter_map(|line| {
        let (hierarchy, path) = split(line)?;
        let mut own = own.lines().filter_map(split);
        let own_path = own.find(|(known, _)| *known == hierarchy);
        find_in_path(path, own_path.map_or("", |(_, path)| path), uid)
    });
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

/// Splits `ID:CONTROLLERS:PATH` before the path.
fn split(line: &str) -> Option<(&str, &str)> {
    let (id, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    Some((&line[..id.len() + 1 + controllers.len()], path))
}

/// The outermost cgroup of a pod decides: a container that may create cgroups can name one below
/// its own after another pod. Cgroups that contain the caller too do not belong to pods of its
/// node: such a node is itself a container of a pod.
fn find_in_path(path: &str, own_path: &str, uid: &str) -> Option<PodProcess> {
    let mut own_parts = own_path.split('/');
    let mut parts = path
        .split('/')
        .skip_while(|part| own_parts.next() == Some(part));
    let outermost = parts.find_map(|part| pod_uid(part, uid))?;
    outermost.then(|| PodProcess {
        container_id: parts.next().and_then(container_id),
    })
}

/// Returns whether the pod with this cgroup is the searched one; `None` for other cgroups. Names
/// are `pod<uid>` with the cgroupfs driver, and `<parents>-pod<uid>.slice` with the systemd driver,
/// which replaces the UID's dashes with underscores because a dash separates levels.
fn pod_uid(part: &str, uid: &str) -> Option<bool> {
    let found = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("pod")?.1.replace('_', "-"),
        None => part.strip_prefix("pod")?.to_owned(),
    };
    let is_searched = found == uid;
    (is_searched || is_uid(&found)).then_some(is_searched)
}

/// UIDs of the API server are UUIDs; UIDs of static pods are hashes of 128 bits.
fn is_uid(text: &str) -> bool {
    let digits = text.chars().filter(|digit| *digit != '-');
    digits.clone().count() == UID_DIGITS
        && digits.into_iter().all(|digit| digit.is_ascii_hexdigit())
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
            let found = find_pod_process(text, "", UID).unwrap_or_else(|| panic!("{text}"));
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
        let process = find_pod_process(&text, "0::/", hash).unwrap();
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
            assert_eq!(find_pod_process(text, "0::/", UID), None, "{text}");
        }
    }

    #[test]
    fn pod_is_the_outermost_one_below_the_caller() {
        let other = "aaaaaaaa-6b1a-4d5e-9f00-112233445566";
        let nested = format!("0::/kubepods/pod{other}/c0ffee/pod{UID}/decade");
        let own = format!("0::/kubepods/pod{other}/c0ffee/kubepods/podx/agent");
        let check = |own: &str, expect: Option<&str>| {
            let found = find_pod_process(&nested, own, UID);
            let container = found.and_then(|found| found.container_id);
            assert_eq!(container.as_deref(), expect, "{own}");
        };
        // A container of another pod made a cgroup with the pod's name.
        check("", None);
        check("0::/", None);
        check("0::/kubepods/podx/agent", None);
        check(&own.replace("0::", "1:cpu:"), None);
        // The node is a container of another pod.
        check(&own, Some("decade"));
        let slice = other.replace('-', "_");
        let text = format!("0::/kubepods.slice/kubepods-pod{slice}.slice/c1/pod{UID}/c2");
        assert_eq!(find_pod_process(&text, "0::/", UID), None);
    }
}
