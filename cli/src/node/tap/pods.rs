//! Which pods of a local node a tap reaches, and which pod has an address.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use mesh_core::identity::service_account;
use mesh_core::labels::{Labels, workload_label};
use mesh_core::tap::AddressTable;
use mesh_k8s::kinds::{ObjectMeta, Pod, ReplicaSet, ResourceExt, Service};
use mesh_k8s::pod::owner::{self, Owner};
use mesh_k8s::pod::ports;
use mesh_k8s::values::Values;
use mesh_k8s::{pod, select};

use super::super::Node;
use crate::clients::tap::TapQuery;
use crate::exit::Failure;
use crate::resource::{ResourceKind, TapState};

/// A pod whose proxy is tapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TappedPod {
    /// Namespace and name.
    pub(super) name: String,
    /// The address of the proxy's tap service.
    pub(super) addr: SocketAddr,
    /// The identity that the proxy must have.
    pub(super) identity: String,
}

/// The objects of a node that selections are about.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pods: Vec<Pod>,
    replica_sets: Vec<ObjectMeta>,
    services: Vec<Service>,
}

/// Why pods of a target are not tapped, and how many.
#[derive(Default)]
struct LeftOut {
    not_running: usize,
    unmeshed: usize,
    missing: usize,
    disabled: usize,
}

impl Objects {
    pub(super) fn read(node: &Node) -> anyhow::Result<Self> {
        let replica_sets: Vec<ReplicaSet> = node.objects("ReplicaSet")?;
        Ok(Self {
            pods: node.objects("Pod")?,
            replica_sets: replica_sets.into_iter().map(|set| set.metadata).collect(),
            services: node.objects("Service")?,
        })
    }

    /// Returns the pods of the query's target that can be tapped.
    pub(super) fn select(&self, query: &TapQuery) -> Result<Vec<TappedPod>, Failure> {
        let selector = select::parse(&query.selector).map_err(Failure::Input)?;
        let members: Vec<&Pod> = self.members(query, query.namespace());
        if members.is_empty() {
            return Err(Failure::Input(self.not_found(query)));
        }
        let mut found = Vec::new();
        let mut left_out = LeftOut::default();
        let selected = |pod: &&&Pod| select::matches(&selector, pod.metadata.labels.as_ref());
        for pod in members.iter().filter(selected) {
            match (tapped(pod), TapState::of_pod(pod)) {
                _ if !is_running(pod) => left_out.not_running += 1,
                (None, _) => left_out.unmeshed += 1,
                (Some(_), TapState::Disabled) => left_out.disabled += 1,
                (Some(_), TapState::Missing) => left_out.missing += 1,
                (Some(tapped), TapState::Enabled) => found.push(tapped),
            }
        }
        if found.is_empty() {
            return Err(Failure::Input(format!(
                "no pods to tap for {query}: of its {} pods, {left_out}",
                members.len()
            )));
        }
        Ok(found)
    }

    /// Describes the running pods.
    pub(super) fn addresses(&self) -> AddressTable {
        let running = self.pods.iter().filter(|pod| is_running(pod));
        let described = |pod| pod::ips(pod).into_iter().map(|ip| (ip, self.labels(pod)));
        running.flat_map(described).collect()
    }

    fn members(&self, query: &TapQuery, namespace: &str) -> Vec<&Pod> {
        let in_namespace = self.pods.iter().filter(|pod| is_in(*pod, namespace));
        in_namespace
            .filter(|pod| match query.kind() {
                ResourceKind::Namespace => true,
                ResourceKind::Pod => pod.name_any() == query.name(),
                ResourceKind::Service => self.is_selected(pod, namespace, query.name()),
                kind => self
                    .owners(pod)
                    .iter()
                    .any(|owner| owner.kind == kind.as_str() && owner.name == query.name()),
            })
            .collect()
    }

    fn is_selected(&self, pod: &Pod, namespace: &str, service: &str) -> bool {
        let mut services = self.services.iter();
        services.any(|it| {
            let selector = it.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            is_in(it, namespace)
                && it.name_any() == service
                && select::service_matches(selector, pod.metadata.labels.as_ref())
        })
    }

    /// Returns the object that owns a pod, and the workload that the pod belongs to.
    fn owners(&self, pod: &Pod) -> [Owner; 2] {
        let find = |_kind: &str, name: &str| {
            self.replica_sets.iter().find(|set| {
                set.name.as_deref() == Some(name) && set.namespace == pod.metadata.namespace
            })
        };
        [owner::resolve(pod, |_, _| None), owner::resolve(pod, find)]
    }

    /// Returns the labels of a pod in metrics: its workload, its namespace and itself.
    fn labels(&self, pod: &Pod) -> Labels {
        let [_, workload] = self.owners(pod);
        [
            ("namespace", pod.namespace().unwrap_or_default()),
            ("pod", pod.name_any()),
            (workload_label(&workload.kind), workload.name),
        ]
        .into()
    }

    fn not_found(&self, query: &TapQuery) -> String {
        let namespaces: BTreeSet<String> = self.pods.iter().filter_map(Pod::namespace).collect();
        let elsewhere: Vec<String> = match query.kind() {
            ResourceKind::Namespace => Vec::new(),
            _ => namespaces
                .into_iter()
                .filter(|namespace| !self.members(query, namespace).is_empty())
                .collect(),
        };
        if elsewhere.is_empty() {
            return format!(
                "the local node has no pods of {query}; `meshctl local status` lists its pods"
            );
        }
        format!(
            "the local node has no pods of {query}, but of this name in {}: select it with -n",
            elsewhere.join(", ")
        )
    }
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} are not running, {} are not in the mesh, {} have tap disabled, and {} were created without tap and must be restarted",
            self.not_running, self.unmeshed, self.disabled, self.missing
        )
    }
}

fn is_in(object: &impl ResourceExt, namespace: &str) -> bool {
    object.namespace().as_deref() == Some(namespace)
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Returns a pod with a proxy and an address.
fn tapped(pod: &Pod) -> Option<TappedPod> {
    let port = ports::proxy_ports(pod)?.control;
    let ip = *pod::ips(pod).first()?;
    let namespace = pod.namespace()?;
    let identity = service_account(
        pod::service_account(pod),
        &namespace,
        pod::control_plane_namespace(pod)?,
        Values::default().trust_domain(),
    );
    Some(TappedPod {
        name: format!("{namespace}/{}", pod.name_any()),
        addr: SocketAddr::new(ip, port),
        identity,
    })
}

#[cfg(test)]
mod tests;
