//! The proxies that are scraped.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mesh_core::labels::workload_label;
use mesh_objects::model::{ListedKind, ListedObject, Name, PodPhase};

use mesh_objects::inventory::Inventory;

/// The admin server of a pod's proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pod: Name,
    pub(super) addr: SocketAddr,
    /// The labels that a series has in addition to the proxy's own, as the scrape job of the viz
    /// extension sets them.
    pub(super) labels: BTreeMap<String, String>,
}

/// The labels of a pod that name its workload end in the kind.
const WORKLOAD: &str = "linkerd.io/proxy-";

impl Target {
    /// Returns the target of a running pod that has a proxy of this control plane.
    fn of_pod(object: &ListedObject, control_namespace: &str) -> Option<Self> {
        let pod = object.pod()?;
        if pod.phase != PodPhase::Running || *pod.control_plane_ns != *control_namespace {
            return None;
        }
        let addr = SocketAddr::new(pod.ip.parse().ok()?, pod.admin_port?);
        let workload = object.labels.iter().filter_map(|(label, name)| {
            let kind = label.strip_prefix(WORKLOAD)?;
            Some((workload_label(kind).to_owned(), name.clone()))
        });
        let own = [
            ("namespace", &object.name.namespace),
            ("pod", &object.name.name),
        ];
        let own = own.map(|(label, value)| (label.to_owned(), value.to_string()));
        Some(Self {
            pod: object.name.clone(),
            addr,
            labels: workload.chain(own).collect(),
        })
    }

    /// Returns all targets, sorted by pod.
    pub(super) fn all(inventory: &Inventory, control_namespace: &str) -> Vec<Self> {
        inventory
            .in_namespace(ListedKind::Pod, "")
            .filter_map(|pod| Self::of_pod(pod, control_namespace))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, phase: &str, labels: &str) -> String {
        format!(
            "---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}}}
spec:
  containers:
  - name: linkerd-proxy
    env:
    - {{name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '0.0.0.0:4143'}}
    - {{name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, value: '0.0.0.0:4190'}}
    - {{name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4291'}}
status: {{phase: {phase}, podIP: 10.1.0.1}}
"
        )
    }

    #[test]
    fn proxies_of_running_pods_are_targets() {
        let meshed = "linkerd.io/control-plane-ns: linkerd";
        let other = "linkerd.io/control-plane-ns: other";
        let workload = "app: web, linkerd.io/proxy-deployment: web, linkerd.io/proxy-job: once";
        let manifests = [
            pod("web", "Running", &format!("{meshed}, {workload}")),
            pod("pending", "Pending", meshed),
            pod("unmeshed", "Running", "app: web"),
            pod("foreign", "Running", other),
        ];
        let inventory = crate::inventory::tests::of_manifests(&manifests.concat());
        let targets = Target::all(&inventory, "linkerd");
        let [target] = &targets[..] else {
            panic!("{targets:?}");
        };
        assert_eq!(target.addr, "10.1.0.1:4291".parse().unwrap());
        let expected = [
            ("deployment", "web"),
            ("k8s_job", "once"),
            ("namespace", "shop"),
            ("pod", "web"),
        ];
        let labels: Vec<(&str, &str)> = target
            .labels
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(labels, expected);
    }
}
