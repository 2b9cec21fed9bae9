//! The endpoints of a Service's port for a client.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::{AddressFamily, Endpoint};
use mesh_objects::model::{
    ExternalWorkload, GatewayIdentity, Name, PodRecord, RemoteService, Service, Slice,
    SliceEndpoint, SliceTarget, WorkloadRef,
};
use mesh_objects::store::{ChangeSet, Store};

use super::pod_endpoints::ZONE;
use super::settings::DestinationSettings;
use super::{external_endpoints, pod_endpoints};

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
    /// Whether the client is in another cluster, so that neither its node nor its zone decides.
    pub unfiltered: bool,
}

/// The key that selects the endpoints of a Service's port. Clients on most nodes of a zone have the
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
    family: Option<AddressFamily>,
    unfiltered: bool,
}

/// A snapshot of all endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    // Shared with earlier versions, so that the versions that streams have sent cost little.
    pub endpoints: BTreeMap<SocketAddr, Arc<ServiceEndpoint>>,
    /// The labels of the whole set.
    pub labels: BTreeMap<String, String>,
}

/// An endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEndpoint {
    pub endpoint: Endpoint,
    /// The pod that the EndpointSlice refers to.
    pub pod: Option<Name>,
}

/// The endpoints before a change. Endpoints that the change does not concern are reused.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) set: &'a EndpointSet,
    pub(super) changes: &'a ChangeSet,
}

/// An address of a slice, with its entry in the slice.
struct Candidate<'a> {
    addr: SocketAddr,
    source: &'a SliceEndpoint,
    target: Target<'a>,
    /// The Service of another cluster that the slice stands for.
    remote: Option<&'a RemoteService>,
}

/// What a slice's entry refers to.
#[derive(Clone, Copy)]
enum Target<'a> {
    Pod(&'a PodRecord),
    External(&'a ExternalWorkload),
    /// Only an address.
    Address,
}

impl Selection {
    pub(super) fn new(store: &Store, key: &EndpointsKey) -> Self {
        let EndpointsKey {
            service,
            port,
            hostname,
            node,
            family,
            unfiltered,
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
            family,
            unfiltered,
        }
    }
}

pub(super) fn endpoints(
    store: &Store,
    settings: &DestinationSettings,
    selection: &Selection,
    before: Option<Before<'_>>,
) -> EndpointSet {
    let endpoints = match store.service(&selection.service) {
        None => BTreeMap::new(),
        Some(service) => {
            let candidates = candidates(store, service, selection);
            let chosen = select_candidates(candidates, service, selection);
            let endpoint = |candidate: &Candidate<'_>| match before {
                Some(before) => before.endpoint(store, settings, candidate, selection),
                None => to_endpoint(store, settings, candidate, selection).map(Arc::new),
            };
            filter_families(chosen, settings.ipv6, selection.family)
                .iter()
                .filter_map(|candidate| Some((candidate.addr, endpoint(candidate)?)))
                .collect()
        }
    };
    EndpointSet {
        endpoints,
        labels: set_labels(store, &selection.service),
    }
}

impl Before<'_> {
    /// Returns the endpoint from before if it is still the same, else the new one.
    fn endpoint(
        &self,
        store: &Store,
        settings: &DestinationSettings,
        candidate: &Candidate<'_>,
        selection: &Selection,
    ) -> Option<Arc<ServiceEndpoint>> {
        let last = self.set.endpoints.get(&candidate.addr);
        if let Some(last) = last
            && self.is_current(last, candidate, selection)
        {
            return Some(last.clone());
        }
        let endpoint = to_endpoint(store, settings, candidate, selection)?;
        match last {
            Some(last) if **last == endpoint => Some(last.clone()),
            _ => Some(Arc::new(endpoint)),
        }
    }

    /// Whether an endpoint is the candidate's, and no object has changed it. The EndpointSlice may
    /// have changed the zones, so the labels with the zones are compared. Changes of pods do not
    /// affect Services of other namespaces.
    fn is_current(
        &self,
        last: &ServiceEndpoint,
        candidate: &Candidate<'_>,
        selection: &Selection,
    ) -> bool {
        let Some(pod) = candidate.target.pod() else {
            return false;
        };
        let labels = &last.endpoint.labels;
        last.pod.as_ref() == Some(&pod.name)
            && pod.name.namespace == selection.service.namespace
            && !self.changes.affects_endpoint_of(&pod.name)
            && labels.get(ZONE) == Some(candidate.source.zone.as_deref().unwrap_or_default())
            && labels.get(ZONE_LOCALITY) == Some(candidate.locality(selection))
    }
}

