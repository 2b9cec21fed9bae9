//! The workload of a port, and the Server that selects it.

use std::net::IpAddr;

use mesh_core::policy::inbound::{DefaultPolicy, PortProbes};

use crate::model::{ExternalWorkload, Name, PodRecord, Server, WorkloadRef};
use crate::policy::server;
use crate::policy::settings::NodeProbeSource;
use crate::store::Store;

/// A pod or an ExternalWorkload.
#[derive(Clone, Copy)]
pub(super) enum Workload<'a> {
    Pod(&'a PodRecord),
    External(&'a ExternalWorkload),
}

/// A port that several Servers select.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Overlap {
    pub port: u16,
    /// The Server that applies.
    pub server: Name,
    /// A Server that has no effect on the port.
    pub ignored: Name,
}

/// Returns the Servers that have no effect on a port that they select.
pub fn overlaps(store: &Store, workload: &WorkloadRef, port: u16) -> Vec<Overlap> {
    let Some(workload) = Workload::find(store, workload) else {
        return Vec::new();
    };
    let Some(server) = workload.server(store, port) else {
        return Vec::new();
    };
    workload
        .candidates(store)
        .filter(|other| other.selects(workload.selected(), port) && other.name != server.name)
        .map(|other| Overlap {
            port,
            server: server.name.clone(),
            ignored: other.name.clone(),
        })
        .collect()
}

impl<'a> Workload<'a> {
    pub(super) fn find(store: &'a Store, workload: &WorkloadRef) -> Option<Self> {
        match workload {
            WorkloadRef::Pod(name) => store.pod(name).map(Self::Pod),
            WorkloadRef::External(name) => store.external_workload(name).map(Self::External),
        }
    }

    /// Returns the Server that applies to the port.
    pub(super) fn server(self, store: &'a Store, port: u16) -> Option<&'a Server> {
        server::server_of_port(self.candidates(store), self.selected(), port)
    }

    fn candidates(self, store: &'a Store) -> impl Iterator<Item = &'a Server> {
        store.servers_in(match self {
            Self::Pod(pod) => &pod.name.namespace,
            Self::External(workload) => &workload.name.namespace,
        })
    }

    fn selected(self) -> server::Workload<'a> {
        match self {
            Self::Pod(pod) => pod.into(),
            Self::External(workload) => workload.into(),
        }
    }

    /// Returns the policy of a port without Server.
    pub(super) fn default_policy(self, port: u16, cluster: DefaultPolicy) -> DefaultPolicy {
        let (own, require_identity) = match self {
            Self::Pod(pod) => (pod.default_policy, &pod.require_identity_ports),
            Self::External(workload) => (workload.default_policy, &workload.require_identity_ports),
        };
        let policy = own.unwrap_or(cluster);
        if require_identity.contains(port) {
            return policy.requiring_identity();
        }
        policy
    }

    /// Returns whether a port without Server is opaque. The injector writes the default opaque
    /// ports to the pod's annotation.
    pub(super) fn is_opaque(self, port: u16) -> bool {
        let ports = match self {
            Self::Pod(pod) => &pod.opaque_ports,
            Self::External(workload) => &workload.opaque_ports,
        };
        ports.as_ref().is_some_and(|ports| ports.contains(port))
    }

    /// Returns whether the pod is being deleted.
    pub(super) fn is_terminating(self) -> bool {
        match self {
            Self::Pod(pod) => pod.terminating,
            Self::External(_) => false,
        }
    }

    /// Returns the kubelet's requests to the port, which only pods have, and the addresses of the
    /// pod's node.
    pub(super) fn probes(
        self,
        store: &Store,
        sources: &[NodeProbeSource],
        port: u16,
    ) -> Option<(&'a PortProbes, Vec<IpAddr>)> {
        let Self::Pod(pod) = self else {
            return None;
        };
        let probes = pod.probes.get(&port)?;
        let addresses = |source: &NodeProbeSource| match source {
            NodeProbeSource::HostIps => pod.host_ips.clone(),
            NodeProbeSource::PodCidrs => {
                let node = pod.node.as_deref().and_then(|node| store.node(node));
                node.map(|node| node.pod_gateways.clone())
                    .unwrap_or_default()
            }
        };
        Some((probes, sources.iter().flat_map(addresses).collect()))
    }
}
