//! The endpoints of a Service's port for a client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::locality::Failover;
use mesh_objects::model::{GatewayIdentity, Name, RemoteService};
use mesh_objects::store::{ChangeSet, Store};

use super::candidates::{
    Candidate, Target, candidates, counts, filter_families, select_candidates, serves,
};
use super::placement::{Place, Places};
use super::pod_endpoints::ZONE;
use super::selection::{self, Selection};
use super::settings::DestinationSettings;
use super::{external_endpoints, pod_endpoints};

/// A snapshot of all endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    // Shared with earlier versions, so that the versions that streams have sent cost little.
    pub endpoints: BTreeMap<SocketAddr, Arc<ServiceEndpoint>>,
    /// The labels of the whole set.
    pub labels: BTreeMap<String, String>,
    /// The level of locality that the endpoints share with the client, or `all`; `None` without
    /// fail-over.
    pub level: Option<&'static str>,
    /// Where the endpoints are, and those that may become ready, if the key asks for it.
    pub(crate) places: Places,
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

pub(super) fn endpoints(
    store: &Store,
    settings: &DestinationSettings,
    selection: &Selection,
    before: Option<Before<'_>>,
) -> EndpointSet {
    let mut set = EndpointSet {
        labels: set_labels(store, &selection.service),
        ..EndpointSet::default()
    };
    let Some(service) = store.service(&selection.service) else {
        return set;
    };
    let endpoint = |candidate: &Candidate<'_>| match before {
        Some(before) => before.endpoint(store, settings, candidate, selection),
        None => to_endpoint(store, settings, candidate, selection).map(Arc::new),
    };
    let failover = selection::failover(service, selection.placed);
    let failover = failover.filter(|_| settings.cluster.is_none());
    if failover.is_some() || selection.placed {
        let all = candidates(store, settings, service, selection, |it| {
            serves(it) || counts(it)
        });
        let all = by_address(filter_families(all, settings.ipv6, selection.family));
        let counted = all.values().filter(|it| counts(it.source));
        let mut places = counted
            .map(|it| (it.addr, it.placed(store, settings, selection)))
            .collect();
        choose(
            &mut set,
            &mut places,
            failover,
            &selection.client(),
            &all,
            endpoint,
        );
        if selection.placed {
            set.places = places;
        }
        return set;
    }
    let serving = candidates(store, settings, service, selection, serves);
    let chosen = select_candidates(serving, settings, service, selection);
    set.endpoints = filter_families(chosen, settings.ipv6, selection.family)
        .iter()
        .filter_map(|candidate| Some((candidate.addr, endpoint(candidate)?)))
        .collect();
    set
}

/// While an endpoint moves from one slice to another, both have it.
fn by_address(candidates: Vec<Candidate<'_>>) -> BTreeMap<SocketAddr, Candidate<'_>> {
    let mut all: BTreeMap<SocketAddr, Candidate<'_>> = BTreeMap::new();
    for candidate in candidates {
        let known = all.get(&candidate.addr);
        if known.is_none_or(|known| candidate.source.ready && !known.source.ready) {
            all.insert(candidate.addr, candidate);
        }
    }
    all
}

/// Adds the endpoints that a client uses by their places: the ready ones, or as without fail-over
/// those that serve until their pod is deleted.
fn choose(
    set: &mut EndpointSet,
    places: &mut Places,
    failover: Option<&Failover>,
    client: &Place,
    all: &BTreeMap<SocketAddr, Candidate<'_>>,
    endpoint: impl Fn(&Candidate<'_>) -> Option<Arc<ServiceEndpoint>>,
) {
    loop {
        let chosen = places.choose(failover, client);
        let mut is_complete = true;
        for addr in chosen.used {
            if set.endpoints.contains_key(&addr) {
                continue;
            }
            match endpoint(&all[&addr]) {
                Some(endpoint) => {
                    set.endpoints.insert(addr, endpoint);
                }
                // Clients cannot use it, whatever Kubernetes says. With fewer ready endpoints the
                // level is the same or a further one, which has the endpoints of this one, too.
                None => {
                    places.set_not_ready(addr);
                    is_complete = false;
                }
            }
        }
        if is_complete {
            set.level = chosen.level;
            break;
        }
    }
    if set.endpoints.is_empty() {
        let serving = all.values().filter(|it| it.source.serves_until_deleted);
        set.endpoints = serving
            .filter_map(|candidate| Some((candidate.addr, endpoint(candidate)?)))
            .collect();
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
