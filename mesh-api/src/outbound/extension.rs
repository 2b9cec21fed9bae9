//! The extension of outbound policies: the filters of rules and backends that Linkerd's proxy API
//! has no messages for (docs/adr/0147).
//!
//! A rule or backend with such a filter is sent twice. Its standard message has a filter that fails
//! every request, which is right for a proxy that does not know the extension. A delay is left out
//! there: requests are better forwarded without it. The extension has the filters themselves, and
//! replaces the standard message's.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::policy::outbound::{
    Distribution, HttpRoutes, OutboundPolicy, OutboundProtocol, OutboundRule, RouteBackend,
};
use mesh_core::route::Route;
use mesh_core::route::cors::{Cors, CorsSettings};
use mesh_core::route::fault::MAX_DELAY;
use mesh_core::route::filter::{
    Filter, PathModifier, Ratio, RequestKind, RequestMirror, UrlRewrite,
};
use prost::Message as _;

use super::rule::first_beyond_linkerd;
use super::{backend, grpc, http};
use crate::InvalidField;
use crate::field::{FieldContext, each};
use crate::mesh::outbound as wire;
use crate::mesh::outbound::filter::Kind;
use crate::mesh::outbound::url_rewrite::Path;
use crate::proto::outbound::Backend as StandardBackend;
use crate::proto::outbound::grpc_route::Filter as StandardGrpcFilter;
use crate::proto::outbound::http_route::Filter as StandardFilter;

/// Most bytes of an extension. Decoding takes at most 40 times this memory. A rule of the Gateway
/// API with 16 long filters takes less than 4 KiB.
pub const MAX_EXTENSION_BYTES: usize = 256 * 1024;

/// Most rules of an extension. A destination with more such rules keeps the standard part of the
/// others, which fails their requests.
pub const MAX_EXTENDED_RULES: usize = 1024;

/// Most filters of a rule or backend, as in the Gateway API.
pub const MAX_EXTENDED_FILTERS: usize = 16;

/// Most backends of an extension, as for rules.
pub const MAX_EXTENDED_BACKENDS: usize = 1024;

/// The place of a rule in the policy, or of a backend of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    route: u32,
    rule: u32,
    /// Among the backends that receive traffic.
    backend: Option<u32>,
}

/// Returns the encoded extension of a policy, empty if it needs none. Rules and backends beyond the
/// limits are not in it.
pub(super) fn encode(protocol: &OutboundProtocol) -> Vec<u8> {
    let mut extension = match protocol {
        OutboundProtocol::Detect { http1, http2, .. } => of_versions(http1, http2),
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => {
            of_routes(&routes.routes, RequestKind::Http)
        }
        OutboundProtocol::Grpc(routes) => of_routes(&routes.routes, RequestKind::Grpc),
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => wire::PolicyExtension::default(),
    };
    let wire::PolicyExtension { rules, backends } = &mut extension;
    rules.truncate(MAX_EXTENDED_RULES);
    backends.truncate(MAX_EXTENDED_BACKENDS);
    while extension.encoded_len() > MAX_EXTENSION_BYTES {
        let wire::PolicyExtension { rules, backends } = &mut extension;
        // Less than half of the longer list may fit, and the sum is computed again for each half.
        if rules.len() >= backends.len() {
            rules.truncate(rules.len() / 2);
        } else {
            backends.truncate(backends.len() / 2);
        }
    }
    extension.encode_to_vec()
}

/// A place in the extension is one in both lists, so that they have to be the same.
fn of_versions(http1: &HttpRoutes, http2: &HttpRoutes) -> wire::PolicyExtension {
    let found = of_routes(&http1.routes, RequestKind::Http);
    let is_empty = found.rules.is_empty() && found.backends.is_empty();
    if is_empty || http1.routes == http2.routes {
        found
    } else {
        wire::PolicyExtension::default()
    }
}

