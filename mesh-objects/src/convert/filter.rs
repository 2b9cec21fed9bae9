//! The filters of routes.
//!
//! The Gateway API has a separate type for each place of a filter, all with the same JSON. They are
//! converted through that JSON once, instead of four times.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::uri::Scheme;
use http::{HeaderName, HeaderValue, StatusCode};
use mesh_core::route::cors::{Cors, CorsSettings};
use mesh_core::route::filter::{
    Filter, HeaderModifier, PathModifier, Ratio, Redirect, RequestKind, UrlRewrite,
};
use mesh_core::route::{fault, is_host_name};
use mesh_k8s::kinds::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::backend::backend_ref;
use super::{ConvertError, convert_all, port_number};
use crate::model::{BackendRef, Mirror};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilterJson {
    r#type: String,
    request_header_modifier: Option<HeadersJson>,
    response_header_modifier: Option<HeadersJson>,
    request_redirect: Option<RedirectJson>,
    url_rewrite: Option<RewriteJson>,
    request_mirror: Option<MirrorJson>,
    cors: Option<CorsJson>,
    extension_ref: Option<ExtensionJson>,
}

#[derive(Deserialize)]
struct HeadersJson {
    #[serde(default)]
    add: Vec<HeaderJson>,
    #[serde(default)]
    set: Vec<HeaderJson>,
    #[serde(default)]
    remove: Vec<String>,
}

