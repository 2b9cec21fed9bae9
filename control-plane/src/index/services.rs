//! The endpoints of a Service's port for a client.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;

use super::pod_endpoints;
use super::settings::DestinationSettings;
use super::store::Store;
use crate::model::{Name, PodRecord, Service, Slice, SliceEndpoint, SliceTarget};

/// A port of a Service and its client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsKey {
    pub service: Name,
    pub port: u16,
    /// Only the endpoint with this hostname, a pod of a StatefulSet.
    pub hostname: Option<Arc<str>>,
    /// The node of the client.
    pub node: Option<Arc<str>>,
}

/// What the endpoints of a Service's port are selected by. Clients on most nodes of a zone have the
/// same selection, and hence the same endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Selection {
    pub(super) service: Name,
    port: u16,
    hostname: Option<Arc<str>>,
    /// The zone of the client.
    zone: Option<Arc<str>>,
    /// The node of the client, if only endpoints on it are selected.
    node: Option<Arc<str>>,
}

/// A snapshot of all endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    pub endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// The labels of the whole set.
    pub labels: BTreeMap<String, String>,
}

/// An address of a slice, with the objects by which it is selected.
struct Candidate<'a> {
    addr: SocketAddr,
    source: &'a SliceEndpoint,
    pod: Option<&'a PodRecord>,
}

impl Selection {
    pub(super) fn new(store: &Store, key: &EndpointsKey) -> Self {
        let EndpointsKey {
            service,
            port,
            hostname,
            node,
        } = key.clone();
        let local = store
            .service(&service)
            .is_some_and(|service| service.local_traffic);
        let zone = node.as_deref().and_then(|node| store.zone_of_node(node));
        Self {
            service,
            port,
            hostname,
            zone: zone.cloned(),
            node: node.filter(|_| local),
        }
    }
}

pub(super) fn endpoints(
    store: &Store,
    settings: &DestinationSettings,
    selection: &Selection,
) -> EndpointSet {
    let Name { namespace, name } = &selection.service;
    let labels = [("namespace", namespace), ("service", name)];
    let endpoints = match store.service(&selection.service) {
        None => BTreeMap::new(),
        Some(service) => {
            let candidates = candidates(store, service, selection);
            let chosen = select_candidates(candidates, service, selection);
            filter_families(chosen, settings.ipv6)
                .into_iter()
                .filter_map(|candidate| {
                    to_endpoint(store, settings, &candidate, selection.zone.as_ref())
                })
                .map(|endpoint| (endpoint.addr, endpoint))
                .collect()
        }
    };
    EndpointSet {
        endpoints,
        labels: labels
            .map(|(key, value)| (key.to_owned(), value.to_string()))
            .into(),
    }
}

/// Returns every ready address of the port.
fn candidates<'a>(
    store: &'a Store,
    service: &'a Service,
    selection: &'a Selection,
) -> Vec<Candidate<'a>> {
    let of_slice = |slice: &'a Slice| {
        let port = target_port(service, slice, selection.port);
        let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
        port.into_iter().flat_map(move |port| {
            ready.clone().flat_map(move |source| {
                let pod = match &source.target {
                    SliceTarget::Pod(name) => store.pod(name).map(Some),
                    SliceTarget::None => Some(None),
                    SliceTarget::Other => None,
                };
                pod.into_iter().flat_map(move |pod| {
                    source.addresses.iter().map(move |ip| Candidate {
                        addr: SocketAddr::new(*ip, port),
                        source,
                        pod,
                    })
                })
            })
        })
    };
    store
        .slices_of(&selection.service)
        .flat_map(of_slice)
        .collect()
}

/// Maps the number of the Service's port by its name to the port of the slice. A port that the
/// Service does not define is not mapped.
fn target_port(service: &Service, slice: &Slice, port: u16) -> Option<u16> {
    if slice.ports.is_empty() {
        return None;
    }
    match service.ports.iter().find(|entry| entry.number == port) {
        None => Some(port),
        Some(service_port) => slice
            .ports
            .iter()
            .find(|slice_port| slice_port.name == service_port.name)
            .and_then(|slice_port| slice_port.number),
    }
}

/// Selects candidates by hostname, then by node or zone.
fn select_candidates<'a>(
    mut candidates: Vec<Candidate<'a>>,
    service: &Service,
    selection: &Selection,
) -> Vec<Candidate<'a>> {
    if selection.hostname.is_some() {
        candidates.retain(|candidate| candidate.source.hostname == selection.hostname);
    }
    if service.local_traffic {
        candidates.retain(|candidate| {
            let node = candidate.pod.and_then(|pod| pod.node.as_ref());
            node.is_some() && node == selection.node.as_ref()
        });
        return candidates;
    }
    // Hints only apply if all addresses have them; otherwise Kubernetes could not balance the
    // zones.
    let has_hints = |candidate: &Candidate<'_>| !candidate.source.zone_hints.is_empty();
    if !candidates.iter().all(has_hints) {
        return candidates;
    }
    let is_near = |candidate: &Candidate<'_>| {
        candidate
            .source
            .zone_hints
            .iter()
            .any(|hint| Some(hint) == selection.zone.as_ref())
    };
    if candidates.iter().any(is_near) {
        candidates.retain(is_near);
    }
    candidates
}

/// Without IPv6, keeps IPv4 addresses only. With it, keeps only the IPv6 addresses of a pod that
/// has addresses of both families.
fn filter_families(mut candidates: Vec<Candidate<'_>>, ipv6: bool) -> Vec<Candidate<'_>> {
    if !ipv6 {
        candidates.retain(|candidate| candidate.addr.is_ipv4());
        return candidates;
    }
    let with_ipv6: HashSet<Name> = candidates
        .iter()
        .filter(|candidate| matches!(candidate.addr.ip(), IpAddr::V6(_)))
        .filter_map(|candidate| candidate.pod.map(|pod| pod.name.clone()))
        .collect();
    candidates.retain(|candidate| {
        candidate.addr.is_ipv6()
            || candidate
                .pod
                .is_none_or(|pod| !with_ipv6.contains(&pod.name))
    });
    candidates
}

fn to_endpoint(
    store: &Store,
    settings: &DestinationSettings,
    candidate: &Candidate<'_>,
    client_zone: Option<&Arc<str>>,
) -> Option<Endpoint> {
    let addr = candidate.addr;
    let zone = candidate.source.zone.as_ref();
    let (mut endpoint, locality) = match candidate.pod {
        Some(pod) => (
            pod_endpoints::endpoint(
                store,
                settings,
                pod,
                addr,
                addr.port(),
                zone.map(Arc::as_ref),
            )?,
            locality(client_zone, zone),
        ),
        None => (Endpoint::plain(addr), "unknown"),
    };
    endpoint.labels = endpoint.labels.with("zone_locality", locality);
    Some(endpoint)
}

fn locality(client: Option<&Arc<str>>, endpoint: Option<&Arc<str>>) -> &'static str {
    match (client, endpoint) {
        (Some(client), Some(endpoint)) if client == endpoint => "local",
        (Some(_), Some(_)) => "remote",
        _ => "unknown",
    }
}
