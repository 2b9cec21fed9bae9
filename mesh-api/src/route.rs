//! The parts of routes that inbound and outbound messages share: hosts and matches; filters are in
//! [`filter`].

use http::{HeaderName, HeaderValue};
use mesh_core::route::grpc::GrpcMatch;
use mesh_core::route::http::{
    HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch, QueryMatch, QueryValueMatch,
};
use mesh_core::route::{AnchoredRegex, HostMatch};

use crate::InvalidField;
use crate::field::{each, optional};
use crate::proto::grpc_route::{GrpcRouteMatch, GrpcRpcMatch};
use crate::proto::http_route::{
    self, HttpRouteMatch, QueryParamMatch, header_match, host_match, path_match, query_param_match,
};

mod filter;

pub(crate) use self::filter::{
    filter_conversions, grpc_failure, grpc_failure_to_proto, http_failure, http_failure_to_proto,
    redirect, redirect_to_proto, request_headers, request_headers_to_proto, response_headers,
    response_headers_to_proto, unknown_filter,
};

pub(crate) fn host(wire: http_route::HostMatch) -> Result<HostMatch, InvalidField> {
    match wire.r#match {
        Some(host_match::Match::Exact(name)) => Ok(HostMatch::Exact(name.into())),
        Some(host_match::Match::Suffix(suffix)) => Ok(HostMatch::Suffix(
            suffix.reverse_labels.into_iter().map(Into::into).collect(),
        )),
        None => Err(InvalidField::unknown_kind("match")),
    }
}

pub(crate) fn host_to_proto(host: &HostMatch) -> http_route::HostMatch {
    let host = match host {
        HostMatch::Exact(name) => host_match::Match::Exact(name.to_string()),
        HostMatch::Suffix(labels) => host_match::Match::Suffix(host_match::Suffix {
            reverse_labels: labels.iter().map(ToString::to_string).collect(),
        }),
    };
    http_route::HostMatch {
        r#match: Some(host),
    }
}

fn regex(field: &str, source: &str) -> Result<AnchoredRegex, InvalidField> {
    AnchoredRegex::new(source)
        .map_err(|_error| InvalidField::not_a("regular expression", field, source))
}

pub(crate) fn http_match(wire: HttpRouteMatch) -> Result<HttpMatch, InvalidField> {
    Ok(HttpMatch {
        path: optional("path", wire.path, path)?,
        headers: each("headers", wire.headers, header)?,
        query: each("query_params", wire.query_params, query)?,
        method: optional("method", wire.method, method)?,
    })
}

pub(crate) fn http_match_to_proto(entry: &HttpMatch) -> HttpRouteMatch {
    HttpRouteMatch {
        path: entry.path.as_ref().map(path_to_proto),
        headers: entry.headers.iter().map(header_to_proto).collect(),
        query_params: entry.query.iter().map(query_to_proto).collect(),
        method: entry.method.clone().map(Into::into),
    }
}

pub(crate) fn method(
    wire: crate::proto::http_types::HttpMethod,
) -> Result<http::Method, InvalidField> {
    http::Method::try_from(wire.clone())
        .map_err(|_error| InvalidField::not_a("HTTP method", "", wire.r#type))
}

fn path(wire: http_route::PathMatch) -> Result<PathMatch, InvalidField> {
    match wire.kind {
        Some(path_match::Kind::Exact(path)) => Ok(PathMatch::Exact(path)),
        Some(path_match::Kind::Prefix(path)) => Ok(PathMatch::Prefix(path)),
        Some(path_match::Kind::Regex(source)) => regex("regex", &source).map(PathMatch::Regex),
        None => Err(InvalidField::unknown_kind("kind")),
    }
}

fn path_to_proto(path: &PathMatch) -> http_route::PathMatch {
    let kind = match path {
        PathMatch::Exact(path) => path_match::Kind::Exact(path.clone()),
        PathMatch::Prefix(path) => path_match::Kind::Prefix(path.clone()),
        PathMatch::Regex(regex) => path_match::Kind::Regex(regex.as_str().to_owned()),
    };
    http_route::PathMatch { kind: Some(kind) }
}

pub(crate) fn header(wire: http_route::HeaderMatch) -> Result<HeaderMatch, InvalidField> {
    let name = header_name("name", &wire.name)?;
    let value = match wire.value {
        Some(header_match::Value::Exact(bytes)) => {
            HeaderValueMatch::Exact(header_value("exact", &bytes)?)
        }
        Some(header_match::Value::Regex(source)) => {
            HeaderValueMatch::Regex(regex("regex", &source)?)
        }
        None => return Err(InvalidField::unknown_kind("value")),
    };
    Ok(HeaderMatch { name, value })
}

pub(crate) fn header_to_proto(entry: &HeaderMatch) -> http_route::HeaderMatch {
    let value = match &entry.value {
        HeaderValueMatch::Exact(value) => header_match::Value::Exact(value.as_bytes().to_vec()),
        HeaderValueMatch::Regex(regex) => header_match::Value::Regex(regex.as_str().to_owned()),
    };
    http_route::HeaderMatch {
        name: entry.name.to_string(),
        value: Some(value),
    }
}

fn query(wire: QueryParamMatch) -> Result<QueryMatch, InvalidField> {
    let value = match wire.value {
        Some(query_param_match::Value::Exact(value)) => QueryValueMatch::Exact(value),
        Some(query_param_match::Value::Regex(source)) => {
            QueryValueMatch::Regex(regex("regex", &source)?)
        }
        None => return Err(InvalidField::unknown_kind("value")),
    };
    Ok(QueryMatch {
        name: wire.name,
        value,
    })
}

fn query_to_proto(entry: &QueryMatch) -> QueryParamMatch {
    let value = match &entry.value {
        QueryValueMatch::Exact(value) => query_param_match::Value::Exact(value.clone()),
        QueryValueMatch::Regex(regex) => query_param_match::Value::Regex(regex.as_str().to_owned()),
    };
    QueryParamMatch {
        name: entry.name.clone(),
        value: Some(value),
    }
}

pub(crate) fn grpc_match(wire: GrpcRouteMatch) -> Result<GrpcMatch, InvalidField> {
    let rpc = wire.rpc.unwrap_or_default();
    let name = |text: String| (!text.is_empty()).then(|| text.into());
    Ok(GrpcMatch {
        service: name(rpc.service),
        method: name(rpc.method),
        headers: each("headers", wire.headers, header)?,
    })
}

pub(crate) fn grpc_match_to_proto(entry: &GrpcMatch) -> GrpcRouteMatch {
    GrpcRouteMatch {
        rpc: Some(GrpcRpcMatch {
            service: entry.service.as_deref().unwrap_or_default().to_owned(),
            method: entry.method.as_deref().unwrap_or_default().to_owned(),
        }),
        headers: entry.headers.iter().map(header_to_proto).collect(),
    }
}

pub(crate) fn header_name(field: &str, name: &str) -> Result<HeaderName, InvalidField> {
    name.parse()
        .map_err(|_error| InvalidField::not_a("header name", field, name))
}

pub(crate) fn header_value(field: &str, bytes: &[u8]) -> Result<HeaderValue, InvalidField> {
    HeaderValue::from_bytes(bytes).map_err(|_error| {
        InvalidField::not_a("header value", field, String::from_utf8_lossy(bytes))
    })
}
