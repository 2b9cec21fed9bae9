//! HTTPRoute of `policy.linkerd.io` and of the Gateway API.

use http::StatusCode;
use http::uri::Scheme;
use mesh_core::route::cors::{Cors, CorsSettings};
use mesh_core::route::filter::{PathModifier, RequestKind};

use super::Node;
use super::route::{self, RetryConditions};
use crate::crd::PolicyHttpRouteSpec;
use crate::crd::http_route::parse_duration;

/// The filters of Linkerd's own kind. The Gateway API has more, which other controllers may apply.
const POLICY_FILTERS: [&str; 3] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestRedirect",
];

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

pub(super) fn policy(object: &Node<'_>) {
    let Some(spec) = object.require("spec", "describe the route") else {
        return;
    };
    if spec.object().is_none() {
        return;
    }
    let parents = route::parents(&spec);
    route::hosts(&spec);
    route::annotations(object, parents, RetryConditions::Http);
    for rule in spec.items_of("rules") {
        if rule.object().is_none() {
            continue;
        }
        matches(&rule);
        filters(object, &rule, Some(&POLICY_FILTERS));
        for backend in rule.items_of("backendRefs") {
            filters(object, &backend, Some(&POLICY_FILTERS));
        }
        if let Some(timeouts) = rule.get("timeouts") {
            check_timeouts(&timeouts);
        }
    }
    spec.expect_type::<PolicyHttpRouteSpec>("compare it with the definition of the kind");
}

pub(super) fn gateway(object: &Node<'_>) {
    let Some(spec) = object.get("spec") else {
        return;
    };
    let parents = route::parents(&spec);
    route::hosts(&spec);
    route::annotations(object, parents, RetryConditions::Http);
    for rule in spec.items_of("rules") {
        matches(&rule);
        filters(object, &rule, None);
        route::backends(&rule);
        for backend in rule.items_of("backendRefs") {
            filters(object, &backend, None);
        }
    }
}

fn matches(rule: &Node<'_>) {
    for entry in rule.items_of("matches") {
        if entry.object().is_none() {
            continue;
        }
        if let Some(path) = entry.get("path") {
            path_match(&path);
        }
        route::value_matches(&entry.items_of("headers"), true);
        route::value_matches(&entry.items_of("queryParams"), false);
        if let Some(method) = entry.get("method") {
            method.one_of(&METHODS);
        }
    }
}

fn path_match(path: &Node<'_>) {
    if path.object().is_none() {
        return;
    }
    let kind = match path.get("type") {
        Some(kind) => kind.one_of(&["Exact", "PathPrefix", "RegularExpression"]),
        None => Some("PathPrefix"),
    };
    let (Some(kind), Some(value)) = (kind, path.get("value")) else {
        return;
    };
    if kind == "RegularExpression" {
        route::regex(&value);
    } else {
        absolute(&value);
    }
}

fn absolute(path: &Node<'_>) {
    if path.text().is_some_and(|text| !text.starts_with('/')) {
        path.invalid("is not an absolute path", "begin it with /");
    }
}

