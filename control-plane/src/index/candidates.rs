//! The addresses of a Service's EndpointSlices that a client may use.

use std::collections::HashSet;
use std::net::SocketAddr;

use mesh_core::endpoint::AddressFamily;
use mesh_objects::model::{
    ExternalWorkload, PodRecord, RemoteService, Service, Slice, SliceEndpoint, SliceTarget,
    WorkloadRef,
};
use mesh_objects::store::Store;

use super::placement::{self, Place, PlacedEndpoint};
use super::selection::Selection;
use super::settings::DestinationSettings;

/// An address of a slice, with its entry in the slice.
pub(super) struct Candidate<'a> {
    pub(super) addr: SocketAddr,
    pub(super) source: &'a SliceEndpoint,
    pub(super) target: Target<'a>,
    /// The Service of another cluster that the slice stands for.
    pub(super) remote: Option<&'a RemoteService>,
}

/// What a slice's entry refers to.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Pod(&'a PodRecord),
    External(&'a ExternalWorkload),
    /// Only an address.
    Address,
}

impl Candidate<'_> {
    /// Returns where the endpoint is from the client's point of view.
    pub(super) fn locality(&self, selection: &Selection) -> &'static str {
        match (self.target, &selection.zone, &self.source.zone) {
            (Target::Address, ..) | (_, None, _) | (_, _, None) => "unknown",
            (_, Some(client), Some(endpoint)) if client == endpoint => "local",
            (_, Some(_), Some(_)) => "remote",
        }
    }

    /// Returns where the endpoint is, as far as it matters for the selection. The regions of a
    /// linked cluster's zones are not known here.
    pub(super) fn placed(
        &self,
        store: &Store,
        settings: &DestinationSettings,
        selection: &Selection,
    ) -> PlacedEndpoint {
        let in_other_cluster = settings.cluster.is_some() || self.remote.is_some();
        let node = self.target.pod().and_then(|pod| pod.node.as_ref());
        let node = node.filter(|_| !in_other_cluster);
        let zone = self.source.zone.as_ref();
        let has_region = selection.placed || selection.region.is_some();
        let region = || placement::region(store, node, zone);
        let place = Place {
            node: node.cloned(),
            zone: zone.cloned(),
            region: has_region.then(region).flatten(),
            in_other_cluster,
        };
        PlacedEndpoint {
            place,
            ready: self.source.ready,
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

    pub(super) fn pod(self) -> Option<&'a PodRecord> {
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

/// Whether an endpoint is ready, or serves until its pod is deleted.
pub(super) fn serves(endpoint: &SliceEndpoint) -> bool {
    endpoint.ready || endpoint.serves_until_deleted
}

/// Whether an endpoint counts in its locality: not if its pod is being deleted, as in a rollout.
pub(super) fn counts(endpoint: &SliceEndpoint) -> bool {
    endpoint.ready || !endpoint.terminating
}

/// Returns the addresses of the port whose entries are wanted: those with the hostname that the
/// client asks for, and of a Service with local traffic those on the client's node.
pub(super) fn candidates<'a>(
    store: &'a Store,
    settings: &DestinationSettings,
    service: &'a Service,
    selection: &Selection,
    is_wanted: fn(&SliceEndpoint) -> bool,
) -> Vec<Candidate<'a>> {
    let has_local_traffic = has_local_traffic(service, settings);
    let hostname = selection.hostname.as_ref();
    let is_eligible = |candidate: &Candidate<'_>| {
        let source = candidate.source;
        let node = candidate.target.pod().and_then(|pod| pod.node.as_ref());
        (hostname.is_none() || source.hostname.as_ref() == hostname)
            && (!has_local_traffic || node.is_some() && node == selection.node.as_ref())
    };
    let of_slice = |slice: &'a Slice| {
        let port = target_port(service, slice, selection.port);
        let wanted = slice.endpoints.iter().filter(move |it| is_wanted(it));
        port.into_iter().flat_map(move |port| {
            wanted.clone().flat_map(move |source| {
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
        .filter(is_eligible)
        .collect()
}

/// Whether only endpoints on the client's node are used. Clients of another cluster have no node.
fn has_local_traffic(service: &Service, settings: &DestinationSettings) -> bool {
    service.local_traffic && settings.cluster.is_none()
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

/// Selects candidates by readiness, and as Kubernetes by its traffic distribution: by node, and by
/// the hints of zones.
pub(super) fn select_candidates<'a>(
    mut candidates: Vec<Candidate<'a>>,
    settings: &DestinationSettings,
    service: &Service,
    selection: &Selection,
) -> Vec<Candidate<'a>> {
    // As kube-proxy does: pods that are being deleted are better than none, in a rollout of one pod
    // or when the last pod of a node leaves.
    if candidates.iter().any(|candidate| candidate.source.ready) {
        candidates.retain(|candidate| candidate.source.ready);
    }
    if has_local_traffic(service, settings) || settings.cluster.is_some() {
        return candidates;
    }
    if service.prefers_same_node && selection.node.is_some() {
        let is_near = |candidate: &Candidate<'_>| {
            let node = candidate.target.pod().and_then(|pod| pod.node.as_ref());
            node == selection.node.as_ref()
        };
        if candidates.iter().any(is_near) {
            candidates.retain(is_near);
            return candidates;
        }
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
pub(super) fn filter_families(
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
