//! The status of policies: whether they have an effect.

use mesh_core::route::filter::RequestKind;
use mesh_objects::model::{EgressNetwork, Name, ReportedObject, ReportedTarget};
use mesh_objects::policy::attachment::requests_of_server;
use mesh_objects::policy::rate_limit::rate_limit_of_server;

use super::condition::{ACCEPTED, Condition};
use super::objects::{StatusObjects, parents};
use super::route::UNSUPPORTED_VALUE;

const NO_MATCHING_TARGET: &str = "NoMatchingTarget";
const ALREADY_EXISTS: &str = "RateLimitReasonAlreadyExists";
const NETWORK_OVERLAP: &str = "EgressReasonNetworkOverlap";

/// Returns whether a rate limit applies: the oldest of a Server does.
pub(super) fn rate_limit(
    objects: &StatusObjects,
    object: &ReportedObject,
    target: &ReportedTarget,
) -> Condition {
    let refuse = |reason, message| Condition::negative(ACCEPTED, reason, message);
    let name = Name {
        namespace: object.name.namespace.clone(),
        name: target.name.clone(),
    };
    let server = objects.servers.get(&name);
    let Some(server) = server.filter(|_| target.is_server()) else {
        let kind = &target.kind;
        let message = format!("there is no {kind} {name}; expected a Server of the same namespace");
        return refuse(NO_MATCHING_TARGET, message);
    };
    if let Some(problem) = &object.problem {
        return refuse(UNSUPPORTED_VALUE, problem.to_string());
    }
    let routes = objects.reported.values();
    let usable = routes.filter(|route| route.problem.is_none());
    let requests = requests_of_server(server, usable.filter_map(|route| parents(route)));
    if requests != Some(RequestKind::Http) {
        let protocol = server.protocol;
        let message = format!(
            "Server {name} has proxyProtocol {protocol}, to which rate limits do not apply"
        );
        return refuse(NO_MATCHING_TARGET, message);
    }
    let limits = objects.reported.values().map(|object| &**object);
    match rate_limit_of_server(server, limits) {
        Some(first) if first.name != object.name => {
            let message = format!(
                "HTTPLocalRateLimitPolicy {} is older and limits the same Server; merge the two",
                first.name
            );
            refuse(ALREADY_EXISTS, message)
        }
        _ => Condition::positive(ACCEPTED),
    }
}

/// Returns whether an EgressNetwork applies to clients.
pub(super) fn egress_network(
    objects: &StatusObjects,
    object: &ReportedObject,
    network: Option<&EgressNetwork>,
) -> Condition {
    let refuse = |reason, message| Condition::negative(ACCEPTED, reason, message);
    let Some(network) = network else {
        let problem = object.problem.as_deref().unwrap_or_default();
        return refuse(UNSUPPORTED_VALUE, problem.to_owned());
    };
    match network.overlap(&objects.cluster_networks) {
        Some((network, cluster)) => {
            let message = format!(
                "{network} overlaps the cluster network {cluster}; except that, or use a block outside"
            );
            refuse(NETWORK_OVERLAP, message)
        }
        None => Condition::positive(ACCEPTED),
    }
}
