//! Routes of three kinds, converted to one record.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{AnchoredRegex, HostMatch};
use mesh_k8s::kinds::{self, ObjectMeta, grpcroutes as grpc, httproutes as http_api};
use mesh_k8s::{crd, traffic_annotations};

use super::backend::backend_ref;
use super::parent::parent_ref;
use super::server_route::warn_of_ignored;
use super::{ConvertError, convert_all, created, filter, name};
use crate::model::{BackendRule, GrpcRoute, HttpRoute, Kind, ParentRef, Route, RouteId, Rule};

/// Converts a route. A macro, because the types of routes have the same fields, but no trait for
/// them.
macro_rules! convert_route {
    ($kind:ident, $route:expr, $rule:expr) => {{
        let (meta, spec) = (&$route.metadata, &$route.spec);
        let own = name(meta);
        let parents = spec.parent_refs.iter().flatten();
        let parents: Vec<ParentRef> = parents.map(|parent| parent_ref!(&own, parent)).collect();
        let (timeouts, retries) = if has_clients(&parents) {
            (
                traffic_annotations::timeouts(meta).map_err(ConvertError::of)?,
                traffic_annotations::retries(meta).map_err(ConvertError::of)?,
            )
        } else {
            (None, None)
        };
        let route = Route {
            created: created(meta),
            parents,
            hosts: spec
                .hostnames
                .iter()
                .flatten()
                .map(|host| host_match(host))
                .collect(),
            rules: convert_all("spec.rules", &spec.rules, |rule| $rule(meta, rule))?,
            timeouts,
            retries,
            id: RouteId {
                kind: Kind::$kind,
                name: own,
            },
        };
        warn_of_ignored(&route);
        Ok(route)
    }};
}

/// Converts a rule of a route, as [`convert_route`] does with the route.
macro_rules! convert_rule {
    ($rule:expr, $match:expr, $filters:expr, $timeouts:expr) => {{
        let (request_timeout, backend_timeout) = $timeouts;
        let (filters, mirrors) = filter::of_rule($filters, &$rule.filters)?;
        Ok(Rule {
            matches: convert_all("matches", &$rule.matches, $match)?,
            filters,
            mirrors,
            backends: $rule.backend_refs.as_ref().map(|backends| {
                let rules = backends.iter().map(|backend| BackendRule {
                    backend: backend_ref!(backend),
                    weight: weight(backend.weight),
                    filters: filter::of_backend($filters, &backend.filters),
                });
                rules.collect()
            }),
            request_timeout,
            backend_timeout,
        })
    }};
}

pub(crate) fn policy_http_route(route: &crd::PolicyHttpRoute) -> Result<HttpRoute, ConvertError> {
    convert_route!(PolicyHttpRoute, route, http_rule)
}

pub(crate) fn gateway_http_route(route: &kinds::HttpRoute) -> Result<HttpRoute, ConvertError> {
    convert_route!(GatewayHttpRoute, route, http_rule)
}

pub(crate) fn gateway_grpc_route(route: &kinds::GrpcRoute) -> Result<GrpcRoute, ConvertError> {
    convert_route!(GatewayGrpcRoute, route, grpc_rule)
}

/// Whether clients apply the route. Its annotations have no effect otherwise, and the webhook does
/// not review them.
fn has_clients(parents: &[ParentRef]) -> bool {
    parents.iter().any(|parent| parent.kind.has_clients())
}

pub(super) fn host_match(host: &str) -> HostMatch {
    match host.strip_prefix("*.") {
        Some(suffix) => HostMatch::Suffix(suffix.rsplit('.').map(Arc::from).collect()),
        None => HostMatch::Exact(host.into()),
    }
}

fn http_rule(
    route: &ObjectMeta,
    rule: &http_api::HttpRouteRules,
) -> Result<Rule<HttpMatch>, ConvertError> {
    let filters = filter::HTTP.with_faults(route);
    convert_rule!(rule, http_match, filters, timeouts(rule)?)
}

fn grpc_rule(
    route: &ObjectMeta,
    rule: &grpc::GrpcRouteRules,
) -> Result<Rule<GrpcMatch>, ConvertError> {
    let filters = filter::GRPC.with_faults(route);
    convert_rule!(rule, grpc_match, filters, (None, None))
}

/// Returns the timeouts of a request and of an attempt.
fn timeouts(
    rule: &http_api::HttpRouteRules,
) -> Result<(Option<Duration>, Option<Duration>), ConvertError> {
    let Some(timeouts) = &rule.timeouts else {
        return Ok((None, None));
    };
    let read = |field: &str, text: &Option<String>| match text {
        Some(text) => match crd::http_route::parse_duration(text) {
            // Zero means no timeout.
            Ok(timeout) => Ok((!timeout.is_zero()).then_some(timeout)),
            Err(problem) => Err(ConvertError::new(field, problem)),
        },
        None => Ok(None),
    };
    Ok((
        read("timeouts.request", &timeouts.request)?,
        read("timeouts.backendRequest", &timeouts.backend_request)?,
    ))
}

