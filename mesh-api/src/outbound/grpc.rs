//! Outbound gRPC routes.

use mesh_core::policy::outbound::{GrpcRoute, OutboundRule, TcpVerdict};
use mesh_core::resilience::GrpcRetry;
use mesh_core::route::filter::Filter;
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::{Route, Rule};

use super::rule;
use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::grpc_route::GrpcFailureInjector;
use crate::proto::http_route::RequestHeaderModifier;
use crate::proto::outbound;
use crate::proto::outbound::grpc_route::filter::Kind;
use crate::proto::outbound::grpc_route::retry::Conditions;
use crate::proto::outbound::grpc_route::{Filter as WireFilter, Retry};
use crate::{InvalidField, route, value};

super::distribution::conversions!(
    grpc_route,
    backend_filters,
    backend_filters_to_proto,
    ..wire::RouteBackend::default()
);

/// The status codes that the API supports as retry conditions.
const CANCELLED: u16 = 1;
const DEADLINE_EXCEEDED: u16 = 4;
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;

pub(super) fn route(wire: outbound::GrpcRoute) -> Result<GrpcRoute, InvalidField> {
    Ok(Route {
        meta: required("metadata", wire.metadata, meta)?,
        hosts: each("hosts", wire.hosts, route::host)?,
        rules: each("rules", wire.rules, rule)?,
    })
}

pub(super) fn route_to_proto(route: &GrpcRoute) -> outbound::GrpcRoute {
    outbound::GrpcRoute {
        metadata: Some(meta::to_proto(&route.meta)),
        hosts: route.hosts.iter().map(route::host_to_proto).collect(),
        rules: route.rules.iter().map(rule_to_proto).collect(),
    }
}

fn rule(wire: wire::Rule) -> Result<Rule<GrpcMatch, OutboundRule<GrpcRetry>>, InvalidField> {
    #[expect(deprecated, reason = "older controllers set only this field")]
    let deprecated = wire.request_timeout;
    Ok(Rule {
        matches: each("matches", wire.matches, route::grpc_match)?,
        action: OutboundRule {
            filters: each("filters", wire.filters, filter)?,
            backends: required("backends", wire.backends, distribution)?,
            timeouts: rule::timeouts(wire.timeouts, deprecated)?,
            retry: optional("retry", wire.retry, retry)?,
            allow_request_headers: wire.allow_l5d_request_headers,
        },
    })
}

#[expect(deprecated, reason = "older proxies read only this field")]
fn rule_to_proto(rule: &Rule<GrpcMatch, OutboundRule<GrpcRetry>>) -> wire::Rule {
    let (timeouts, request_timeout) = rule::timeouts_to_proto(rule.action.timeouts);
    wire::Rule {
        matches: rule
            .matches
            .iter()
            .map(route::grpc_match_to_proto)
            .collect(),
        filters: rule
            .action
            .filters
            .iter()
            .filter_map(filter_to_proto)
            .collect(),
        backends: Some(distribution_to_proto(&rule.action.backends)),
        request_timeout,
        timeouts,
        retry: rule.action.retry.as_ref().map(retry_to_proto),
        allow_l5d_request_headers: rule.action.allow_request_headers,
    }
}

fn filter(wire: WireFilter) -> Result<Filter, InvalidField> {
    match wire.kind {
        Some(Kind::FailureInjector(injector)) => {
            route::grpc_failure(injector).inside("failure_injector")
        }
        Some(Kind::RequestHeaderModifier(modifier)) => {
            route::request_headers(modifier).inside("request_header_modifier")
        }
        None => Ok(route::unknown_filter()),
    }
}

/// gRPC routes do not change responses.
fn filter_to_proto(filter: &Filter) -> Option<WireFilter> {
    let kind = match filter {
        Filter::ResponseHeaders(_) => return None,
        Filter::RequestHeaders(modifier) => {
            Kind::RequestHeaderModifier(RequestHeaderModifier::from(route::Headers(modifier)))
        }
        other => Kind::FailureInjector(GrpcFailureInjector::from(route::Failure(other))),
    };
    Some(WireFilter { kind: Some(kind) })
}

fn backend_filters(wire: Vec<WireFilter>) -> Result<(Vec<Filter>, TcpVerdict), InvalidField> {
    Ok((each("filters", wire, filter)?, TcpVerdict::Forward))
}

fn backend_filters_to_proto(filters: &[Filter], _verdict: &TcpVerdict) -> Vec<WireFilter> {
    filters.iter().filter_map(filter_to_proto).collect()
}

fn retry(wire: Retry) -> Result<GrpcRetry, InvalidField> {
    let conditions = wire
        .conditions
        .ok_or_else(|| InvalidField::missing("conditions"))?;
    let codes = [
        (conditions.cancelled, CANCELLED),
        (conditions.deadine_exceeded, DEADLINE_EXCEEDED),
        (conditions.resource_exhausted, RESOURCE_EXHAUSTED),
        (conditions.internal, INTERNAL),
        (conditions.unavailable, UNAVAILABLE),
    ];
    Ok(GrpcRetry {
        max_retries: value::number_u16("max_retries", wire.max_retries)?,
        max_request_bytes: wire.max_request_bytes as usize,
        codes: codes
            .into_iter()
            .filter_map(|(set, code)| set.then_some(code))
            .collect(),
        timeout: optional("timeout", wire.timeout, value::duration)?,
        backoff: optional("backoff", wire.backoff, value::backoff)?,
    })
}

/// Omits codes that the API does not support.
fn retry_to_proto(retry: &GrpcRetry) -> Retry {
    let retries = |code: u16| retry.codes.contains(&code);
    Retry {
        max_retries: retry.max_retries.into(),
        max_request_bytes: u32::try_from(retry.max_request_bytes).unwrap_or(u32::MAX),
        conditions: Some(Conditions {
            cancelled: retries(CANCELLED),
            deadine_exceeded: retries(DEADLINE_EXCEEDED),
            resource_exhausted: retries(RESOURCE_EXHAUSTED),
            internal: retries(INTERNAL),
            unavailable: retries(UNAVAILABLE),
        }),
        timeout: retry.timeout.map(value::duration_to_proto),
        backoff: retry.backoff.map(value::backoff_to_proto),
    }
}