impl Candidate<'_> {
    /// Returns where the endpoint is from the client's point of view.
    fn locality(&self, selection: &Selection) -> &'static str {
        match (self.target, &selection.zone, &self.source.zone) {
            (Target::Address, ..) | (_, None, _) | (_, _, None) => "unknown",
            (_, Some(client), Some(endpoint)) if client == endpoint => "local",
            (_, Some(_), Some(_)) => "remote",
        }
    }
}

impl<'a> Target<'a> {
    /// Returns the object that a slice refers to, if it exists and can have a proxy.
    fn of(store: &'a Store, target: &SliceTarget) -> Option<Self> {
        match target {
            SliceTarget::Pod(name) => store.pod(name).map(Self::Pod),
            SliceTarget::External(name) => store.external_workload(name).map(Self::External),
            SliceTarget::None => Some(Self::Address),
            SliceTarget::Other => None,
        }
    }

    fn pod(self) -> Option<&'a PodRecord> {
        match self {
            Self::Pod(pod) => Some(pod),
            Self::External(_) | Self::Address => None,
        }
    }

    /// Returns the workload, whose addresses belong together.
    fn workload(self) -> Option<WorkloadRef> {
        match self {
            Self::Pod(pod) => Some(WorkloadRef::Pod(pod.name.clone())),
            Self::External(workload) => Some(WorkloadRef::External(workload.name.clone())),
            Self::Address => None,
        }
    }
}

