//! Filters of routes.
//!
//! The Gateway API's types have a type of their own for every place where a filter may stand, all
//! of one JSON shape. They are read through that shape once, instead of four times.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode, uri::Scheme};
use mesh_core::route::filter::{Filter, HeaderModifier, PathModifier, Redirect};
use serde::{Deserialize, Serialize};

use super::{ConvertError, port_number};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyFilter {
    r#type: String,
    request_header_modifier: Option<Headers>,
    response_header_modifier: Option<Headers>,
    request_redirect: Option<AnyRedirect>,
}

#[derive(Deserialize)]
struct Headers {
    #[serde(default)]
    add: Vec<Pair>,
    #[serde(default)]
    set: Vec<Pair>,
    #[serde(default)]
    remove: Vec<String>,
}

#[derive(Deserialize)]
struct Pair {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyRedirect {
    scheme: Option<String>,
    hostname: Option<String>,
    port: Option<i32>,
    path: Option<AnyPath>,
    status_code: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyPath {
    replace_full_path: Option<String>,
    replace_prefix_match: Option<String>,
}

/// The Gateway API's default, which its CRD would fill in.
const DEFAULT_REDIRECT_STATUS: StatusCode = StatusCode::FOUND;

/// A filter that the mesh does not apply makes the list unusable: to leave it out would let
/// requests through as nobody asked.
pub(super) fn filters<F: Serialize>(
    field: &str,
    filters: &[F],
) -> Result<Vec<Filter>, ConvertError> {
    let convert = |(at, filter)| {
        read(filter)
            .and_then(convert)
            .map_err(|error| error.inside(&format!("{field}[{at}]")))
    };
    filters.iter().enumerate().map(convert).collect()
}

fn read<F: Serialize>(filter: &F) -> Result<AnyFilter, ConvertError> {
    serde_json::to_value(filter)
        .and_then(serde_json::from_value)
        .map_err(|error| ConvertError::new("type", error))
}

fn convert(filter: AnyFilter) -> Result<Filter, ConvertError> {
    let missing = |field: &str| ConvertError::new(field, "is missing, but the type asks for it");
    match filter.r#type.as_str() {
        "RequestHeaderModifier" => {
            let field = "requestHeaderModifier";
            let headers = filter
                .request_header_modifier
                .ok_or_else(|| missing(field))?;
            header_modifier(headers)
                .map(Filter::RequestHeaders)
                .map_err(|error| error.inside(field))
        }
        "ResponseHeaderModifier" => {
            let field = "responseHeaderModifier";
            let headers = filter
                .response_header_modifier
                .ok_or_else(|| missing(field))?;
            header_modifier(headers)
                .map(Filter::ResponseHeaders)
                .map_err(|error| error.inside(field))
        }
        "RequestRedirect" => {
            let field = "requestRedirect";
            let target = filter.request_redirect.ok_or_else(|| missing(field))?;
            redirect(target)
                .map(Filter::Redirect)
                .map_err(|error| error.inside(field))
        }
        other => Err(ConvertError::new(
            "type",
            format!("{other} is not supported"),
        )),
    }
}

fn header_modifier(headers: Headers) -> Result<HeaderModifier, ConvertError> {
    let name = |text: &str| -> Result<HeaderName, ConvertError> {
        text.parse()
            .map_err(|_error| ConvertError::new("name", format!("{text:?} is no header name")))
    };
    let pairs = |pairs: Vec<Pair>| {
        let pair = |pair: Pair| {
            let value: HeaderValue = pair.value.parse().map_err(|_error| {
                ConvertError::new("value", format!("{:?} is no header value", pair.value))
            })?;
            Ok((name(&pair.name)?, value))
        };
        pairs
            .into_iter()
            .map(pair)
            .collect::<Result<Vec<_>, ConvertError>>()
    };
    let remove = headers
        .remove
        .iter()
        .map(|text| name(text))
        .collect::<Result<Vec<_>, _>>();
    Ok(HeaderModifier {
        add: pairs(headers.add).map_err(|error| error.inside("add"))?,
        set: pairs(headers.set).map_err(|error| error.inside("set"))?,
        remove: remove.map_err(|error| error.inside("remove"))?,
    })
}

fn redirect(redirect: AnyRedirect) -> Result<Redirect, ConvertError> {
    let scheme = redirect.scheme.map(|text| {
        text.parse::<Scheme>()
            .map_err(|_error| ConvertError::new("scheme", format!("{text:?} is no URI scheme")))
    });
    let status = redirect.status_code.map(|code| {
        StatusCode::from_u16(code)
            .ok()
            .filter(StatusCode::is_redirection)
            .ok_or_else(|| ConvertError::new("statusCode", format!("{code} is no redirect")))
    });
    Ok(Redirect {
        scheme: scheme.transpose()?,
        host: redirect.hostname.map(Arc::from),
        port: redirect.port.and_then(port_number),
        path: redirect.path.map(path).transpose()?,
        status: Some(status.transpose()?.unwrap_or(DEFAULT_REDIRECT_STATUS)),
    })
}

fn path(path: AnyPath) -> Result<PathModifier, ConvertError> {
    match (path.replace_full_path, path.replace_prefix_match) {
        (Some(full), _) if full.starts_with('/') => Ok(PathModifier::Full(full.into())),
        (Some(full), _) => Err(ConvertError::new(
            "path.replaceFullPath",
            format!("{full:?} does not begin with '/'"),
        )),
        (None, Some(prefix)) => Ok(PathModifier::Prefix(prefix.into())),
        (None, None) => Err(ConvertError::new("path", "replaces nothing")),
    }
}
