//! Routes of three kinds, converted to one record.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{AnchoredRegex, HostMatch};
use mesh_k8s::crd;
use mesh_k8s::kinds::{self, ObjectMeta, grpcroutes as grpc, httproutes as http_api};

use super::{ConvertError, annotations, created, filter, name, port_number};
use crate::model::{
    BackendKind, BackendRef, BackendRule, GrpcRoute, HttpRoute, Kind, Name, ParentKind, ParentRef,
    Route, RouteId, Rule,
};

pub(crate) fn policy_http_route(route: &crd::PolicyHttpRoute) -> Result<HttpRoute, ConvertError> {
    http_route(
        Kind::PolicyHttpRoute,
        &route.metadata,
        route.spec.parent_refs.as_deref().unwrap_or_default(),
        route.spec.hostnames.as_deref().unwrap_or_default(),
        route.spec.rules.as_deref().unwrap_or_default(),
    )
}

pub(crate) fn gateway_http_route(route: &kinds::HttpRoute) -> Result<HttpRoute, ConvertError> {
    http_route(
        Kind::GatewayHttpRoute,
        &route.metadata,
        route.spec.parent_refs.as_deref().unwrap_or_default(),
        route.spec.hostnames.as_deref().unwrap_or_default(),
        route.spec.rules.as_deref().unwrap_or_default(),
    )
}

fn http_route(
    kind: Kind,
    meta: &ObjectMeta,
    parents: &[http_api::HttpRouteParentRefs],
    hosts: &[String],
    rules: &[http_api::HttpRouteRules],
) -> Result<HttpRoute, ConvertError> {
    let own = name(meta);
    Ok(Route {
        created: created(meta),
        parents: parents
            .iter()
            .map(|parent| {
                parent_ref(
                    &own,
                    ParentFields {
                        group: parent.group.as_deref(),
                        kind: parent.kind.as_deref(),
                        namespace: parent.namespace.as_deref(),
                        name: &parent.name,
                        port: parent.port,
                        section: parent.section_name.is_some(),
                    },
                )
            })
            .collect(),
        hosts: hosts.iter().map(|host| host_match(host)).collect(),
        rules: convert_all("spec.rules", rules, http_rule)?,
        timeouts: annotations::timeouts(meta)?,
        retries: annotations::retries(meta)?,
        id: RouteId { kind, name: own },
    })
}

pub(crate) fn gateway_grpc_route(route: &kinds::GrpcRoute) -> Result<GrpcRoute, ConvertError> {
    let own = name(&route.metadata);
    let spec = &route.spec;
    Ok(Route {
        created: created(&route.metadata),
        parents: spec
            .parent_refs
            .iter()
            .flatten()
            .map(|parent| {
                parent_ref(
                    &own,
                    ParentFields {
                        group: parent.group.as_deref(),
                        kind: parent.kind.as_deref(),
                        namespace: parent.namespace.as_deref(),
                        name: &parent.name,
                        port: parent.port,
                        section: parent.section_name.is_some(),
                    },
                )
            })
            .collect(),
        hosts: spec
            .hostnames
            .iter()
            .flatten()
            .map(|host| host_match(host))
            .collect(),
        rules: convert_all(
            "spec.rules",
            spec.rules.as_deref().unwrap_or_default(),
            grpc_rule,
        )?,
        timeouts: annotations::timeouts(&route.metadata)?,
        retries: annotations::retries(&route.metadata)?,
        id: RouteId {
            kind: Kind::GatewayGrpcRoute,
            name: own,
        },
    })
}

/// The fields of a parent reference, which all kinds of routes share.
struct ParentFields<'a> {
    group: Option<&'a str>,
    kind: Option<&'a str>,
    namespace: Option<&'a str>,
    name: &'a str,
    port: Option<i32>,
    section: bool,
}

/// The default group of the Gateway API. A Service has the group "" or "core".
const DEFAULT_PARENT_GROUP: &str = "gateway.networking.k8s.io";

fn parent_ref(own: &Name, parent: ParentFields<'_>) -> ParentRef {
    let group = parent.group.unwrap_or(DEFAULT_PARENT_GROUP);
    let is_kind = |want: &str, kind: &str| {
        parent
            .kind
            .is_some_and(|have| have.eq_ignore_ascii_case(kind))
            && group.eq_ignore_ascii_case(want)
    };
    let kind = if is_kind(crd::GROUP, "Server") {
        ParentKind::Server
    } else if is_kind("", "Service") || is_kind("core", "Service") {
        ParentKind::Service
    } else {
        ParentKind::Other
    };
    ParentRef {
        kind,
        name: Name::new(parent.namespace.unwrap_or(&own.namespace), parent.name),
        port: parent.port.and_then(port_number),
        section: parent.section,
    }
}

fn host_match(host: &str) -> HostMatch {
    match host.strip_prefix("*.") {
        Some(suffix) => HostMatch::Suffix(suffix.rsplit('.').map(Arc::from).collect()),
        None => HostMatch::Exact(host.into()),
    }
}

