//! A pod that asks for redirection, out of its object. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Pod;
use mesh_core::node::{PodRef, PodStatus};

use crate::redirect;

/// The init container with which an injector without a node agent redirects a pod.
const INIT_CONTAINER: &str = "linkerd-init";
/// On the object that stands for a pod of kubelet's own files: the UID that kubelet, and so its
/// cgroups, know the pod by.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MeshedPod {
    /// With the UID that the node knows.
    pub(super) pod: PodRef,
    /// The UID that the API server knows.
    pub(super) object_uid: String,
    pub(super) annotations: BTreeMap<String, String>,
    /// None until kubelet told them.
    pub(super) addresses: Vec<IpAddr>,
}

impl MeshedPod {
    /// `None` for a pod that the agent has nothing to do with: without a proxy, in the node's
    /// network, redirected by its own init container, or at its end.
    pub(super) fn read(pod: Pod) -> Option<Self> {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let spec = pod.spec?;
        let status = pod.status.unwrap_or_default();
        let is_over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let init = spec.init_containers.unwrap_or_default();
        if !redirect::is_injected(&annotations)
            || spec.host_network == Some(true)
            || init
                .iter()
                .any(|container| container.name == INIT_CONTAINER)
            || is_over
        {
            return None;
        }
        let object_uid = pod.metadata.uid?;
        let addresses = status.pod_ips.unwrap_or_default();
        Some(Self {
            pod: PodRef {
                namespace: pod.metadata.namespace?,
                name: pod.metadata.name?,
                uid: annotations
                    .get(MIRROR)
                    .cloned()
                    .unwrap_or_else(|| object_uid.clone()),
            },
            object_uid,
            addresses: addresses
                .iter()
                .filter_map(|address| address.ip.parse().ok())
                .collect(),
            annotations: redirect::only_ours(annotations),
        })
    }

    /// Is one of the enrolled pods this one, in the sandbox that it has now? A sandbox that is made
    /// anew has another address.
    pub(super) fn is_among(&self, enrolled: &[PodStatus]) -> bool {
        enrolled
            .iter()
            .any(|status| self.is_same(&status.pod) && self.has_address_of(status))
    }

    fn is_same(&self, other: &PodRef) -> bool {
        // Some runtimes tell no UID.
        match other.uid.is_empty() {
            true => self.pod.namespace == other.namespace && self.pod.name == other.name,
            false => self.pod.uid == other.uid,
        }
    }

    fn has_address_of(&self, status: &PodStatus) -> bool {
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
    fn a_pod_with_a_proxy_asks() {
        let read = MeshedPod::read(pod(|_| {})).unwrap();
        assert_eq!(
            (read.pod.to_string().as_str(), read.pod.uid.as_str()),
            ("shop/web-0", "u-1")
        );
        assert_eq!(read.addresses.len(), 2);
        let noted = MeshedPod::read(pod(|pod| {
            pod["metadata"]["annotations"]["example.com/note"] = "x".repeat(200_000).into();
        }));
        assert_eq!(noted, Some(read), "what the mesh does not read is not kept");
        let young = MeshedPod::read(pod(|pod| pod["status"] = Value::Null)).unwrap();
        assert!(young.addresses.is_empty());
    }

    #[test]
    fn a_pod_of_a_file_has_the_uid_of_its_file() {
        let read = MeshedPod::read(pod(|pod| {
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "abc".into();
        }));
        let read = read.unwrap();
        assert_eq!(
            (read.pod.uid.as_str(), read.object_uid.as_str()),
            ("abc", "u-1")
        );
    }

    #[test]
    fn others_do_not_ask() {
        let check = |what: &str, change: fn(&mut Value)| {
            assert_eq!(MeshedPod::read(pod(change)), None, "{what}");
        };
        check("no proxy", |pod| pod["metadata"]["annotations"] = json!({}));
        check("the node's network", |pod| {
            pod["spec"]["hostNetwork"] = true.into();
        });
        check("an init container of its own", |pod| {
            pod["spec"]["initContainers"] = json!([{"name": "linkerd-init"}]);
        });
        check("ended", |pod| pod["status"]["phase"] = "Succeeded".into());
        check("failed", |pod| pod["status"]["phase"] = "Failed".into());
    }

    #[test]
    fn it_is_enrolled_when_its_present_sandbox_is() {
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
        let running = MeshedPod::read(pod(|_| {})).unwrap();
        let young = MeshedPod::read(pod(|pod| pod["status"] = Value::Null)).unwrap();
        let check = |pod: &MeshedPod, status: PodStatus, expect: bool| {
            assert_eq!(
                pod.is_among(std::slice::from_ref(&status)),
                expect,
                "{status:?}"
            );
        };
        check(&running, enrolled("u-1", "web-0", "fd00::1"), true);
        check(&running, enrolled("u-1", "web-0", "10.0.0.9"), false);
        check(&running, enrolled("u-2", "web-0", "10.0.0.1"), false);
        check(&running, enrolled("", "web-0", "10.0.0.1"), true);
        check(&running, enrolled("", "web-1", "10.0.0.1"), false);
        check(&young, enrolled("u-1", "web-0", "10.0.0.9"), true);
        assert!(!running.is_among(&[]));
    }
}
