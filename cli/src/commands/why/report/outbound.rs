//! The decisions of the client's proxy, by the responses of the controllers.

use http::HeaderMap;
use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Distribution, OutboundProtocol, OutboundRule};
use mesh_core::profile::Profile;
use mesh_core::route::http::RequestHead;
use mesh_core::route::{Route, RuleIndex, grpc, http as http_route};

use super::{Outcome, Step, kernel, object, show};
use crate::commands::why::facts::{Choice, EndpointLoad, Facts, RequestLine, Server};
use crate::commands::why::remedy;
use crate::output::count;

pub(super) const DISCOVERY: &str = "discovery";
pub(super) const ROUTE: &str = "route";
pub(super) const ENDPOINT: &str = "endpoint";
pub(super) const TLS: &str = "tls";

const OPAQUE: &str = "opaque: bytes are forwarded as they are, no HTTP route applies";

pub(super) fn discovery(facts: &Facts) -> Step {
    let address = facts.target.address;
    let profile = match &facts.discovery.profile {
        Ok(profile) => profile,
        Err(reason) => return Step::new(DISCOVERY, Outcome::Unknown, reason.clone()),
    };
    if let Some(endpoint) = &profile.endpoint {
        let summary = format!("{address} is {}", name(endpoint));
        return Step::new(DISCOVERY, Outcome::Ok, summary).detail("not balanced: one address");
    }
    let Some(service) = service(facts, profile) else {
        let summary = format!("{address} belongs to no Service and no pod: forwarded as it is");
        return Step::new(DISCOVERY, Outcome::Notice, summary);
    };
    match &facts.discovery.endpoints {
        Err(reason) => Step::new(
            DISCOVERY,
            Outcome::Unknown,
            format!("{address} is Service {service}; its endpoints are unknown: {reason}"),
        ),
        Ok(endpoints) if endpoints.is_empty() => Step::new(
            DISCOVERY,
            Outcome::Refused,
            format!(
                "failed: Service {service} has no endpoints for port {}",
                address.port()
            ),
        )
        .detail("no ready pod matches its selector and has the port")
        .hint(remedy::endpoints(&facts.place, &service)),
        Ok(endpoints) => {
            let number = count(endpoints.len(), "endpoint", "endpoints");
            let summary = format!("{address} is Service {service}, {number}");
            Step::new(DISCOVERY, Outcome::Ok, summary)
        }
    }
}

/// Returns the Service, as `NAMESPACE/NAME`.
fn service(facts: &Facts, profile: &Profile) -> Option<String> {
    let parent = profile.parent.as_ref();
    let from_parent = parent
        .filter(|parent| parent.kind() == "Service")
        .map(|parent| format!("{}/{}", parent.namespace(), parent.name()));
    let from_name = || {
        let mut labels = profile.fqn.as_deref()?.split('.');
        let (name, namespace) = (labels.next()?, labels.next()?);
        Some(format!("{namespace}/{name}"))
    };
    from_parent
        .or_else(|| facts.target.service.clone())
        .or_else(from_name)
}

pub(super) fn route(facts: &Facts) -> Step {
    let none = Profile::default();
    let profile = facts.discovery.profile.as_ref().unwrap_or(&none);
    let policy = match (&facts.discovery.policy, &facts.request) {
        (Ok(policy), _) => policy,
        (Err(_), Some(request)) if profile.replaces_routes() => {
            return profile_route(profile, request);
        }
        (Err(reason), _) => return Step::new(ROUTE, Outcome::Unknown, reason.clone()),
    };
    let headers = HeaderMap::new();
    let request = facts.request.as_ref();
    let request = request.map(|it| (it, it.head(&facts.target.authority, &headers)));
    let step = |summary: &str| Step::new(ROUTE, Outcome::Ok, summary);
    match (&policy.protocol, &request) {
        (OutboundProtocol::Opaque(_), _) => step(OPAQUE),
        (protocol, _) if protocol.opaque(profile).is_some() => step(OPAQUE),
        (OutboundProtocol::Tls(_), None) => step("TLS of the application, passed through"),
        (OutboundProtocol::Tls(_), Some(_)) => {
            step("TLS of the application, passed through: the request is not looked at")
        }
        (OutboundProtocol::Detect { timeout, .. }, None) => step(&format!(
            "the protocol is detected from the first bytes, within {}",
            show(*timeout)
        )),
        (OutboundProtocol::Http1(_), None) => step("HTTP/1, one route a request"),
        (OutboundProtocol::Http2(_), None) => step("HTTP/2, one route a request"),
        (OutboundProtocol::Grpc(_), None) => step("gRPC, one route a call"),
        (_, Some((request, _))) if profile.replaces_routes() => profile_route(profile, request),
        (
            OutboundProtocol::Detect { http1: http, .. }
            | OutboundProtocol::Http1(http)
            | OutboundProtocol::Http2(http),
            Some((_, head)),
        ) => route_step(&http.routes, http_route::find(&http.routes, head), head),
        (OutboundProtocol::Grpc(grpc), Some((_, head))) => {
            route_step(&grpc.routes, grpc::find(&grpc.routes, head), head)
        }
    }
}