fn of_routes<M, T>(
    routes: &[Route<M, OutboundRule<T>>],
    requests: RequestKind,
) -> wire::PolicyExtension {
    let mut extension = wire::PolicyExtension::default();
    for (route, entry) in (0..).zip(routes) {
        for (rule, entry) in (0..).zip(&entry.rules) {
            let action = &entry.action;
            if let Some(filters) = extended(&action.filters, requests) {
                extension.rules.push(wire::RuleFilters {
                    route,
                    rule,
                    filters,
                });
            }
            for (backend, entry) in (0..).zip(receiving(&action.backends)) {
                if let Some(filters) = extended(&entry.filters, requests) {
                    extension.backends.push(wire::BackendFilters {
                        route,
                        rule,
                        backend,
                        filters,
                    });
                }
            }
        }
    }
    extension
}

/// Returns the filters of a rule or backend if one of them needs the extension, and their number
/// is within the limit.
fn extended(filters: &[Filter], requests: RequestKind) -> Option<Vec<wire::Filter>> {
    first_beyond_linkerd(filters, requests, |_| true)?;
    let fits = filters.len() <= MAX_EXTENDED_FILTERS;
    fits.then(|| filters.iter().map(filter_to_proto).collect())
}

/// The backends that receive traffic, which are those that the receiver keeps.
fn receiving(backends: &Distribution) -> Vec<&RouteBackend> {
    match backends {
        Distribution::Empty => Vec::new(),
        Distribution::FirstAvailable(backends) => backends.iter().map(|it| &**it).collect(),
        Distribution::RandomAvailable(backends) => {
            let weighted = backends.iter().filter(|(_, weight)| *weight > 0);
            weighted.map(|(backend, _)| &**backend).collect()
        }
    }
}

/// Replaces the filters of the rules and backends that the extension lists.
///
/// Returns the first problem of the extension. A rule or backend with invalid filters keeps the
/// filters of its standard message, and so do all if the extension is invalid as a whole.
pub(super) fn apply(policy: &mut OutboundPolicy, extension: &[u8]) -> Result<(), InvalidField> {
    if extension.len() > MAX_EXTENSION_BYTES {
        let expected = "extension of at most 262144 bytes";
        return Err(InvalidField::not_a(expected, "", extension.len()));
    }
    let wire::PolicyExtension { rules, backends } = wire::PolicyExtension::decode(extension)
        .map_err(|error| InvalidField::not_a("message", "", error.to_string()))?;
    if rules.len() > MAX_EXTENDED_RULES {
        let expected = "list of at most 1024 rules";
        return Err(InvalidField::not_a(expected, "rules", rules.len()));
    }
    if backends.len() > MAX_EXTENDED_BACKENDS {
        let expected = "list of at most 1024 backends";
        return Err(InvalidField::not_a(expected, "backends", backends.len()));
    }
    let rules = rules.into_iter().enumerate().map(|(at, entry)| {
        let place = Place {
            route: entry.route,
            rule: entry.rule,
            backend: None,
        };
        (format!("rules[{at}]"), place, entry.filters)
    });
    let backends = backends.into_iter().enumerate().map(|(at, entry)| {
        let place = Place {
            route: entry.route,
            rule: entry.rule,
            backend: Some(entry.backend),
        };
        (format!("backends[{at}]"), place, entry.filters)
    });
    let protocol = &mut policy.protocol;
    let of_rules = apply_entries(protocol, rules);
    of_rules.and(apply_entries(protocol, backends))
}

/// Replaces the filters at the places of one list. Returns its first problem.
fn apply_entries(
    protocol: &mut OutboundProtocol,
    entries: impl Iterator<Item = (String, Place, Vec<wire::Filter>)>,
) -> Result<(), InvalidField> {
    let mut result = Ok(());
    let mut last = None;
    for (field, place, filters) in entries {
        let applied = apply_entry(protocol, &mut last, place, filters);
        result = result.and(applied.inside(&field));
    }
    result
}