/// Checks the filters of a rule or a backend of `object`; `known` are the types that the kind has.
fn filters(object: &Node<'_>, node: &Node<'_>, known: Option<&[&str]>) {
    for filter in node.items_of("filters") {
        if filter.object().is_none() {
            continue;
        }
        let Some(kind) = filter.require("type", "write the type of the filter") else {
            continue;
        };
        let kind = match known {
            Some(known) => kind.one_of(known),
            None => kind.text(),
        };
        let (field, check): (_, fn(&Node<'_>)) = match kind {
            Some("RequestHeaderModifier") => ("requestHeaderModifier", route::header_modifier),
            Some("ResponseHeaderModifier") => ("responseHeaderModifier", route::header_modifier),
            Some("RequestRedirect") => ("requestRedirect", redirect),
            Some("URLRewrite") => ("urlRewrite", rewrite),
            Some("RequestMirror") => ("requestMirror", route::request_mirror),
            Some("CORS") => ("cors", cors),
            Some("ExtensionRef") => {
                if let Some(reference) = filter.get("extensionRef") {
                    route::fault(&reference, object, RequestKind::Http);
                }
                continue;
            }
            _ => continue,
        };
        if let Some(settings) = filter.require(field, "set it, the type of the filter requires it")
        {
            check(&settings);
        }
    }
}

fn redirect(node: &Node<'_>) {
    if node.object().is_none() {
        return;
    }
    if let Some(scheme) = node.get("scheme")
        && scheme
            .text()
            .is_some_and(|text| text.parse::<Scheme>().is_err())
    {
        scheme.invalid("is not a URI scheme", "write http or https");
    }
    route::host_name(node);
    if let Some(status) = node.get("statusCode")
        && let Some(code) = status.integer::<u16>("a status")
        && !StatusCode::from_u16(code).is_ok_and(|status| status.is_redirection())
    {
        status.invalid(
            "is not the status of a redirection",
            "write 301, 302, 303, 307 or 308",
        );
    }
    if let Some(path) = node.get("path") {
        for field in ["replaceFullPath", "replacePrefixMatch"] {
            if let Some(replacement) = path.get(field) {
                absolute(&replacement);
            }
        }
    }
}

fn cors(node: &Node<'_>) {
    if node.object().is_none() {
        return;
    }
    let texts = |field| {
        let items = node.items_of(field).into_iter();
        items
            .filter_map(|item| item.text().map(str::to_owned))
            .collect()
    };
    let settings = CorsSettings {
        allow_origins: texts("allowOrigins"),
        allow_methods: texts("allowMethods"),
        allow_headers: texts("allowHeaders"),
        expose_headers: texts("exposeHeaders"),
        ..CorsSettings::default()
    };
    if let Err(error) = Cors::new(settings)
        && let Some(list) = node.get(error.field)
    {
        list.conflict(&format!("has an invalid entry: {error}"), "correct it");
    }
    if let Some(credentials) = node.get("allowCredentials") {
        credentials.boolean();
    }
    if let Some(age) = node.get("maxAge")
        && age.integer::<u32>("a number of seconds") == Some(0)
    {
        age.invalid("is not a number of seconds", "write 1 or more");
    }
}

fn rewrite(node: &Node<'_>) {
    if node.object().is_none() {
        return;
    }
    route::host_name(node);
    let Some(path) = node.get("path") else {
        return;
    };
    if path.object().is_none() {
        return;
    }
    let mut replaces = false;
    for field in ["replaceFullPath", "replacePrefixMatch"] {
        let Some(replacement) = path.get(field) else {
            continue;
        };
        replaces = true;
        // Without the prefix the rest of the path is forwarded.
        let may_be_empty = field == "replacePrefixMatch";
        if replacement
            .text()
            .is_some_and(|text| !(PathModifier::is_path(text) || may_be_empty && text.is_empty()))
        {
            replacement.invalid(
                "is not an absolute path",
                "begin it with /, and write no query",
            );
        }
    }
    if !replaces {
        path.conflict(
            "replaces nothing",
            "set replaceFullPath or replacePrefixMatch",
        );
    }
}

fn check_timeouts(node: &Node<'_>) {
    let duration = |name: &str| {
        let field = node.get(name)?;
        let duration = parse_duration(field.text()?);
        if duration.is_err() {
            field.malformed("is not a duration", "write it as in 10s, 500ms or 1h30m");
        }
        duration.ok()
    };
    let (request, attempt) = (duration("request"), duration("backendRequest"));
    // Zero disables a timeout.
    if let (Some(request), Some(attempt), Some(field)) =
        (request, attempt, node.get("backendRequest"))
        && !request.is_zero()
        && attempt > request
    {
        field.invalid(
            "is longer than request, which it is a part of",
            "shorten it, or lengthen timeouts.request",
        );
    }
}
