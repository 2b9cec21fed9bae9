//! What the kinds of routes have in common: parents, annotations, header matches and modifiers,
//! backends.

use http::{HeaderName, HeaderValue};
use mesh_core::annotation as keys;
use mesh_core::resilience::{parse_grpc_condition, parse_http_condition};
use mesh_core::route::filter::RequestKind;
use mesh_core::route::{AnchoredRegex, HostMatch, fault, is_host_name};
use mesh_core::units::{list_items, parse_duration};

use super::Node;
use crate::crd::ParentKind;

/// Which of the mesh's kinds of parents a route has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parents {
    /// A Server.
    server: bool,
    /// A Service or an EgressNetwork.
    traffic: bool,
}

/// The conditions of retries that a kind of routes has.
#[derive(Clone, Copy)]
pub(super) enum RetryConditions {
    Http,
    Grpc,
}

/// Returns the problem with a condition.
type ParseCondition = fn(&str) -> Result<(), String>;

/// The rules of TLSRoute and TCPRoute.
pub(super) fn connections(object: &Node<'_>) {
    let Some(spec) = object.get("spec") else {
        return;
    };
    parents(&spec);
    hosts(&spec);
    let fix = "write a single rule; it may have several backends";
    if let Some(list) = spec.require("rules", fix) {
        let rules = list.items().len();
        if rules != 1 {
            list.conflict(&format!("has {rules} rules instead of one"), fix);
        }
    }
}

/// Checks the parents of a route.
pub(super) fn parents(spec: &Node<'_>) -> Parents {
    let mut found = Parents::default();
    for parent in spec.items_of("parentRefs") {
        if parent.object().is_none() {
            continue;
        }
        if let Some(name) = parent.require("name", "write the name of the parent") {
            name.text();
        }
        if let Some(port) = parent.get("port") {
            port_number(&port);
        }
        let kind = ParentKind::new(parent.text_of("group"), parent.text_of("kind"));
        found.server |= kind == ParentKind::Server;
        found.traffic |= kind.has_clients();
        if kind == ParentKind::EgressNetwork && parent.get("port").is_none() {
            parent.absent(
                "port",
                "is missing, and an EgressNetwork has no ports that could be a default",
                "set the port of the traffic",
            );
        }
    }
    found
}

impl Parents {
    /// Whether the mesh serves the route.
    pub(super) fn any(self) -> bool {
        self.server || self.traffic
    }
}

/// Checks the names of the hosts that a route matches.
pub(super) fn hosts(spec: &Node<'_>) {
    for host in spec.items_of("hostnames") {
        let fix =
            "write lower-case letters, digits, - and ., with *. before them for all names below";
        host_text(&host, HostMatch::is_pattern, fix);
    }
}

/// Checks the host that a filter sets.
pub(super) fn host_name(filter: &Node<'_>) {
    if let Some(host) = filter.get("hostname") {
        let fix = "write lower-case letters, digits, - and ., without a port";
        host_text(&host, is_host_name, fix);
    }
}

fn host_text(host: &Node<'_>, is_valid: fn(&str) -> bool, fix: &str) {
    let Some(text) = host.text().filter(|text| !is_valid(text)) else {
        return;
    };
    let lower = text.to_ascii_lowercase();
    if is_valid(&lower) {
        let fix = format!("write {:?}", super::shorten(&lower));
        host.invalid(
            "is not a host name, because it has upper-case letters",
            &fix,
        );
    } else {
        host.invalid("is not a host name", fix);
    }
}

fn port_number(node: &Node<'_>) {
    if node.integer::<u16>("a port number from 1 to 65535") == Some(0) {
        node.invalid("is not a port", "write a port number from 1 to 65535");
    }
}

/// Checks the annotations of timeouts and retries, which have effect with a Service or an
/// EgressNetwork as parent.
pub(super) fn annotations(object: &Node<'_>, parents: Parents, conditions: RetryConditions) {
    let metadata = object.get("metadata");
    let Some(annotations) = metadata.and_then(|metadata| metadata.get("annotations")) else {
        return;
    };
    if !parents.traffic {
        return;
    }
    for key in [
        keys::TIMEOUT_REQUEST,
        keys::TIMEOUT_RESPONSE,
        keys::TIMEOUT_IDLE,
        keys::RETRY_TIMEOUT,
    ] {
        if let Some(node) = annotations.get(key)
            && node
                .text()
                .is_some_and(|text| parse_duration(text).is_err())
        {
            node.invalid(
                "is not a duration",
                "write a whole number and a unit (ms, s, m, h, d), as in 10s",
            );
        }
    }
    if let Some(node) = annotations.get(keys::RETRY_LIMIT)
        && node
            .text()
            .is_some_and(|text| text.trim().parse::<u16>().is_err())
    {
        node.invalid("is not a number of retries", "write a number up to 65535");
    }
    let (key, parse): (_, ParseCondition) = match conditions {
        RetryConditions::Http => (keys::RETRY_HTTP, |item| {
            parse_http_condition(item).map(drop)
        }),
        RetryConditions::Grpc => (keys::RETRY_GRPC, |item| {
            parse_grpc_condition(item).map(drop)
        }),
    };
    if let Some(node) = annotations.get(key)
        && let Some(text) = node.text()
        && let Some(problem) = list_items(text).find_map(|item| parse(item).err())
    {
        node.conflict(
            &format!("has an invalid condition: {}", super::shorten(&problem)),
            "write conditions separated by commas",
        );
    }
}