fn profile_route(profile: &Profile, request: &RequestLine) -> Step {
    let path = request.path.split('?').next().unwrap_or_default();
    let found = profile.route(&request.method, path);
    let name = found.and_then(|route| route.labels.get("route"));
    let summary = match name {
        Some(name) => format!("route {name:?} of the ServiceProfile"),
        None => "no route of the ServiceProfile matches: its defaults apply".to_owned(),
    };
    let timeout = found.and_then(|route| route.timeout);
    let step = Step::new(ROUTE, Outcome::Ok, summary);
    match timeout {
        Some(timeout) => step.detail(format!("timeout {}", show(timeout))),
        None => step,
    }
}

fn route_step<M, T>(
    routes: &[Route<M, OutboundRule<T>>],
    found: Option<RuleIndex>,
    head: &RequestHead<'_>,
) -> Step {
    let Some(at) = found else {
        let RequestHead { method, path, .. } = head;
        let summary = format!("failed: no route of the target matches {method} {path}");
        return Step::new(ROUTE, Outcome::Refused, summary);
    };
    let route = &routes[at.route];
    rule_step(&route.meta, at.rule, &route.rules[at.rule].action)
}

fn rule_step<T>(route: &Meta, index: usize, rule: &OutboundRule<T>) -> Step {
    let summary = match route {
        Meta::Default(_) => "the default route".to_owned(),
        Meta::Resource(_) => format!("rule {index} of {}", object(route)),
    };
    let mut step = Step::new(ROUTE, Outcome::Ok, summary);
    if !rule.filters.is_empty() {
        step = step.detail(count(rule.filters.len(), "filter", "filters"));
    }
    if let Some(timeout) = rule.timeouts.request {
        step = step.detail(format!("request timeout {}", show(timeout)));
    }
    let backends: Vec<String> = match &rule.backends {
        Distribution::Empty => Vec::new(),
        Distribution::FirstAvailable(backends) => {
            let names = backends.iter().map(|it| object(&it.backend.meta));
            names.collect()
        }
        Distribution::RandomAvailable(backends) => {
            let names = backends.iter();
            names
                .map(|(it, weight)| format!("{} (weight {weight})", object(&it.backend.meta)))
                .collect()
        }
    };
    if backends.is_empty() {
        step.detail("it has no backend")
    } else {
        step.detail(format!("to {}", backends.join(", ")))
    }
}

pub(super) fn endpoint(facts: &Facts) -> Step {
    let server = match &facts.server {
        Ok(server) => server,
        Err(reason) => return Step::new(ENDPOINT, Outcome::Unknown, reason.clone()),
    };
    let Server { pod, address, .. } = server;
    let of = facts.discovery.endpoints.as_ref().map_or(0, Vec::len);
    let chosen = match (server.chosen_by, kernel::is_through_proxy(facts)) {
        (Choice::Reported, _) => format!("{address} ({pod})"),
        (Choice::Seen, _) => format!("{address} ({pod}), to which the proxy connected"),
        (Choice::Only, _) => format!("{address} ({pod}), the only one"),
        (Choice::Example, true) => format!("one of {of}; {address} ({pod}) stands for them"),
        (Choice::Example, false) => format!(
            "one of {of}, chosen by the cluster's own balancing; {address} ({pod}) stands for them"
        ),
    };
    let outcome = match server.chosen_by {
        Choice::Reported | Choice::Seen | Choice::Only => Outcome::Ok,
        Choice::Example => Outcome::Unknown,
    };
    let mut step = Step::new(ENDPOINT, outcome, chosen);
    if !kernel::is_through_proxy(facts) {
        return step;
    }
    match &facts.discovery.load {
        Ok(load) => {
            // The proxy also counts by the address that the application called.
            let endpoints = facts.discovery.endpoints.as_ref();
            let endpoints = endpoints.map_or(&[][..], Vec::as_slice);
            let is_endpoint =
                |load: &&EndpointLoad| endpoints.iter().any(|it| it.addr == load.address);
            let mut load: Vec<&EndpointLoad> = load.iter().filter(is_endpoint).collect();
            load.sort_by_key(|it| (it.address != *address, it.address));
            step.details
                .extend(load.into_iter().take(MAX_LOADS).map(show_load));
            step
        }
        Err(reason) => step.detail(format!("the load of the endpoints is unknown: {reason}")),
    }
}