/// Returns every address of the port that is ready, or serves until its pod is deleted.
fn candidates<'a>(
    store: &'a Store,
    service: &'a Service,
    selection: &'a Selection,
) -> Vec<Candidate<'a>> {
    let of_slice = |slice: &'a Slice| {
        let port = target_port(service, slice, selection.port);
        let serving = slice
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.ready || endpoint.serves_until_deleted);
        port.into_iter().flat_map(move |port| {
            serving.clone().flat_map(move |source| {
                let target = Target::of(store, &source.target);
                target.into_iter().flat_map(move |target| {
                    source.addresses.iter().map(move |ip| Candidate {
                        addr: SocketAddr::new(*ip, port),
                        source,
                        target,
                        remote: slice.remote.as_deref(),
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

/// Selects candidates by hostname, then by node, by readiness and by zone.
fn select_candidates<'a>(
    mut candidates: Vec<Candidate<'a>>,
    service: &Service,
    selection: &Selection,
) -> Vec<Candidate<'a>> {
    if selection.hostname.is_some() {
        candidates.retain(|candidate| candidate.source.hostname == selection.hostname);
    }
    let local_traffic = service.local_traffic && !selection.unfiltered;
    if local_traffic {
        candidates.retain(|candidate| {
            let node = candidate.target.pod().and_then(|pod| pod.node.as_ref());
            node.is_some() && node == selection.node.as_ref()
        });
    }
    // As kube-proxy does: pods that are being deleted are better than none, in a rollout of one pod
    // or when the last pod of a node leaves.
    if candidates.iter().any(|candidate| candidate.source.ready) {
        candidates.retain(|candidate| candidate.source.ready);
    }
    if local_traffic || selection.unfiltered {
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

/// Without IPv6, keeps IPv4 addresses only. With it, keeps only the addresses of the client's
/// family of a workload that has addresses of both families, of IPv6 if it is unknown. Endpoints
/// without a workload do not tell which addresses belong together: for a known family they count as
/// one.
fn filter_families(
    mut candidates: Vec<Candidate<'_>>,
    ipv6: bool,
    family: Option<AddressFamily>,
) -> Vec<Candidate<'_>> {
    if !ipv6 {
        candidates.retain(|candidate| candidate.addr.is_ipv4());
        return candidates;
    }
    let has_workload = |candidate: &Candidate<'_>| !matches!(candidate.target, Target::Address);
    let may_be_left_out = |candidate: &Candidate<'_>| family.is_some() || has_workload(candidate);
    let family = family.unwrap_or(AddressFamily::V6);
    let is_near = |candidate: &Candidate<'_>| AddressFamily::of(candidate.addr.ip()) == family;
    let workload = |candidate: &Candidate<'_>| candidate.target.workload();
    let near: HashSet<Option<WorkloadRef>> = candidates
        .iter()
        .filter(|candidate| is_near(candidate))
        .map(workload)
        .collect();
    candidates.retain(|candidate| {
        is_near(candidate) || !may_be_left_out(candidate) || !near.contains(&workload(candidate))
    });
    candidates
}

fn to_endpoint(
    store: &Store,
    settings: &DestinationSettings,
    candidate: &Candidate<'_>,
    selection: &Selection,
) -> Option<ServiceEndpoint> {
    let addr = candidate.addr;
    let zone = candidate.source.zone.as_deref();
    let mut endpoint = match candidate.target {
        Target::Pod(pod) => pod_endpoints::endpoint(store, settings, pod, addr, addr.port(), zone)?,
        Target::External(workload) => {
            external_endpoints::endpoint(store, settings, workload, addr, zone)?
        }
        Target::Address => match candidate.remote {
            Some(remote) => remote_endpoint(settings, remote, addr, selection.port)?,
            None => Endpoint::plain(addr),
        },
    };
    let locality = candidate.locality(selection);
    endpoint.labels = endpoint.labels.with(ZONE_LOCALITY, locality);
    if let Some(cluster) = &settings.cluster {
        let Name { namespace, name } = &selection.service;
        for (key, value) in remote_labels(cluster, namespace, name) {
            endpoint.labels = endpoint.labels.with(key, value);
        }
    }
    let pod = candidate.target.pod().map(|pod| pod.name.clone());
    Some(ServiceEndpoint { endpoint, pod })
}

/// Returns the endpoint that reaches a port of another cluster's Service: its gateway. `None` if
/// the gateway's identity is invalid, because clients would send plain text to it.
///
/// An identity without the hint of a transport port is Linkerd's form of a gateway's endpoint: the
/// proxy sends a transport header with the name to the address itself.
fn remote_endpoint(
    settings: &DestinationSettings,
    remote: &RemoteService,
    addr: SocketAddr,
    port: u16,
) -> Option<Endpoint> {
    let mut endpoint = Endpoint::plain(addr);
    endpoint.authority_override = Some(format!("{}:{port}", remote.fqn).into());
    match &remote.gateway {
        GatewayIdentity::None => {}
        GatewayIdentity::Peer(peer) => {
            endpoint.tls = Some(peer.clone());
            endpoint.http2 = settings.meshed_http2_params;
            endpoint.hint = settings.hint(false);
        }
        GatewayIdentity::Invalid => return None,
    }
    Some(endpoint)
}

/// Returns the labels for a Service of another cluster.
fn remote_labels<'a>(
    cluster: &'a str,
    namespace: &'a str,
    name: &'a str,
) -> [(&'static str, &'a str); 3] {
    [
        ("target_cluster", cluster),
        ("target_service", name),
        ("target_service_namespace", namespace),
    ]
}

/// Returns the labels of a Service's endpoints. The mirror of another cluster's Service has labels
/// for that one, too.
fn set_labels(store: &Store, service: &Name) -> BTreeMap<String, String> {
    let Name { namespace, name } = service;
    let mut labels = vec![("namespace", &**namespace), ("service", &**name)];
    let mut remotes = store
        .slices_of(service)
        .filter_map(|it| it.remote.as_deref());
    if let Some(remote) = remotes.find(|remote| remote.cluster.is_some())
        && let mut parts = remote.fqn.split('.')
        && let (Some(name), Some(namespace)) = (parts.next(), parts.next())
    {
        let cluster = remote.cluster.as_deref().unwrap_or_default();
        labels.extend(remote_labels(cluster, namespace, name));
    }
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    labels.into_iter().map(owned).collect()
}

/// The label with the locality of an endpoint.
const ZONE_LOCALITY: &str = "zone_locality";
