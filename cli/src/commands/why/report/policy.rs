//! The inbound policy of the server's port: the report of its proxy, or the decision about the
//! client by the controllers' policy.

use std::collections::BTreeSet;

use mesh_core::identity::Identity;
use mesh_core::labels::Labels;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{Client, ClientTls, ServerPolicy, ServerProtocol};

use super::{Outcome, Step, in_namespace, kernel, object, outbound};
use crate::commands::why::authorization::{Decision, Mismatch, Reason, decide};
use crate::commands::why::facts::{Choice, Connection, Exchange, Facts, Server};
use crate::commands::why::kind::kind;
use crate::commands::why::remedy;

pub(super) const NAME: &str = "policy";

pub(super) fn step(facts: &Facts) -> Step {
    let server = match &facts.server {
        Ok(server) => server,
        Err(reason) => return Step::new(NAME, Outcome::Unknown, reason.clone()),
    };
    let pod = &server.pod;
    if !pod.is_meshed() {
        let summary = format!("none applies: {pod} has no proxy to enforce one");
        return Step::new(NAME, Outcome::NotReached, summary);
    }
    if pod.skip_inbound.contains(server.address.port()) {
        let summary = format!(
            "none applies: port {} of {pod} bypasses its proxy",
            server.address.port()
        );
        return Step::new(NAME, Outcome::NotReached, summary);
    }
    if let Ok(Some(tapped)) = &server.tap {
        return reported(&tapped.destination_labels);
    }
    let step = match &server.policy {
        Ok(policy) => evaluated(facts, server, policy),
        Err(reason) => Step::new(NAME, Outcome::Unknown, reason.clone()),
    };
    let step = match &server.tap {
        Err(reason) => step.detail(format!("its proxy was not asked: {reason}")),
        Ok(_) => step,
    };
    match server.chosen_by {
        Choice::Example => step.detail(format!("evaluated for {pod}")),
        Choice::Reported | Choice::Seen | Choice::Only => step,
    }
}

/// The server's proxy reports only requests that it admits, with the objects that admitted them.
fn reported(labels: &Labels) -> Step {
    let name = |prefix: &str| {
        let get = |part: &str| labels.get(&format!("{prefix}_{part}")).unwrap_or_default();
        format!("{} {}", kind(get("kind")), get("name"))
    };
    let summary = format!("{} admitted it by {}", name("srv"), name("authz"));
    Step::new(NAME, Outcome::Ok, summary).detail(format!("route: {}", name("route")))
}

fn evaluated(facts: &Facts, server: &Server, policy: &ServerPolicy) -> Step {
    let identity = facts.client.identity.as_ref();
    let tls = match (outbound::is_secured(facts), identity) {
        (true, Some(identity)) => ClientTls::Identified(identity),
        (true, None) => ClientTls::Anonymous,
        (false, _) => ClientTls::None,
    };
    let client = Client {
        ip: facts.client.ip,
        tls,
    };
    let authority = facts.target.authority.as_str();
    let request = facts.request.as_ref().map(|line| (line, authority));
    let enforcing = in_namespace(&policy.meta, &server.pod.namespace);
    let by = enforcer(&enforcing);
    match decide(policy, &client, request) {
        Decision::Admitted {
            route,
            authorization,
        } => admitted(facts, server, policy, route.as_ref(), &authorization),
        Decision::NoRoute => {
            let line = facts.request.as_ref();
            let line = line.map_or(String::new(), |it| format!("{} {}", it.method, it.path));
            let summary = format!("refused by {by}: none of its routes matches {line}");
            consistent(facts, &[404], Step::new(NAME, Outcome::Refused, summary))
        }
        Decision::Refused { route, mismatches } => {
            let why = reason(&client, &mismatches);
            let summary = format!("refused by {by}: {why}");
            let mut step = Step::new(NAME, Outcome::Refused, summary);
            if let Some(route) = route.as_ref().filter(|route| is_resource(route)) {
                step = step.detail(format!("route: {}", object(route)));
            }
            for mismatch in &mismatches {
                step = step.detail(show(mismatch, &client));
            }
            // A policy names identities, and a connection around the client's proxy has none.
            if kernel::is_through_proxy(facts) || !facts.client.is_meshed() {
                step.hints = remedy::authorize(facts, server, &enforcing, route.as_ref());
            }
            let step = consistent(facts, &[401, 403], step);
            match (&facts.request, &policy.protocol) {
                (None, ServerProtocol::Opaque | ServerProtocol::Tls) => step,
                (None, _) => step.detail("HTTP requests get 403; other connections are closed"),
                (Some(_), _) => step,
            }
        }
    }
}

/// Shows the object that decides in sentences: `Server shop/web`.
pub(super) fn enforcer(meta: &Meta) -> String {
    match meta {
        Meta::Default(name) => format!("default inbound policy {name}"),
        Meta::Resource(_) => object(meta),
    }
}

fn is_resource(meta: &Meta) -> bool {
    matches!(meta, Meta::Resource(_))
}

