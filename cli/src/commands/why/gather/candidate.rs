//! Endpoints that are pods; the connection goes to one of them.

use std::net::SocketAddr;

use mesh_core::endpoint::Endpoint;
use mesh_core::labels::Labels;

use super::super::facts::Discovery;

/// An endpoint with the pod that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) address: SocketAddr,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Returns the endpoints that are pods.
pub(super) fn all(discovery: &Discovery) -> Vec<Candidate> {
    let endpoints = discovery.endpoints.as_ref();
    let endpoints = endpoints.map_or(&[][..], Vec::as_slice);
    let found = endpoints
        .iter()
        .filter_map(|endpoint: &Endpoint| of_labels(endpoint.addr, &endpoint.labels));
    found.collect()
}

pub(super) fn of_labels(address: SocketAddr, labels: &Labels) -> Option<Candidate> {
    Some(Candidate {
        address,
        namespace: labels.get("namespace")?.to_owned(),
        name: labels.get("pod")?.to_owned(),
    })
}