/// Replaces the filters of one rule or backend. `last` is the place of the entry before it.
fn apply_entry(
    protocol: &mut OutboundProtocol,
    last: &mut Option<Place>,
    place: Place,
    filters: Vec<wire::Filter>,
) -> Result<(), InvalidField> {
    if last.replace(place).is_some_and(|last| last >= place) {
        return Err(place.not_a("place after that of the entry before it"));
    }
    // No filters would open a rule or backend whose standard message fails every request.
    if !(1..=MAX_EXTENDED_FILTERS).contains(&filters.len()) {
        let expected = "list of 1 to 16 filters";
        return Err(InvalidField::not_a(expected, "filters", filters.len()));
    }
    let filters = each("filters", filters, filter)?;
    if place.backend.is_some() {
        let of_rules = filters
            .iter()
            .enumerate()
            .find_map(|(at, filter)| match filter {
                Filter::RequestMirror(_) => Some((at, "RequestMirror")),
                Filter::Cors(_) => Some((at, "CORS")),
                _ => None,
            });
        if let Some((at, found)) = of_rules {
            let field = format!("filters[{at}]");
            return Err(InvalidField::not_a("filter of a backend", &field, found));
        }
    }
    let replaced = match protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            let http1 = place.filters(&mut http1.routes);
            let http2 = place.filters(&mut http2.routes);
            http1.zip(http2).map(|(http1, http2)| {
                http1.clone_from(&filters);
                *http2 = filters;
            })
        }
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => {
            let found = place.filters(&mut routes.routes);
            found.map(|found| *found = filters)
        }
        OutboundProtocol::Grpc(routes) => {
            let found = place.filters(&mut routes.routes);
            found.map(|found| *found = filters)
        }
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => None,
    };
    replaced.ok_or_else(|| place.not_a("place in the policy"))
}

impl Place {
    /// Returns the filters that the policy has in this place.
    fn filters<M, T>(self, routes: &mut [Route<M, OutboundRule<T>>]) -> Option<&mut Vec<Filter>> {
        let route = routes.get_mut(self.route as usize)?;
        let action = &mut route.rules.get_mut(self.rule as usize)?.action;
        let Some(backend) = self.backend else {
            return Some(&mut action.filters);
        };
        let backend = match &mut action.backends {
            Distribution::Empty => return None,
            Distribution::FirstAvailable(backends) => backends.get_mut(backend as usize)?,
            Distribution::RandomAvailable(backends) => &mut backends.get_mut(backend as usize)?.0,
        };
        Some(&mut Arc::make_mut(backend).filters)
    }

    fn not_a(self, expected: &'static str) -> InvalidField {
        let Self { route, rule, .. } = self;
        match self.backend {
            None => InvalidField::not_a(expected, "rule", (route, rule)),
            Some(backend) => InvalidField::not_a(expected, "backend", (route, rule, backend)),
        }
    }
}

fn filter(wire: wire::Filter) -> Result<Filter, InvalidField> {
    match wire.kind {
        Some(Kind::Standard(bytes)) => StandardFilter::decode(&*bytes)
            .map_err(|error| InvalidField::not_a("message", "", error.to_string()))
            .and_then(http::filter)
            .inside("standard"),
        Some(Kind::StandardGrpc(bytes)) => StandardGrpcFilter::decode(&*bytes)
            .map_err(|error| InvalidField::not_a("message", "", error.to_string()))
            .and_then(grpc::filter)
            .inside("standard_grpc"),
        Some(Kind::UrlRewrite(rewrite)) => Ok(Filter::UrlRewrite(url_rewrite(rewrite))),
        Some(Kind::RequestMirror(mirror)) => request_mirror(&mirror)
            .map(Filter::RequestMirror)
            .inside("request_mirror"),
        Some(Kind::Cors(settings)) => cors(settings).inside("cors"),
        Some(Kind::Delay(wire)) => delay(wire).inside("delay"),
        None => Err(InvalidField::unknown_kind("kind")),
    }
}

fn filter_to_proto(filter: &Filter) -> wire::Filter {
    let kind = match filter {
        Filter::UrlRewrite(rewrite) => Kind::UrlRewrite(url_rewrite_to_proto(rewrite)),
        Filter::RequestMirror(mirror) => Kind::RequestMirror(request_mirror_to_proto(mirror)),
        Filter::Cors(cors) => Kind::Cors(cors_to_proto(cors)),
        Filter::Delay { duration, ratio } => Kind::Delay(delay_to_proto(*duration, *ratio)),
        Filter::InjectGrpcFailure { .. } => {
            Kind::StandardGrpc(grpc::filter_to_proto(filter).encode_to_vec())
        }
        standard => Kind::Standard(http::filter_to_proto(standard).encode_to_vec()),
    };
    wire::Filter { kind: Some(kind) }
}