/// Compares an admission by policy with the response.
fn admitted(
    facts: &Facts,
    server: &Server,
    policy: &ServerPolicy,
    route: Option<&Meta>,
    authorization: &Meta,
) -> Step {
    let by = enforcer(&in_namespace(&policy.meta, &server.pod.namespace));
    let summary = match authorization {
        Meta::Default(_) => format!("{by} admits it"),
        Meta::Resource(_) => format!("{by} admits it by {}", object(authorization)),
    };
    // The proxy reports each request that it admits, so that the response is its own.
    let is_of_proxy = matches!(server.tap, Ok(None)) && server.chosen_by == Choice::Reported;
    let limit = match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => http.rate_limit.as_ref(),
        ServerProtocol::Grpc(_) | ServerProtocol::Opaque | ServerProtocol::Tls => None,
    };
    match (status(facts), limit) {
        (Some(429), Some(limit)) if is_of_proxy => Step::new(
            NAME,
            Outcome::Refused,
            format!("refused by {}: its limit is reached", object(&limit.meta)),
        ),
        (Some(status @ (401 | 403 | 404)), _) if is_of_proxy => Step::new(
            NAME,
            Outcome::Refused,
            format!("refused by the proxy of {} with {status}", server.pod),
        )
        .detail(format!("the policy of the controllers says: {summary}"))
        .hint("run the command again: the policy may have just changed"),
        _ => {
            let step = Step::new(NAME, Outcome::Ok, summary);
            match route.filter(|route| is_resource(route)) {
                Some(route) => step.detail(format!("route: {}", object(route))),
                None => step,
            }
        }
    }
}

/// Turns a refusal that the response contradicts into a notice.
fn consistent(facts: &Facts, statuses: &[u16], step: Step) -> Step {
    match status(facts) {
        Some(status) if !statuses.contains(&status) => Step {
            outcome: Outcome::Notice,
            summary: format!(
                "answered {status}, though by the current policy {}",
                step.summary
            ),
            ..step
        },
        _ => step,
    }
}

fn status(facts: &Facts) -> Option<u16> {
    match &facts.connection {
        Connection::Made {
            exchange: Exchange::Response(response),
            ..
        } => Some(response.status.as_u16()),
        Connection::Made { .. } | Connection::NotMade(_) | Connection::Failed(_) => None,
    }
}

/// States the reason that is closest to an admission: an identity that is not named before a
/// missing one, and both before a network.
fn reason(client: &Client<'_>, mismatches: &[Mismatch]) -> String {
    let any = |is: fn(&Reason) -> bool| mismatches.iter().any(|mismatch| is(&mismatch.reason));
    let identity = match client.tls {
        ClientTls::Identified(identity) => Some(Identity::as_str(identity)),
        ClientTls::Anonymous | ClientTls::None => None,
    };
    if mismatches.is_empty() {
        return "no AuthorizationPolicy or ServerAuthorization authorizes any client".to_owned();
    }
    if any(|reason| matches!(reason, Reason::OtherIdentity(_)))
        && let Some(identity) = identity
    {
        let kinds = kinds(mismatches, |reason| {
            matches!(reason, Reason::OtherIdentity(_))
        });
        return format!("no {kinds} names identity {identity}");
    }
    if any(|reason| matches!(reason, Reason::NeedsTls | Reason::NeedsIdentity)) {
        return "it requires an identity, and the client has none".to_owned();
    }
    let objects: Vec<String> = mismatches
        .iter()
        .map(|mismatch| enforcer(&mismatch.authorization))
        .collect();
    format!(
        "the client's address {} is in no network of {}",
        client.ip,
        list(&objects, "a policy")
    )
}

/// Returns the kinds of the authorizations with such a reason, as alternatives.
fn kinds(mismatches: &[Mismatch], is: fn(&Reason) -> bool) -> String {
    let with_reason = mismatches.iter().filter(|mismatch| is(&mismatch.reason));
    let kinds: BTreeSet<&str> = with_reason
        .map(|mismatch| match &mismatch.authorization {
            Meta::Default(_) => "default policy",
            Meta::Resource(resource) => kind(&resource.kind),
        })
        .collect();
    kinds.into_iter().collect::<Vec<_>>().join(" or ")
}

fn show(mismatch: &Mismatch, client: &Client<'_>) -> String {
    let by = object(&mismatch.authorization);
    match &mismatch.reason {
        Reason::Network(networks) => format!(
            "{by}: {} is not in {}",
            client.ip,
            list(networks, "its networks")
        ),
        Reason::NeedsTls => format!("{by}: requires TLS of the mesh; the connection is plaintext"),
        Reason::NeedsIdentity => format!("{by}: requires an identity; the client sent none"),
        Reason::OtherIdentity(names) => {
            format!("{by}: names {}", list(names, "no identity"))
        }
    }
}

/// Maximum number of names in a line.
const MAX_NAMES: usize = 4;

fn list(names: &[String], none: &str) -> String {
    if names.is_empty() {
        return none.to_owned();
    }
    let shown = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