#[derive(Deserialize)]
struct HeaderJson {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RedirectJson {
    scheme: Option<String>,
    hostname: Option<String>,
    port: Option<i32>,
    path: Option<PathJson>,
    status_code: Option<u16>,
}

#[derive(Deserialize)]
struct RewriteJson {
    hostname: Option<String>,
    path: Option<PathJson>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MirrorJson {
    backend_ref: ReferenceJson,
    percent: Option<i32>,
    fraction: Option<FractionJson>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CorsJson {
    #[serde(default)]
    allow_origins: Vec<String>,
    #[serde(default)]
    allow_credentials: bool,
    #[serde(default)]
    allow_methods: Vec<String>,
    #[serde(default)]
    allow_headers: Vec<String>,
    #[serde(default)]
    expose_headers: Vec<String>,
    max_age: Option<u32>,
}

#[derive(Deserialize)]
struct ExtensionJson {
    group: String,
    kind: String,
    name: String,
}

#[derive(Deserialize)]
struct ReferenceJson {
    group: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: String,
    port: Option<i32>,
}

#[derive(Deserialize)]
struct FractionJson {
    numerator: i32,
    denominator: Option<i32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PathJson {
    replace_full_path: Option<String>,
    replace_prefix_match: Option<String>,
}

/// The default of the Gateway API, which its CRD sets.
const DEFAULT_REDIRECT_STATUS: StatusCode = StatusCode::FOUND;

/// The default of the Gateway API, which its CRD sets.
const DEFAULT_CORS_MAX_AGE: u32 = 5;

/// The types of filters that are supported in one place.
type SupportedTypes = &'static [&'static str];

/// The types of filters that a kind of route supports besides faults.
pub(super) struct Supported {
    rule: SupportedTypes,
    backend: SupportedTypes,
    requests: RequestKind,
}

/// What the filters of one route can be.
#[derive(Clone, Copy)]
pub(super) struct RouteFilters<'a> {
    supported: &'static Supported,
    /// They describe the faults of the route.
    annotations: Option<&'a BTreeMap<String, String>>,
}

/// The filters of an HTTPRoute.
pub(super) const HTTP: &Supported = &Supported {
    rule: &[
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestRedirect",
        "URLRewrite",
        "RequestMirror",
        "CORS",
    ],
    // Mirrors and CORS of a single backend have no place in the extension.
    backend: &[
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestRedirect",
        "URLRewrite",
    ],
    requests: RequestKind::Http,
};

/// The filters of a GRPCRoute.
pub(super) const GRPC: &Supported = &Supported {
    rule: &[
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestMirror",
    ],
    backend: &["RequestHeaderModifier", "ResponseHeaderModifier"],
    requests: RequestKind::Grpc,
};

/// A filter of a rule.
enum RuleFilter {
    Filter(Filter),
    Mirror(BackendRef, Ratio),
}

impl Supported {
    /// Returns what the filters of one route can be, whose annotations may describe faults.
    pub(super) fn with_faults<'a>(&'static self, route: &'a ObjectMeta) -> RouteFilters<'a> {
        RouteFilters {
            supported: self,
            annotations: route.annotations.as_ref(),
        }
    }
}

impl RouteFilters<'_> {
    /// Returns the filter that injects a fault of the route.
    fn fault(self, name: &str) -> Result<Filter, ConvertError> {
        let key = fault::annotation(name);
        let text = self
            .annotations
            .and_then(|annotations| annotations.get(&key));
        let text = text.ok_or_else(|| {
            let problem = format!("is {name:?}, but the route has no annotation {key}; add it");
            ConvertError::new("name", problem)
        })?;
        fault::parse(name, text, self.supported.requests).map_err(|error| {
            ConvertError::new(
                "name",
                format!("is {name:?}, but the annotation {key} {error}"),
            )
        })
    }
}

/// Converts the filters of a rule. With a filter of another type the rule fails its requests,
/// because without the filter they would be forwarded unchanged.
pub(super) fn of_rule<F: Serialize>(
    route: RouteFilters<'_>,
    filters: &Option<Vec<F>>,
) -> Result<(Vec<Filter>, Vec<Mirror>), ConvertError> {
    if let Some(problem) = first_unsupported(route.supported.rule, filters)? {
        return Ok((vec![Filter::InternalError(problem.into())], Vec::new()));
    }
    let converted = convert_all("filters", filters, |filter| {
        read(filter).and_then(|filter| rule_filter(route, filter))
    })?;
    let (mut filters, mut mirrors) = (Vec::new(), Vec::new());
    for (place, filter) in converted.into_iter().enumerate() {
        match filter {
            RuleFilter::Filter(filter) => filters.push(filter),
            RuleFilter::Mirror(backend, ratio) => mirrors.push(Mirror {
                place,
                backend,
                ratio,
            }),
        }
    }
    Ok((filters, mirrors))
}

/// Converts the filters of a backend. A filter that is invalid or of another type makes its backend
/// fail requests, not the whole route.
pub(super) fn of_backend<F: Serialize>(
    route: RouteFilters<'_>,
    filters: &Option<Vec<F>>,
) -> Result<Vec<Filter>, Arc<str>> {
    let converted = match first_unsupported(route.supported.backend, filters) {
        Ok(Some(problem)) => return Err(format!("unsupported backend filter: {problem}").into()),
        Ok(None) => convert_all("filters", filters, |filter| {
            read(filter).and_then(|filter| convert(route, filter))
        }),
        Err(error) => Err(error),
    };
    converted.map_err(|error| format!("invalid backend filter: {error}").into())
}

/// Describes the first filter of an unsupported type.
fn first_unsupported<F: Serialize>(
    supported: SupportedTypes,
    filters: &Option<Vec<F>>,
) -> Result<Option<String>, ConvertError> {
    let filters = convert_all("filters", filters, read)?;
    let unsupported = filters.iter().enumerate().find(|(_, filter)| {
        let names_fault = |it: &ExtensionJson| fault::is_reference(&it.group, &it.kind);
        let is_fault = filter.r#type == "ExtensionRef"
            && filter.extension_ref.as_ref().is_some_and(names_fault);
        !is_fault && !supported.contains(&&*filter.r#type)
    });
    Ok(unsupported.map(|(at, filter)| {
        format!(
            "filters[{at}].type: {} is not supported here, only {}; remove the filter",
            filter.r#type,
            supported.join(", ")
        )
    }))
}

fn read<F: Serialize>(filter: &F) -> Result<FilterJson, ConvertError> {
    serde_json::to_value(filter)
        .and_then(serde_json::from_value)
        .map_err(|error| ConvertError::new("type", error))
}

fn rule_filter(route: RouteFilters<'_>, filter: FilterJson) -> Result<RuleFilter, ConvertError> {
    if filter.r#type != "RequestMirror" {
        return convert(route, filter).map(RuleFilter::Filter);
    }
    part("requestMirror", filter.request_mirror, |mirror| {
        let ratio = mirrored_share(mirror.percent, mirror.fraction)?;
        Ok(RuleFilter::Mirror(backend_ref!(mirror.backend_ref), ratio))
    })
}

fn convert(route: RouteFilters<'_>, filter: FilterJson) -> Result<Filter, ConvertError> {
    match filter.r#type.as_str() {
        "RequestHeaderModifier" => {
            let headers = filter.request_header_modifier;
            part("requestHeaderModifier", headers, header_modifier).map(Filter::RequestHeaders)
        }
        "ResponseHeaderModifier" => {
            let headers = filter.response_header_modifier;
            part("responseHeaderModifier", headers, header_modifier).map(Filter::ResponseHeaders)
        }
        "RequestRedirect" => {
            part("requestRedirect", filter.request_redirect, redirect).map(Filter::Redirect)
        }
        "URLRewrite" => part("urlRewrite", filter.url_rewrite, url_rewrite).map(Filter::UrlRewrite),
        "CORS" => part("cors", filter.cors, cors).map(Filter::Cors),
        "ExtensionRef" => part("extensionRef", filter.extension_ref, |reference| {
            route.fault(&reference.name)
        }),
        other => Err(ConvertError::new(
            "type",
            format!("{other} is not supported"),
        )),
    }
}

