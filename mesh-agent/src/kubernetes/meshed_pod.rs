//! Reads from a pod's object whether and how to redirect it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use mesh_core::node::{PodRef, PodStatus};

use crate::redirect;

/// The init container that redirects a pod on nodes without an agent.
const INIT_CONTAINER: &str = "linkerd-init";
/// On the mirror of a static pod: the UID that the kubelet, and so its cgroups, use. A user who may
/// create pods may also write it, with any UID.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MeshedPod {
    /// With the UID of the API server's object.
    pub(super) pod: PodRef,
    /// The UID that the pod claims to have on the node as a static pod.
    pub(super) mirrored_uid: Option<String>,
    pub(super) annotations: BTreeMap<String, String>,
    /// Empty until the kubelet has reported them.
    pub(super) addresses: Vec<IpAddr>,
}

impl MeshedPod {
    /// Returns `None` for a pod that the agent does not redirect: without a proxy, in the node's
    /// network, redirected by its own init container, or ended.
    pub(super) fn from_pod(pod: Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let spec = pod.spec?;
        let status = pod.status.unwrap_or_default();
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let init = spec.init_containers.unwrap_or_default();
        if !redirect::is_injected(&annotations)
            || spec.host_network == Some(true)
            || init
                .iter()
                .any(|container| container.name == INIT_CONTAINER)
            || has_ended
        {
            return None;
        }
        let uid = pod.metadata.uid?;
        let addresses = status.pod_ips.unwrap_or_default();
        Some(Self {
            pod: PodRef {
                namespace: pod.metadata.namespace?,
                name: pod.metadata.name?,
                uid,
            },
            mirrored_uid: annotations.get(MIRROR_ANNOTATION).cloned(),
            addresses: addresses
                .iter()
                .filter_map(|address| address.ip.parse().ok())
                .collect(),
            annotations: redirect::mesh_annotations(annotations),
        })
    }

    /// Returns the pod as the node knows it, if its claims are true.
    pub(super) fn on_node(&self) -> PodRef {
        let mut pod = self.pod.clone();
        if let Some(uid) = &self.mirrored_uid {
            pod.uid.clone_from(uid);
        }
        pod
    }

    /// Returns whether one of the enrolled pods is this one, in its current sandbox. A recreated
    /// sandbox has another address.
    pub(super) fn is_enrolled_in(&self, enrolled: &[PodStatus]) -> bool {
        enrolled
            .iter()
            .any(|status| self.is_same_pod(&status.pod) && self.has_common_address(status))
    }

    fn is_same_pod(&self, other: &PodRef) -> bool {
        let has_name = self.pod.namespace == other.namespace && self.pod.name == other.name;
        // Some runtimes pass no UID.
        has_name && (other.uid.is_empty() || self.on_node().uid == other.uid)
    }

    fn has_common_address(&self, status: &PodStatus) -> bool {
        let known = &self.addresses;
        known.is_empty() || status.addresses.iter().any(|found| known.contains(found))
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::node::Tier;
    use serde_json::{Value, json};

    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "u-1",
                "annotations": {"linkerd.io/proxy-version": "x"},
            },
            "spec": {"containers": [], "initContainers": [{"name": "linkerd-proxy"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pod_with_proxy_is_read() {
        let read = MeshedPod::from_pod(pod(|_| {})).unwrap();
        let pod_and_uid = [&read.pod.to_string(), &read.pod.uid];
        assert_eq!(pod_and_uid, ["shop/web-0", "u-1"]);
        assert_eq!(read.addresses.len(), 2);
        let noted = MeshedPod::from_pod(pod(|pod| {
            pod["metadata"]["annotations"]["example.com/note"] = "x".repeat(200_000).into();
        }));
        assert_eq!(noted, Some(read), "foreign annotations are dropped");
        let young = MeshedPod::from_pod(pod(|pod| pod["status"] = Value::Null)).unwrap();
        assert!(young.addresses.is_empty());
    }

    #[test]
    fn static_pod_has_uid_of_its_manifest() {
        let read = MeshedPod::from_pod(pod(|pod| {
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "abc".into();
        }));
        let read = read.unwrap();
        assert_eq!([&read.on_node().uid, &read.pod.uid], ["abc", "u-1"]);
    }

    #[test]
    fn pods_the_agent_does_not_redirect_are_ignored() {
        let check = |what: &str, change: fn(&mut Value)| {
            assert_eq!(MeshedPod::from_pod(pod(change)), None, "{what}");
        };
        check("no proxy", |pod| pod["metadata"]["annotations"] = json!({}));
        check("the node's network", |pod| {
            pod["spec"]["hostNetwork"] = true.into();
        });
        check("its own init container", |pod| {
            pod["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
        });
        check("ended", |pod| pod["status"]["phase"] = "Succeeded".into());
        check("failed", |pod| pod["status"]["phase"] = "Failed".into());
    }

    #[test]
    fn pod_is_enrolled_only_in_its_current_sandbox() {
        let enrolled = |uid: &str, name: &str, address: &str| PodStatus {
            pod: PodRef {
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
            },
            container_id: "c".to_owned(),
            netns: "/run/netns/c".into(),
            netns_cookie: 1,
            addresses: vec![address.parse().unwrap()],
            tier: Tier::Full,
            connections: BTreeMap::new(),
        };
        let running = MeshedPod::from_pod(pod(|_| {})).unwrap();
        let young = MeshedPod::from_pod(pod(|pod| pod["status"] = Value::Null)).unwrap();
        let check = |pod: &MeshedPod, status: PodStatus, expect: bool| {
            let found = pod.is_enrolled_in(std::slice::from_ref(&status));
            assert_eq!(found, expect, "{status:?}");
        };
        check(&running, enrolled("u-1", "web-0", "fd00::1"), true);
        check(&running, enrolled("u-1", "web-0", "10.0.0.9"), false);
        check(&running, enrolled("u-2", "web-0", "10.0.0.1"), false);
        check(&running, enrolled("", "web-0", "10.0.0.1"), true);
        check(&running, enrolled("", "web-1", "10.0.0.1"), false);
        check(&young, enrolled("u-1", "web-0", "10.0.0.9"), true);
        assert!(!running.is_enrolled_in(&[]));
    }
}
