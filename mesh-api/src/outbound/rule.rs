//! HTTP and gRPC routes. The API defines the same messages (route, rule, retry) for both, so a
//! macro generates their conversions. They differ in matches, filters and conditions of retries.

use mesh_core::resilience::Timeouts;
use mesh_core::route::filter::{Filter, Proxies, RequestKind};
use prost_types::Duration;

use crate::field::{FieldContext, optional};
use crate::proto::http_route;
use crate::{InvalidField, value};

macro_rules! conversions {
    ($kind:ident, $requests:ident, $route:ident, $match:ident, $match_to_proto:ident) => {
        crate::outbound::distribution::conversions!(
            $kind,
            backend_filters,
            backend_filters_to_proto,
            ..wire::RouteBackend::default()
        );

        pub(super) fn route(wire: crate::proto::outbound::$route) -> Result<$route, InvalidField> {
            Ok(Route {
                meta: required("metadata", wire.metadata, meta)?,
                hosts: each("hosts", wire.hosts, route::host)?,
                rules: each("rules", wire.rules, |rule| {
                    #[expect(deprecated, reason = "older controllers set only this field")]
                    let deprecated = rule.request_timeout;
                    Ok(Rule {
                        matches: each("matches", rule.matches, route::$match)?,
                        action: OutboundRule {
                            filters: each("filters", rule.filters, filter)?,
                            backends: required("backends", rule.backends, distribution)?,
                            timeouts: rule::timeouts(rule.timeouts, deprecated)?,
                            retry: optional("retry", rule.retry, retry)?,
                            allow_request_headers: rule.allow_l5d_request_headers,
                        },
                    })
                })?,
            })
        }

        pub(super) fn route_to_proto(route: &$route) -> crate::proto::outbound::$route {
            #[expect(deprecated, reason = "older proxies read only this field")]
            let rules = route.rules.iter().map(|rule| {
                let (timeouts, request_timeout) = rule::timeouts_to_proto(rule.action.timeouts);
                wire::Rule {
                    matches: rule.matches.iter().map(route::$match_to_proto).collect(),
                    filters: filters_to_proto(&rule.action.filters),
                    backends: Some(distribution_to_proto(&rule.action.backends)),
                    request_timeout,
                    timeouts,
                    retry: rule.action.retry.as_ref().map(retry_to_proto),
                    allow_l5d_request_headers: rule.action.allow_request_headers,
                }
            });
            crate::proto::outbound::$route {
                metadata: Some(meta::to_proto(&route.meta)),
                hosts: route.hosts.iter().map(route::host_to_proto).collect(),
                rules: rules.collect(),
            }
        }

        fn backend_filters(
            wire: Vec<wire::Filter>,
        ) -> Result<(Vec<Filter>, TcpVerdict), InvalidField> {
            Ok((each("filters", wire, filter)?, TcpVerdict::Forward))
        }

        fn backend_filters_to_proto(filters: &[Filter], _: &TcpVerdict) -> Vec<wire::Filter> {
            filters_to_proto(filters)
        }

        fn filters_to_proto(filters: &[Filter]) -> Vec<wire::Filter> {
            match rule::replacement(filters, RequestKind::$requests) {
                Some(failure) => vec![filter_to_proto(&failure)],
                None => rule::standard(filters).map(filter_to_proto).collect(),
            }
        }

        fn retry(wire: wire::Retry) -> Result<Retry<Conditions>, InvalidField> {
            let conditions = wire
                .conditions
                .ok_or_else(|| InvalidField::missing("conditions"))?;
            Ok(Retry {
                max_retries: value::number_u16("max_retries", wire.max_retries)?,
                max_request_bytes: wire.max_request_bytes as usize,
                conditions: retry_conditions(conditions)?,
                timeout: optional("timeout", wire.timeout, value::duration)?,
                backoff: optional("backoff", wire.backoff, value::backoff)?,
            })
        }

        fn retry_to_proto(retry: &Retry<Conditions>) -> wire::Retry {
            wire::Retry {
                max_retries: retry.max_retries.into(),
                max_request_bytes: u32::try_from(retry.max_request_bytes).unwrap_or(u32::MAX),
                conditions: Some(retry_conditions_to_proto(&retry.conditions)),
                timeout: retry.timeout.map(value::duration_to_proto),
                backoff: retry.backoff.map(value::backoff_to_proto),
            }
        }
    };
}

pub(super) use conversions;

/// `deprecated` is the older field for the request's time limit, which is used if the newer one is
/// absent.
pub(super) fn timeouts(
    wire: Option<http_route::Timeouts>,
    deprecated: Option<Duration>,
) -> Result<Timeouts, InvalidField> {
    let wire = wire.unwrap_or_default();
    let read = || {
        Ok(Timeouts {
            request: optional("request", wire.request.or(deprecated), value::duration)?,
            response: optional("response", wire.response, value::duration)?,
            idle: optional("idle", wire.idle, value::duration)?,
        })
    };
    read().inside("timeouts")
}

pub(super) fn timeouts_to_proto(
    timeouts: Timeouts,
) -> (Option<http_route::Timeouts>, Option<Duration>) {
    let request = timeouts.request.map(value::duration_to_proto);
    let wire = http_route::Timeouts {
        request,
        response: timeouts.response.map(value::duration_to_proto),
        idle: timeouts.idle.map(value::duration_to_proto),
    };
    (Some(wire), request)
}

/// Returns the place and the type of the first filter that needs the extension, among the filters
/// `of` admits.
pub(super) fn first_beyond_linkerd(
    filters: &[Filter],
    requests: RequestKind,
    of: impl Fn(&Filter) -> bool,
) -> Option<(usize, &'static str)> {
    let mut filters = filters.iter().enumerate().filter(|(_, filter)| of(filter));
    filters.find_map(|(at, filter)| Some((at, filter.type_beyond_linkerd(requests)?)))
}

/// Returns the filters of the standard message. It lacks the ones that a proxy can do without.
pub(super) fn standard(filters: &[Filter]) -> impl Iterator<Item = &Filter> {
    filters.iter().filter(|filter| is_needed(filter))
}

fn is_needed(filter: &Filter) -> bool {
    filter.left_out(Proxies::Linkerd).is_none()
}

/// Returns the filter of the standard message that stands for `filters`, if one of them is needed
/// and has no message in the API.
pub(super) fn replacement(filters: &[Filter], requests: RequestKind) -> Option<Filter> {
    let (at, found) = first_beyond_linkerd(filters, requests, is_needed)?;
    let message = format!("filters[{at}].type: {found} is not supported by this proxy");
    Some(Filter::InternalError(message.into()))
}
