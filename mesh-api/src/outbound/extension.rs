//! The extension of outbound policies: the filters of rules that Linkerd's proxy API has no
//! messages for (docs/adr/0147).
//!
//! A rule with such a filter is sent twice. Its standard message has a filter that fails every
//! request, which is right for a proxy that does not know the extension. The extension has the
//! filters themselves, and replaces those of the standard message.

use std::sync::Arc;

use mesh_core::policy::outbound::{HttpRoutes, OutboundPolicy, OutboundProtocol, OutboundRule};
use mesh_core::route::Route;
use mesh_core::route::filter::{Filter, PathModifier, UrlRewrite};
use prost::Message as _;

use super::http;
use super::rule::first_beyond_linkerd;
use crate::InvalidField;
use crate::field::{FieldContext, each};
use crate::mesh::outbound as wire;
use crate::mesh::outbound::filter::Kind;
use crate::mesh::outbound::url_rewrite::Path;
use crate::proto::outbound::http_route::Filter as StandardFilter;

/// Most bytes of an extension, which are decoded to at most 40 times as many. A rule of the Gateway
/// API with 16 long filters takes less than 4 KiB.
pub const MAX_EXTENSION_BYTES: usize = 256 * 1024;

/// Most rules of an extension. A destination with more such rules keeps the standard part of the
/// others, which fails their requests.
pub const MAX_EXTENDED_RULES: usize = 1024;

/// Most filters of a rule, as in the Gateway API.
pub const MAX_EXTENDED_FILTERS: usize = 16;

/// Returns the encoded extension of a policy, empty if it needs none. Rules beyond the limits are
/// not in it.
pub(super) fn encode(protocol: &OutboundProtocol) -> Vec<u8> {
    let rules = match protocol {
        OutboundProtocol::Detect { http1, http2, .. } => rules_of_versions(http1, http2),
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => rules(&routes.routes),
        OutboundProtocol::Grpc(routes) => rules(&routes.routes),
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => Vec::new(),
    };
    let mut extension = wire::PolicyExtension { rules };
    while extension.encoded_len() > MAX_EXTENSION_BYTES {
        // Less than half of the rules may fit, and the sum is computed again for each half.
        extension.rules.truncate(extension.rules.len() / 2);
    }
    extension.encode_to_vec()
}

/// A place in the extension is one in both lists, so that they have to be the same.
fn rules_of_versions(http1: &HttpRoutes, http2: &HttpRoutes) -> Vec<wire::RuleFilters> {
    let found = rules(&http1.routes);
    let is_same = found.is_empty() || http1.routes == http2.routes;
    if is_same { found } else { Vec::new() }
}

fn rules<M, T>(routes: &[Route<M, OutboundRule<T>>]) -> Vec<wire::RuleFilters> {
    let places = routes.iter().enumerate().flat_map(|(route, entry)| {
        let rules = entry.rules.iter().enumerate();
        rules.map(move |(rule, entry)| (route, rule, &entry.action.filters))
    });
    let extended = places.filter_map(|(route, rule, filters)| {
        first_beyond_linkerd(filters)?;
        if filters.len() > MAX_EXTENDED_FILTERS {
            return None;
        }
        Some(wire::RuleFilters {
            route: u32::try_from(route).ok()?,
            rule: u32::try_from(rule).ok()?,
            filters: filters.iter().map(filter_to_proto).collect(),
        })
    });
    extended.take(MAX_EXTENDED_RULES).collect()
}

/// Replaces the filters of the rules that the extension lists.
///
/// Returns the first problem of the extension. A rule whose filters are invalid keeps those of its
/// standard message, and so do all rules if the extension is invalid as a whole.
pub(super) fn apply(policy: &mut OutboundPolicy, extension: &[u8]) -> Result<(), InvalidField> {
    if extension.len() > MAX_EXTENSION_BYTES {
        let expected = "extension of at most 262144 bytes";
        return Err(InvalidField::not_a(expected, "", extension.len()));
    }
    let extension = wire::PolicyExtension::decode(extension)
        .map_err(|error| InvalidField::not_a("message", "", error.to_string()))?;
    if extension.rules.len() > MAX_EXTENDED_RULES {
        let expected = "list of at most 1024 rules";
        return Err(InvalidField::not_a(
            expected,
            "rules",
            extension.rules.len(),
        ));
    }
    let mut result = Ok(());
    let mut last = None;
    for (at, rule) in extension.rules.into_iter().enumerate() {
        let applied = apply_rule(&mut policy.protocol, &mut last, rule);
        result = result.and(applied.inside(&format!("rules[{at}]")));
    }
    result
}

/// Replaces the filters of one rule. `last` is the place of the one before it.
fn apply_rule(
    protocol: &mut OutboundProtocol,
    last: &mut Option<(u32, u32)>,
    rule: wire::RuleFilters,
) -> Result<(), InvalidField> {
    let place = (rule.route, rule.rule);
    if last.replace(place).is_some_and(|last| last >= place) {
        let expected = "place after that of the rule before it";
        return Err(InvalidField::not_a(expected, "rule", place));
    }
    // No filters would open a rule whose standard message fails every request.
    if !(1..=MAX_EXTENDED_FILTERS).contains(&rule.filters.len()) {
        let expected = "list of 1 to 16 filters";
        return Err(InvalidField::not_a(expected, "filters", rule.filters.len()));
    }
    let filters = each("filters", rule.filters, filter)?;
    let replaced = match protocol {
        OutboundProtocol::Detect { http1, http2, .. } => {
            let http1 = filters_at(&mut http1.routes, place);
            let http2 = filters_at(&mut http2.routes, place);
            http1.zip(http2).map(|(http1, http2)| {
                http1.clone_from(&filters);
                *http2 = filters;
            })
        }
        OutboundProtocol::Http1(routes) | OutboundProtocol::Http2(routes) => {
            filters_at(&mut routes.routes, place).map(|found| *found = filters)
        }
        OutboundProtocol::Grpc(routes) => {
            filters_at(&mut routes.routes, place).map(|found| *found = filters)
        }
        OutboundProtocol::Opaque(_) | OutboundProtocol::Tls(_) => None,
    };
    replaced.ok_or_else(|| InvalidField::not_a("place of a rule", "rule", place))
}

fn filters_at<M, T>(
    routes: &mut [Route<M, OutboundRule<T>>],
    (route, rule): (u32, u32),
) -> Option<&mut Vec<Filter>> {
    let route = routes.get_mut(route as usize)?;
    let rule = route.rules.get_mut(rule as usize)?;
    Some(&mut rule.action.filters)
}

fn filter(wire: wire::Filter) -> Result<Filter, InvalidField> {
    match wire.kind {
        Some(Kind::Standard(bytes)) => StandardFilter::decode(&*bytes)
            .map_err(|error| InvalidField::not_a("message", "", error.to_string()))
            .and_then(http::filter)
            .inside("standard"),
        Some(Kind::UrlRewrite(rewrite)) => Ok(Filter::UrlRewrite(url_rewrite(rewrite))),
        None => Err(InvalidField::unknown_kind("kind")),
    }
}

fn filter_to_proto(filter: &Filter) -> wire::Filter {
    let kind = match filter {
        Filter::UrlRewrite(rewrite) => Kind::UrlRewrite(url_rewrite_to_proto(rewrite)),
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

#[cfg(test)]
mod tests;
