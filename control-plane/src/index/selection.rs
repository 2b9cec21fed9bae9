//! Which clients have the same endpoints of a Service.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mesh_core::endpoint::AddressFamily;
use mesh_core::locality::Failover;
use mesh_objects::model::{Name, Service, SliceTarget};
use mesh_objects::store::Store;

use super::placement::Place;

/// A port of a Service and its client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsKey {
    pub service: Name,
    pub port: u16,
    /// Only the endpoint with this hostname, a pod of a StatefulSet.
    pub hostname: Option<Arc<str>>,
    /// The node of the client.
    pub node: Option<Arc<str>>,
    /// The family of the address that the client connects to.
    pub family: Option<AddressFamily>,
    /// Whether all endpoints are wanted, with the places of those that are not ready too, because
    /// the client chooses from several Services by locality.
    pub placed: bool,
}

/// The key that selects the endpoints of a Service's port. Clients on most nodes of a zone have the
/// same selection, and hence the same endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Selection {
    pub(super) service: Name,
    pub(super) port: u16,
    pub(super) hostname: Option<Arc<str>>,
    /// The node of the client, if only endpoints on it are selected, or if they are preferred and
    /// there are some.
    pub(super) node: Option<Arc<str>>,
    /// The zone of the client.
    pub(super) zone: Option<Arc<str>>,
    /// The region of the client, if endpoints in it are preferred.
    pub(super) region: Option<Arc<str>>,
    pub(super) family: Option<AddressFamily>,
    pub(super) placed: bool,
}

/// The nodes with pods of the Services whose clients prefer their own node. They are found once for
/// all clients that a change affects.
#[derive(Debug, Default)]
pub(super) struct NodesOfServices(HashMap<Name, HashSet<Arc<str>>>);

impl Selection {
    pub(super) fn new(store: &Store, key: &EndpointsKey, nodes: &mut NodesOfServices) -> Self {
        let EndpointsKey {
            service,
            port,
            hostname,
            node,
            family,
            placed,
        } = key.clone();
        let found = store.service(&service);
        let failover = found.and_then(|it| failover(it, placed));
        let client = Place::of_client(store, node.as_ref(), failover);
        let mut prefers_node = |node: &Arc<str>, of: &Service| {
            let prefers_same_node = !placed && of.failover.is_none() && of.prefers_same_node;
            (client.node.is_some() || prefers_same_node) && nodes.have(store, &service, node)
        };
        Self {
            node: node
                .filter(|node| found.is_some_and(|it| it.local_traffic || prefers_node(node, it))),
            zone: client.zone,
            region: client.region,
            service,
            port,
            hostname,
            family,
            placed,
        }
    }

    /// Returns the place of the client.
    pub(super) fn client(&self) -> Place {
        Place {
            node: self.node.clone(),
            zone: self.zone.clone(),
            region: self.region.clone(),
            in_other_cluster: false,
        }
    }
}

/// Returns the localities by which endpoints of a Service are chosen for its clients. A Service
/// whose traffic stays on the node has no others.
pub(super) fn failover(service: &Service, placed: bool) -> Option<&Failover> {
    let failover = service.failover.as_deref();
    failover.filter(|_| !placed && !service.local_traffic)
}

impl NodesOfServices {
    fn have(&mut self, store: &Store, service: &Name, node: &Arc<str>) -> bool {
        let of_service = || {
            let entries = store.slices_of(service).flat_map(|slice| &slice.endpoints);
            let pods = entries.filter_map(|entry| match &entry.target {
                SliceTarget::Pod(pod) => store.pod(pod),
                SliceTarget::External(_) | SliceTarget::None | SliceTarget::Other => None,
            });
            pods.filter_map(|pod| pod.node.clone()).collect()
        };
        let nodes = self.0.entry(service.clone()).or_insert_with(of_service);
        nodes.contains(node)
    }
}