pub(super) fn weight(weight: Option<i32>) -> u32 {
    weight.map_or(1, |weight| u32::try_from(weight).unwrap_or(0))
}

fn http_match(entry: &http_api::HttpRouteRulesMatches) -> Result<HttpMatch, ConvertError> {
    use http_api::{
        HttpRouteRulesMatchesHeadersType as HeaderType,
        HttpRouteRulesMatchesQueryParamsType as QueryType,
    };
    Ok(HttpMatch {
        path: Some(match &entry.path {
            Some(path) => path_match(path).map_err(|error| error.inside("path"))?,
            None => PathMatch::Prefix("/".to_owned()),
        }),
        headers: convert_all("headers", &entry.headers, |header| {
            let exact = !matches!(header.r#type, Some(HeaderType::RegularExpression));
            header_match(&header.name, &header.value, exact)
        })?,
        query: convert_all("queryParams", &entry.query_params, |query| {
            Ok(QueryMatch {
                name: query.name.clone(),
                value: match query.r#type {
                    Some(QueryType::RegularExpression) => {
                        QueryValueMatch::Regex(regex("value", &query.value)?)
                    }
                    Some(QueryType::Exact) | None => QueryValueMatch::Exact(query.value.clone()),
                },
            })
        })?,
        method: entry.method.as_ref().map(method),
    })
}

fn path_match(path: &http_api::HttpRouteRulesMatchesPath) -> Result<PathMatch, ConvertError> {
    use http_api::HttpRouteRulesMatchesPathType as PathType;
    let value = path.value.clone().unwrap_or_else(|| "/".to_owned());
    let kind = path.r#type.as_ref().unwrap_or(&PathType::PathPrefix);
    match kind {
        PathType::RegularExpression => regex("value", &value).map(PathMatch::Regex),
        PathType::Exact | PathType::PathPrefix if !value.starts_with('/') => Err(
            ConvertError::new("value", format!("{value:?} does not start with '/'")),
        ),
        PathType::Exact => Ok(PathMatch::Exact(value)),
        PathType::PathPrefix => Ok(PathMatch::Prefix(value)),
    }
}

fn method(method: &http_api::HttpRouteRulesMatchesMethod) -> http::Method {
    use http_api::HttpRouteRulesMatchesMethod as Method;
    match method {
        Method::Get => http::Method::GET,
        Method::Head => http::Method::HEAD,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Delete => http::Method::DELETE,
        Method::Connect => http::Method::CONNECT,
        Method::Options => http::Method::OPTIONS,
        Method::Trace => http::Method::TRACE,
        Method::Patch => http::Method::PATCH,
    }
}

fn grpc_match(entry: &grpc::GrpcRouteRulesMatches) -> Result<GrpcMatch, ConvertError> {
    use grpc::{
        GrpcRouteRulesMatchesHeadersType as HeaderType,
        GrpcRouteRulesMatchesMethodType as MethodType,
    };
    let method = entry.method.as_ref();
    if let Some(MethodType::RegularExpression) = method.and_then(|method| method.r#type.as_ref()) {
        return Err(ConvertError::new(
            "method.type",
            "regular expressions for gRPC methods are not supported",
        ));
    }
    let text = |text: Option<&String>| {
        text.filter(|text| !text.is_empty())
            .map(|text| Arc::from(text.as_str()))
    };
    Ok(GrpcMatch {
        service: text(method.and_then(|method| method.service.as_ref())),
        method: text(method.and_then(|method| method.method.as_ref())),
        headers: convert_all("headers", &entry.headers, |header| {
            let exact = !matches!(header.r#type, Some(HeaderType::RegularExpression));
            header_match(&header.name, &header.value, exact)
        })?,
    })
}

fn header_match(name: &str, value: &str, exact: bool) -> Result<HeaderMatch, ConvertError> {
    Ok(HeaderMatch {
        name: name.parse().map_err(|_error| {
            ConvertError::new("name", format!("{name:?} is not a header name"))
        })?,
        value: if exact {
            HeaderValueMatch::Exact(value.parse().map_err(|_error| {
                ConvertError::new("value", format!("{value:?} is not a header value"))
            })?)
        } else {
            HeaderValueMatch::Regex(regex("value", value)?)
        },
    })
}

fn regex(field: &str, source: &str) -> Result<AnchoredRegex, ConvertError> {
    AnchoredRegex::new(source).map_err(|error| ConvertError::new(field, error))
}

#[cfg(test)]
mod tests;
