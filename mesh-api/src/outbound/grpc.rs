//! Outbound gRPC routes.

use mesh_core::policy::outbound::{GrpcRoute, OutboundRule, TcpVerdict};
use mesh_core::resilience::Retry;
use mesh_core::route::filter::{Filter, RequestKind};
use mesh_core::route::{Route, Rule};

use super::rule;
use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::outbound::grpc_route::retry;
use crate::{InvalidField, route, value};

/// The status codes that the API supports as retry conditions.
const CANCELLED: u16 = 1;
const DEADLINE_EXCEEDED: u16 = 4;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;

rule::conversions!(grpc_route, Grpc, GrpcRoute, grpc_match, grpc_match_to_proto);
route::filter_conversions!(outbound::grpc_route, grpc_failure, grpc_failure_to_proto);

/// The status codes that are retried.
type Conditions = Vec<u16>;

fn retry_conditions(wire: retry::Conditions) -> Result<Conditions, InvalidField> {
    let codes = [
        (wire.cancelled, CANCELLED),
        (wire.deadine_exceeded, DEADLINE_EXCEEDED),
        (wire.resource_exhausted, RESOURCE_EXHAUSTED),
        (wire.internal, INTERNAL),
        (wire.unavailable, UNAVAILABLE),
    ];
    let retried = codes.into_iter().filter(|(set, _)| *set);
    Ok(retried.map(|(_, code)| code).collect())
}

/// Omits codes that the API does not support.
fn retry_conditions_to_proto(codes: &Conditions) -> retry::Conditions {
    let retries = |code: u16| codes.contains(&code);
    retry::Conditions {
        cancelled: retries(CANCELLED),
        deadine_exceeded: retries(DEADLINE_EXCEEDED),
        resource_exhausted: retries(RESOURCE_EXHAUSTED),
        internal: retries(INTERNAL),
        unavailable: retries(UNAVAILABLE),
    }
}