/// Converts the field that the type of a filter requires.
fn part<P, T>(
    field: &str,
    value: Option<P>,
    convert: impl FnOnce(P) -> Result<T, ConvertError>,
) -> Result<T, ConvertError> {
    let missing = || ConvertError::new(field, "is missing, but the type requires it");
    convert(value.ok_or_else(missing)?).map_err(|error| error.inside(field))
}

fn header_modifier(headers: HeadersJson) -> Result<HeaderModifier, ConvertError> {
    let name = |text: &str| -> Result<HeaderName, ConvertError> {
        text.parse()
            .map_err(|_error| ConvertError::new("name", format!("{text:?} is not a header name")))
    };
    let pairs = |pairs: Vec<HeaderJson>| {
        let pair = |pair: HeaderJson| {
            let value: HeaderValue = pair.value.parse().map_err(|_error| {
                ConvertError::new("value", format!("{:?} is not a header value", pair.value))
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

fn redirect(redirect: RedirectJson) -> Result<Redirect, ConvertError> {
    let scheme = redirect.scheme.map(|text| {
        text.parse::<Scheme>()
            .map_err(|_error| ConvertError::new("scheme", format!("{text:?} is not a URI scheme")))
    });
    let status = redirect.status_code.map(|code| {
        StatusCode::from_u16(code)
            .ok()
            .filter(StatusCode::is_redirection)
            .ok_or_else(|| {
                ConvertError::new("statusCode", format!("{code} is not a redirection status"))
            })
    });
    Ok(Redirect {
        scheme: scheme.transpose()?,
        host: redirect.hostname.map(Arc::from),
        port: redirect.port.and_then(port_number),
        path: redirect.path.map(path).transpose()?,
        status: Some(status.transpose()?.unwrap_or(DEFAULT_REDIRECT_STATUS)),
    })
}

fn path(path: PathJson) -> Result<PathModifier, ConvertError> {
    match (path.replace_full_path, path.replace_prefix_match) {
        (Some(full), _) if full.starts_with('/') => Ok(PathModifier::Full(full.into())),
        (Some(full), _) => Err(ConvertError::new(
            "path.replaceFullPath",
            format!("{full:?} does not start with '/'"),
        )),
        (None, Some(prefix)) => Ok(PathModifier::Prefix(prefix.into())),
        (None, None) => Err(ConvertError::new("path", "replaces nothing")),
    }
}

fn cors(cors: CorsJson) -> Result<Arc<Cors>, ConvertError> {
    let settings = CorsSettings {
        allow_origins: cors.allow_origins,
        allow_credentials: cors.allow_credentials,
        allow_methods: cors.allow_methods,
        allow_headers: cors.allow_headers,
        expose_headers: cors.expose_headers,
        max_age: cors.max_age.unwrap_or(DEFAULT_CORS_MAX_AGE),
    };
    let cors = Cors::new(settings);
    cors.map(Arc::new)
        .map_err(|error| ConvertError::new(error.field, error))
}

fn url_rewrite(rewrite: RewriteJson) -> Result<UrlRewrite, ConvertError> {
    if let Some(host) = &rewrite.hostname
        && !is_host_name(host)
    {
        let problem = format!("{host:?} is not a host name in lower case without port");
        return Err(ConvertError::new("hostname", problem));
    }
    let path = rewrite.path.map(path).transpose()?;
    let (field, text) = match &path {
        Some(PathModifier::Full(path)) => ("path.replaceFullPath", &**path),
        Some(PathModifier::Prefix(path)) => ("path.replacePrefixMatch", &**path),
        None => ("path", ""),
    };
    if !text.is_empty() && !PathModifier::is_path(text) {
        return Err(ConvertError::new(
            field,
            format!("{text:?} is not an absolute path"),
        ));
    }
    Ok(UrlRewrite {
        host: rewrite.hostname.map(Arc::from),
        path,
    })
}

/// Returns the share of requests that are mirrored: all without `percent` and `fraction`.
fn mirrored_share(
    percent: Option<i32>,
    fraction: Option<FractionJson>,
) -> Result<Ratio, ConvertError> {
    let (field, numerator, denominator) = match (percent, fraction) {
        (None, None) => return Ok(Ratio::ALL),
        (Some(_), Some(_)) => {
            return Err(ConvertError::new(
                "fraction",
                "is set together with percent",
            ));
        }
        (Some(percent), None) => ("percent", percent, 100),
        (None, Some(fraction)) => {
            // The default of the Gateway API, which its CRD sets.
            let denominator = fraction.denominator.unwrap_or(100);
            ("fraction", fraction.numerator, denominator)
        }
    };
    match (u32::try_from(numerator), u32::try_from(denominator)) {
        (Ok(numerator), Ok(denominator)) if numerator <= denominator && denominator > 0 => {
            Ok(Ratio {
                numerator,
                denominator,
            })
        }
        _ => Err(ConvertError::new(
            field,
            format!("{numerator} of {denominator} is not a share of the requests"),
        )),
    }
}