fn url_rewrite(wire: wire::UrlRewrite) -> UrlRewrite {
    UrlRewrite {
        host: (!wire.host.is_empty()).then(|| Arc::from(wire.host)),
        path: wire.path.map(|path| match path {
            Path::Full(path) => PathModifier::Full(path.into()),
            Path::Prefix(path) => PathModifier::Prefix(path.into()),
        }),
    }
}

fn url_rewrite_to_proto(rewrite: &UrlRewrite) -> wire::UrlRewrite {
    wire::UrlRewrite {
        host: rewrite.host.as_deref().unwrap_or_default().to_owned(),
        path: rewrite.path.as_ref().map(|path| match path {
            PathModifier::Full(path) => Path::Full(path.to_string()),
            PathModifier::Prefix(path) => Path::Prefix(path.to_string()),
        }),
    }
}

fn request_mirror(wire: &wire::RequestMirror) -> Result<RequestMirror, InvalidField> {
    let backend = StandardBackend::decode(&*wire.backend)
        .map_err(|error| InvalidField::not_a("message", "", error.to_string()))
        .and_then(backend::backend)
        .inside("backend")?;
    Ok(RequestMirror {
        backend: Arc::new(backend),
        ratio: share(wire.numerator, wire.denominator)?,
    })
}

/// All requests must not be the result of a missing field.
fn share(numerator: u32, denominator: u32) -> Result<Ratio, InvalidField> {
    if denominator == 0 {
        let expected = "number above 0";
        return Err(InvalidField::not_a(expected, "denominator", denominator));
    }
    Ok(Ratio {
        numerator,
        denominator,
    })
}

fn request_mirror_to_proto(mirror: &RequestMirror) -> wire::RequestMirror {
    wire::RequestMirror {
        backend: backend::to_proto(&mirror.backend).encode_to_vec(),
        numerator: mirror.ratio.numerator,
        denominator: mirror.ratio.denominator,
    }
}

fn cors(wire: wire::Cors) -> Result<Filter, InvalidField> {
    let settings = CorsSettings {
        allow_origins: wire.allow_origins,
        allow_credentials: wire.allow_credentials,
        allow_methods: wire.allow_methods,
        allow_headers: wire.allow_headers,
        expose_headers: wire.expose_headers,
        max_age: wire.max_age_seconds,
    };
    let cors = Cors::new(settings);
    cors.map(|cors| Filter::Cors(Arc::new(cors)))
        .map_err(|error| InvalidField::not_a("policy", error.field, error.to_string()))
}

fn cors_to_proto(cors: &Cors) -> wire::Cors {
    let settings = cors.settings().clone();
    wire::Cors {
        allow_origins: settings.allow_origins,
        allow_credentials: settings.allow_credentials,
        allow_methods: settings.allow_methods,
        allow_headers: settings.allow_headers,
        expose_headers: settings.expose_headers,
        max_age_seconds: settings.max_age,
    }
}

fn delay(wire: wire::Delay) -> Result<Filter, InvalidField> {
    let duration = Duration::from_millis(wire.milliseconds.into());
    if duration.is_zero() || duration > MAX_DELAY {
        let expected = "number from 1 to 300000";
        return Err(InvalidField::not_a(
            expected,
            "milliseconds",
            wire.milliseconds,
        ));
    }
    Ok(Filter::Delay {
        duration,
        ratio: share(wire.numerator, wire.denominator)?,
    })
}

fn delay_to_proto(duration: Duration, ratio: Ratio) -> wire::Delay {
    wire::Delay {
        milliseconds: u32::try_from(duration.as_millis()).unwrap_or(u32::MAX),
        numerator: ratio.numerator,
        denominator: ratio.denominator,
    }
}

#[cfg(test)]
mod tests;
