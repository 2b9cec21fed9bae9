//! Outbound HTTP routes.

use mesh_core::policy::outbound::{HttpRoute, OutboundRule, TcpVerdict};
use mesh_core::resilience::HttpRetry;
use mesh_core::route::filter::Filter;
use mesh_core::route::{Route, Rule};

use super::rule;
use crate::field::{FieldContext, each, optional, required};
use crate::meta::{self, meta};
use crate::proto::http_route::{
    HttpFailureInjector, RequestHeaderModifier, ResponseHeaderModifier,
};
use crate::proto::outbound::http_route::filter::Kind;
use crate::proto::outbound::http_route::retry::Conditions;
use crate::proto::outbound::http_route::retry::conditions::StatusRange;
use crate::proto::outbound::http_route::{Filter as WireFilter, Retry};
use crate::proto::outbound::{self, ExponentialBackoff};
use crate::{InvalidField, route, value};

super::distribution::conversions!(
    http_route,
    backend_filters,
    backend_filters_to_proto,
    ..wire::RouteBackend::default()
);

pub(super) fn route(wire: outbound::HttpRoute) -> Result<HttpRoute, InvalidField> {
    Ok(Route {
        meta: required("metadata", wire.metadata, meta)?,
        hosts: each("hosts", wire.hosts, route::host)?,
        rules: each("rules", wire.rules, rule)?,
    })
}

pub(super) fn route_to_proto(route: &HttpRoute) -> outbound::HttpRoute {
    outbound::HttpRoute {
        metadata: Some(meta::to_proto(&route.meta)),
        hosts: route.hosts.iter().map(route::host_to_proto).collect(),
        rules: route.rules.iter().map(rule_to_proto).collect(),
    }
}

fn rule(
    wire: wire::Rule,
) -> Result<Rule<mesh_core::route::http::HttpMatch, OutboundRule<HttpRetry>>, InvalidField> {
    #[expect(deprecated, reason = "older controllers set only this field")]
    let deprecated = wire.request_timeout;
    Ok(Rule {
        matches: each("matches", wire.matches, route::http_match)?,
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
fn rule_to_proto(
    rule: &Rule<mesh_core::route::http::HttpMatch, OutboundRule<HttpRetry>>,
) -> wire::Rule {
    let (timeouts, request_timeout) = rule::timeouts_to_proto(rule.action.timeouts);
    wire::Rule {
        matches: rule
            .matches
            .iter()
            .map(route::http_match_to_proto)
            .collect(),
        filters: rule.action.filters.iter().map(filter_to_proto).collect(),
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
            route::http_failure(injector).inside("failure_injector")
        }
        Some(Kind::RequestHeaderModifier(modifier)) => {
            route::request_headers(modifier).inside("request_header_modifier")
        }
        Some(Kind::ResponseHeaderModifier(modifier)) => {
            route::response_headers(modifier).inside("response_header_modifier")
        }
        Some(Kind::Redirect(redirect)) => route::redirect(redirect)
            .map(Filter::Redirect)
            .inside("redirect"),
        None => Ok(route::unknown_filter()),
    }
}

fn filter_to_proto(filter: &Filter) -> WireFilter {
    let kind = match filter {
        Filter::RequestHeaders(modifier) => {
            Kind::RequestHeaderModifier(RequestHeaderModifier::from(route::Headers(modifier)))
        }
        Filter::ResponseHeaders(modifier) => {
            Kind::ResponseHeaderModifier(ResponseHeaderModifier::from(route::Headers(modifier)))
        }
        Filter::Redirect(redirect) => Kind::Redirect(route::redirect_to_proto(redirect)),
        other => Kind::FailureInjector(HttpFailureInjector::from(route::Failure(other))),
    };
    WireFilter { kind: Some(kind) }
}

fn backend_filters(wire: Vec<WireFilter>) -> Result<(Vec<Filter>, TcpVerdict), InvalidField> {
    Ok((each("filters", wire, filter)?, TcpVerdict::Forward))
}

fn backend_filters_to_proto(filters: &[Filter], _verdict: &TcpVerdict) -> Vec<WireFilter> {
    filters.iter().map(filter_to_proto).collect()
}

fn retry(wire: Retry) -> Result<HttpRetry, InvalidField> {
    let conditions = wire
        .conditions
        .ok_or_else(|| InvalidField::missing("conditions"))?;
    Ok(HttpRetry {
        max_retries: value::number_u16("max_retries", wire.max_retries)?,
        max_request_bytes: wire.max_request_bytes as usize,
        statuses: each(
            "conditions.status_ranges",
            conditions.status_ranges,
            |range| {
                let start = value::number_u16("start", range.start)?;
                let end = value::number_u16("end", range.end)?;
                if start > end {
                    return Err(InvalidField::not_a(
                        "status of at least the start of its range",
                        "end",
                        end,
                    ));
                }
                Ok(start..=end)
            },
        )?,
        timeout: optional("timeout", wire.timeout, value::duration)?,
        backoff: optional("backoff", wire.backoff, value::backoff)?,
    })
}

fn retry_to_proto(retry: &HttpRetry) -> Retry {
    let backoff: Option<ExponentialBackoff> = retry.backoff.map(value::backoff_to_proto);
    Retry {
        max_retries: retry.max_retries.into(),
        max_request_bytes: u32::try_from(retry.max_request_bytes).unwrap_or(u32::MAX),
        conditions: Some(Conditions {
            status_ranges: retry
                .statuses
                .iter()
                .map(|range| StatusRange {
                    start: (*range.start()).into(),
                    end: (*range.end()).into(),
                })
                .collect(),
        }),
        timeout: retry.timeout.map(value::duration_to_proto),
        backoff,
    }
}