/// Checks the header or query matches of a match.
pub(super) fn value_matches(list: &[Node<'_>], names_header: bool) {
    for entry in list {
        if entry.object().is_none() {
            continue;
        }
        if let Some(name) = entry.require("name", "write the name")
            && names_header
        {
            header_name(&name);
        }
        let is_regex = matches!(
            entry
                .get("type")
                .map(|kind| kind.one_of(&["Exact", "RegularExpression"])),
            Some(Some("RegularExpression"))
        );
        let Some(value) = entry.require("value", "write the value") else {
            continue;
        };
        if is_regex {
            regex(&value);
        } else if names_header {
            header_value(&value);
        } else {
            value.text();
        }
    }
}

/// Checks a regular expression.
pub(super) fn regex(node: &Node<'_>) {
    if let Some(text) = node.text()
        && let Err(error) = AnchoredRegex::new(text)
    {
        // The last line names the problem; the ones before it point at it.
        let error = error.to_string();
        let problem = error.lines().last().unwrap_or_default();
        let problem = problem.trim_start_matches("error: ");
        node.invalid(
            &format!("is not a regular expression ({})", super::shorten(problem)),
            "correct it; look-around and backreferences are not supported",
        );
    }
}

/// Checks the modifier of a filter of headers.
pub(super) fn header_modifier(modifier: &Node<'_>) {
    if modifier.object().is_none() {
        return;
    }
    for list in ["set", "add"] {
        for entry in modifier.items_of(list) {
            if entry.object().is_none() {
                continue;
            }
            if let Some(name) = entry.require("name", "write the name of the header") {
                header_name(&name);
            }
            if let Some(value) = entry.require("value", "write the value of the header") {
                header_value(&value);
            }
        }
    }
    for name in modifier.items_of("remove") {
        header_name(&name);
    }
}

fn header_name(node: &Node<'_>) {
    if let Some(text) = node.text()
        && text.parse::<HeaderName>().is_err()
    {
        node.invalid("is not the name of a header", "write a token of RFC 9110");
    }
}

fn header_value(node: &Node<'_>) {
    if let Some(text) = node.text()
        && text.parse::<HeaderValue>().is_err()
    {
        node.invalid("is not the value of a header", "remove control characters");
    }
}

/// Checks the backends of a rule.
pub(super) fn backends(rule: &Node<'_>) {
    for reference in rule.items_of("backendRefs") {
        backend(&reference);
    }
}

/// Checks that a backend that is a Service has a port: a Service may have several.
fn backend(reference: &Node<'_>) {
    if reference.object().is_none() {
        return;
    }
    let group = reference.text_of("group").unwrap_or_default();
    let kind = reference.text_of("kind").unwrap_or("Service");
    if !matches!(group, "" | "core") || !kind.eq_ignore_ascii_case("Service") {
        return;
    }
    match reference.get("port") {
        Some(port) => port_number(&port),
        None => reference.absent(
            "port",
            "is missing, but a Service may have several",
            "set the port of the Service",
        ),
    }
}

/// Checks that the route describes the fault that a reference names. References of other groups
/// and kinds may be known to other controllers.
pub(super) fn fault(reference: &Node<'_>, object: &Node<'_>, requests: RequestKind) {
    let text_of = |name| reference.text_of(name).unwrap_or_default();
    if reference.object().is_none() || !fault::is_reference(text_of("group"), text_of("kind")) {
        return;
    }
    let Some(name) = reference.require("name", "write the name of a fault") else {
        return;
    };
    let Some(text) = name.text() else {
        return;
    };
    let key = fault::annotation(text);
    let annotations = object.get("metadata").and_then(|it| it.get("annotations"));
    match annotations.and_then(|annotations| annotations.get(&key)) {
        None => {
            let problem = "is not a fault, because the route has no annotation that describes it";
            name.invalid(problem, &format!("add {}", super::shorten(&key)));
        }
        Some(annotation) => {
            if let Some(described) = annotation.text()
                && let Err(error) = fault::parse(text, described, requests)
            {
                annotation.invalid(&super::shorten(&error.problem), error.fix);
            }
        }
    }
}

/// Checks the backend and the share of a filter that mirrors requests.
pub(super) fn request_mirror(mirror: &Node<'_>) {
    if mirror.object().is_none() {
        return;
    }
    if let Some(reference) = mirror.require("backendRef", "write the backend of the copies") {
        backend(&reference);
    }
    let percent = mirror.get("percent");
    let fraction = mirror.get("fraction");
    if let Some(percent) = &percent
        && percent
            .integer::<u32>("a percentage")
            .is_some_and(|percent| percent > 100)
    {
        percent.invalid("is not a percentage", "write a number from 0 to 100");
    }
    let Some(fraction) = fraction else {
        return;
    };
    if percent.is_some() {
        fraction.conflict("is set together with percent", "remove one of them");
    }
    let number = |name: &str| fraction.get(name)?.integer::<u32>("a number");
    let denominator = match fraction.get("denominator") {
        Some(_) => number("denominator"),
        None => Some(100),
    };
    if let (Some(numerator), Some(denominator)) = (number("numerator"), denominator)
        && (denominator == 0 || numerator > denominator)
    {
        fraction.conflict(
            "is not a share of the requests",
            "write a denominator above 0, and a numerator that is not larger",
        );
    }
}