fn http_rule(rule: &http_api::HttpRouteRules) -> Result<Rule<HttpMatch>, ConvertError> {
    let timeouts = rule.timeouts.as_ref();
    Ok(Rule {
        matches: convert_all(
            "matches",
            rule.matches.as_deref().unwrap_or_default(),
            http_match,
        )?,
        filters: filter::filters("filters", rule.filters.as_deref().unwrap_or_default())?,
        backends: rule.backend_refs.as_ref().map(|backends| {
            let rule = |backend: &http_api::HttpRouteRulesBackendRefs| {
                let filters = backend.filters.as_deref().unwrap_or_default();
                BackendRule {
                    backend: backend_ref(
                        backend.group.as_deref(),
                        backend.kind.as_deref(),
                        backend.namespace.as_deref(),
                        &backend.name,
                        backend.port,
                    ),
                    weight: weight(backend.weight),
                    filters: backend_filters(filter::filters("filters", filters)),
                }
            };
            backends.iter().map(rule).collect()
        }),
        request_timeout: match timeouts.and_then(|timeouts| timeouts.request.as_deref()) {
            Some(text) => gateway_duration(text)
                .map_err(|problem| ConvertError::new("timeouts.request", problem))?,
            None => None,
        },
    })
}

fn grpc_rule(rule: &grpc::GrpcRouteRules) -> Result<Rule<GrpcMatch>, ConvertError> {
    Ok(Rule {
        matches: convert_all(
            "matches",
            rule.matches.as_deref().unwrap_or_default(),
            grpc_match,
        )?,
        filters: filter::filters("filters", rule.filters.as_deref().unwrap_or_default())?,
        backends: rule.backend_refs.as_ref().map(|backends| {
            let rule = |backend: &grpc::GrpcRouteRulesBackendRefs| {
                let filters = backend.filters.as_deref().unwrap_or_default();
                BackendRule {
                    backend: backend_ref(
                        backend.group.as_deref(),
                        backend.kind.as_deref(),
                        backend.namespace.as_deref(),
                        &backend.name,
                        backend.port,
                    ),
                    weight: weight(backend.weight),
                    filters: backend_filters(filter::filters("filters", filters)),
                }
            };
            backends.iter().map(rule).collect()
        }),
        request_timeout: None,
    })
}

/// An unsupported filter makes its backend fail requests, not the whole route.
fn backend_filters(
    filters: Result<Vec<mesh_core::route::filter::Filter>, ConvertError>,
) -> Result<Vec<mesh_core::route::filter::Filter>, Arc<str>> {
    filters.map_err(|error| format!("unsupported backend filter: {error}").into())
}

fn weight(weight: Option<i32>) -> u32 {
    weight.map_or(1, |weight| u32::try_from(weight).unwrap_or(0))
}

fn backend_ref(
    group: Option<&str>,
    kind: Option<&str>,
    namespace: Option<&str>,
    name: &str,
    port: Option<i32>,
) -> BackendRef {
    let core = matches!(group, None | Some("" | "core"));
    let service = kind.is_none_or(|kind| kind.eq_ignore_ascii_case("Service"));
    BackendRef {
        kind: if core && service {
            BackendKind::Service
        } else {
            BackendKind::Other
        },
        namespace: namespace.map(Arc::from),
        name: name.into(),
        port: port.and_then(port_number),
    }
}

fn http_match(entry: &http_api::HttpRouteRulesMatches) -> Result<HttpMatch, ConvertError> {
    use http_api::{
        HttpRouteRulesMatchesHeadersType as HeaderType,
        HttpRouteRulesMatchesQueryParamsType as QueryType,
    };
    let headers = entry.headers.as_deref().unwrap_or_default();
    let query = entry.query_params.as_deref().unwrap_or_default();
    Ok(HttpMatch {
        path: Some(match &entry.path {
            Some(path) => path_match(path).map_err(|error| error.inside("path"))?,
            None => PathMatch::Prefix("/".to_owned()),
        }),
        headers: convert_all("headers", headers, |header| {
            let exact = !matches!(header.r#type, Some(HeaderType::RegularExpression));
            header_match(&header.name, &header.value, exact)
        })?,
        query: convert_all("queryParams", query, |query| {
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
    let headers = entry.headers.as_deref().unwrap_or_default();
    Ok(GrpcMatch {
        service: text(method.and_then(|method| method.service.as_ref())),
        method: text(method.and_then(|method| method.method.as_ref())),
        headers: convert_all("headers", headers, |header| {
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

/// Parses a duration of the Gateway API such as `1h30m` or `500ms`. Zero means no timeout.
fn gateway_duration(text: &str) -> Result<Option<Duration>, String> {
    let duration: gateway_api::Duration = text
        .parse()
        .map_err(|error| format!("{text:?} is not a duration: {error}"))?;
    let duration = Duration::new(duration.as_secs(), duration.subsec_nanos());
    Ok((!duration.is_zero()).then_some(duration))
}

fn convert_all<P, T>(
    field: &str,
    values: &[P],
    convert: impl Fn(&P) -> Result<T, ConvertError>,
) -> Result<Vec<T>, ConvertError> {
    let convert = |(at, value)| {
        convert(value).map_err(|error: ConvertError| error.inside(&format!("{field}[{at}]")))
    };
    values.iter().enumerate().map(convert).collect()
}

#[cfg(test)]
mod tests;