/// Maximum number of endpoints whose load is shown, the chosen one first.
const MAX_LOADS: usize = 5;

fn show_load(load: &EndpointLoad) -> String {
    let latency = load.mean_latency.map_or(String::new(), |latency| {
        format!(", mean latency {}", show(latency))
    });
    format!(
        "{}: {} before, {}{latency}",
        load.address,
        count(
            usize::try_from(load.requests).unwrap_or(usize::MAX),
            "request",
            "requests"
        ),
        count(
            usize::try_from(load.open_connections).unwrap_or(usize::MAX),
            "open connection",
            "open connections"
        )
    )
}

/// Whether the connection between the pods is mutually authenticated, as far as it is known.
pub(super) fn is_secured(facts: &Facts) -> bool {
    if !kernel::is_through_proxy(facts) {
        return false;
    }
    if let Ok(Some(tapped)) = &facts.client_tap {
        return tapped.destination_labels.get("tls") == Some("true");
    }
    discovered(facts).is_some_and(|endpoint| endpoint.tls.is_some())
}

/// Returns the server as discovery describes it.
fn discovered(facts: &Facts) -> Option<&Endpoint> {
    let address = facts.server.as_ref().ok()?.address;
    let of_profile = facts.discovery.profile.as_ref().ok();
    let of_profile = of_profile.and_then(|profile| profile.endpoint.as_ref());
    let endpoints = facts.discovery.endpoints.as_ref().ok();
    let all = endpoints.into_iter().flatten().chain(of_profile);
    all.into_iter().find(|endpoint| endpoint.addr == address)
}

pub(super) fn tls(facts: &Facts) -> Step {
    if !kernel::is_through_proxy(facts) {
        let summary = "plaintext: the connection does not go through the client's proxy";
        return Step::new(TLS, Outcome::Notice, summary);
    }
    let tapped = facts.client_tap.as_ref().ok().and_then(Option::as_ref);
    let reported = tapped.and_then(|tapped| tapped.destination_labels.get("server_id"));
    let described = discovered(facts).and_then(|endpoint| endpoint.tls.as_ref());
    let server_id = reported.or(described.map(|tls| tls.id.as_str()));
    if is_secured(facts)
        && let Some(server_id) = server_id
    {
        return secured(facts, server_id, reported.is_some());
    }
    let Ok(server) = &facts.server else {
        return Step::new(TLS, Outcome::Unknown, "unknown: the server is not known");
    };
    let pod = &server.pod;
    let step = Step::new(
        TLS,
        Outcome::Notice,
        format!(
            "plaintext: {}",
            match (pod.is_meshed(), tapped.is_some()) {
                (false, _) => format!("{pod} has no proxy"),
                (true, true) => "the client's proxy reported no TLS".to_owned(),
                (true, false) => format!("discovery gives no identity for {}", server.address),
            }
        ),
    );
    if pod.is_meshed() {
        step
    } else {
        step.hint(remedy::inject(&facts.place, pod))
    }
}

fn secured(facts: &Facts, server_id: &str, is_reported: bool) -> Step {
    let by_server = facts.server.as_ref().ok();
    let by_server = by_server.and_then(|server| server.tap.as_ref().ok()?.as_ref());
    let client_id = by_server.and_then(|tapped| tapped.source_labels.get("client_id"));
    let own = facts.client.identity.as_ref();
    let client = client_id.or(own.map(mesh_core::identity::Identity::as_str));
    let step = Step::new(TLS, Outcome::Ok, "mutual TLS between the proxies")
        .detail(format!("client {}", client.unwrap_or("without identity")))
        .detail(format!("server {server_id}"));
    if is_reported {
        step
    } else {
        step.detail("expected by discovery; no proxy reported it")
    }
}

fn name(endpoint: &Endpoint) -> String {
    match endpoint.labels.get("pod") {
        Some(pod) => {
            let namespace = endpoint.labels.get("namespace").unwrap_or_default();
            format!("pod {namespace}/{pod}")
        }
        None => endpoint.addr.to_string(),
    }
}
