//! What the kernel decides: in the client's pod about connect(2), in the server's pod about the
//! arriving connection.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mesh_core::annotation;
use mesh_core::node::Tier;
use mesh_core::redirection::{Hook, RedirectionEvent};

use super::{Outcome, Step};
use crate::commands::why::facts::{Connection, Enrolment, Facts, Server, Workload};
use crate::commands::why::remedy;

pub(super) const NAME: &str = "kernel";
pub(super) const DELIVERY: &str = "delivery";

pub(super) fn outbound(facts: &Facts) -> Step {
    if let Connection::Failed(reason) = &facts.connection {
        return Step::new(NAME, Outcome::Refused, format!("cannot connect: {reason}"));
    }
    if let Some(step) = without_redirection(&facts.client, &facts.target.address) {
        return step.hint(remedy::inject(&facts.place, &facts.client));
    }
    let target = facts.target.address;
    let connect = connect_event(facts);
    let step = match (connect, &facts.client_kernel) {
        (Some(event), _) => observed(event, &facts.client),
        (None, _) if facts.client.skip_outbound.contains(target.port()) => {
            skipped_outbound(&facts.client, target.port())
        }
        (None, _) if matches!(facts.client_tap, Ok(Some(_))) => {
            let summary = format!("{target} redirected to the client's proxy, which reported it");
            Step::new(NAME, Outcome::Ok, summary)
        }
        (None, Ok(_)) => Step::new(
            NAME,
            Outcome::Unknown,
            format!("the kernel reported no decision about {target}"),
        ),
        (None, Err(_)) => Step::new(
            NAME,
            Outcome::Unknown,
            format!("{target} is to be redirected; the decision was not observed"),
        ),
    };
    let step = match (&facts.client_kernel, connect) {
        (Err(reason), _) => step.detail(format!("no trace of the kernel programs: {reason}")),
        (Ok(events), Some(connect)) => match accept_event(facts, events) {
            // From the decision about connect(2) to the end of the handshake with the proxy.
            Some(accept) => step.took(Duration::from_nanos(
                accept.monotonic_ns.saturating_sub(connect.monotonic_ns),
            )),
            None => step,
        },
        (Ok(_), None) => step,
    };
    step.detail(place(&facts.client))
}

/// Whether the connection goes through the client's proxy, as far as it is known.
pub(in crate::commands::why) fn is_through_proxy(facts: &Facts) -> bool {
    if matches!(facts.client_tap, Ok(Some(_))) {
        return true;
    }
    let client = &facts.client;
    let port = facts.target.address.port();
    match connect_event(facts) {
        Some(event) => event.verdict == "outbound-redirected",
        None => {
            client.is_meshed()
                && !matches!(
                    client.enrolment,
                    Ok(Enrolment::Absent | Enrolment::Waiting(_))
                )
                && !client.skip_outbound.contains(port)
        }
    }
}

/// Returns the address in `among` that the client's proxy connected to, if the kernel saw it. The
/// proxy may have connected to another port of the address, the port of the server's proxy.
pub(in crate::commands::why) fn dialled_by_proxy(
    events: &[RedirectionEvent],
    among: &[SocketAddr],
) -> Option<SocketAddr> {
    let of_ip = |ip: IpAddr| among.iter().copied().find(|address| address.ip() == ip);
    let mut by_proxy = events.iter().filter(|event| {
        event.hook == Hook::Connect
            && event.verdict == "outbound-proxy"
            && of_ip(event.destination.ip()).is_some()
    });
    of_ip(by_proxy.next_back()?.destination.ip())
}

/// Returns the event of the client's connect(2). Other processes of the pod may connect to the same
/// address. For a redirected connection, it is the last event before the proxy's accept(2).
fn connect_event(facts: &Facts) -> Option<&RedirectionEvent> {
    let events = facts.client_kernel.as_ref().ok()?;
    let mut connects = events.iter().filter(|event| {
        event.hook == Hook::Connect
            && event.destination == facts.target.address
            && event.verdict != "outbound-proxy"
    });
    match accept_event(facts, events) {
        Some(accept) => connects.rfind(|event| event.monotonic_ns <= accept.monotonic_ns),
        None => connects.next(),
    }
}

/// Returns the event of the proxy's accept(2) of the client's connection.
fn accept_event<'a>(facts: &Facts, events: &'a [RedirectionEvent]) -> Option<&'a RedirectionEvent> {
    let Connection::Made { local, .. } = &facts.connection else {
        return None;
    };
    events
        .iter()
        .find(|event| event.hook == Hook::Accept && event.source == Some(*local))
}

/// Explains a client whose connections are not redirected at all.
fn without_redirection(client: &Workload, target: &SocketAddr) -> Option<Step> {
    let summary = match &client.enrolment {
        _ if !client.is_meshed() => {
            format!("{target} is not redirected: {client} has no proxy (it is not meshed)")
        }
        Ok(Enrolment::Waiting(reason)) => {
            format!("{target} is not redirected: {client} is not enrolled: {reason}")
        }
        Ok(Enrolment::Absent) => {
            format!("{target} is not redirected: the node agent does not know {client}")
        }
        Ok(Enrolment::Enrolled(_)) | Err(_) => return None,
    };
    Some(Step::new(NAME, Outcome::Notice, summary))
}

fn observed(event: &RedirectionEvent, client: &Workload) -> Step {
    let to = event.destination;
    let notice = |reason: &str| {
        Step::new(
            NAME,
            Outcome::Notice,
            format!("{to} is not redirected: {reason}"),
        )
    };
    match event.verdict.as_str() {
        "outbound-redirected" => {
            let proxy = event
                .redirected_to
                .map_or("the client's proxy".to_owned(), |listener| {
                    format!("the client's proxy at {listener}")
                });
            Step::new(NAME, Outcome::Ok, format!("{to} redirected to {proxy}"))
        }
        "outbound-skipped-port" => skipped_outbound(client, to.port()),
        "outbound-local" => notice("it is an own address of the client"),
        "outbound-unroutable" => notice("a proxy cannot connect to such an address"),
        "outbound-no-address" => {
            notice("the client has no address of this family, or the family is not redirected")
        }
        "outbound-foreign-source" => notice("the socket is bound to a foreign address"),
        "outbound-untracked" => Step::new(
            NAME,
            Outcome::Refused,
            "refused by the client's proxy: the client has too many connections in flight",
        ),
        "outbound-refused" => Step::new(
            NAME,
            Outcome::Refused,
            "refused by the kernel: the client's proxy does not listen",
        )
        .hint(remedy::log(client)),
        other => Step::new(
            NAME,
            Outcome::Unknown,
            format!("{to}: verdict {other:?}, which this version does not know"),
        ),
    }
}

fn skipped_outbound(client: &Workload, port: u16) -> Step {
    let summary = format!(
        "not redirected: port {port} is in {} of {client}",
        annotation::SKIP_OUTBOUND_PORTS
    );
    Step::new(NAME, Outcome::Notice, summary).hint(remedy::unskip(client, port))
}

fn place(client: &Workload) -> String {
    match &client.enrolment {
        Ok(Enrolment::Enrolled(tier)) => format!("{client} is enrolled, tier {tier}"),
        Ok(Enrolment::Waiting(_) | Enrolment::Absent) => format!("{client} is not enrolled"),
        Err(reason) => format!("the tier of {client} is unknown: {reason}"),
    }
}

/// How the connection enters the server's pod.
pub(super) fn delivery(facts: &Facts) -> Step {
    let server = match &facts.server {
        Ok(server) => server,
        Err(reason) => return Step::new(DELIVERY, Outcome::Unknown, reason.clone()),
    };
    let Server { pod, address, .. } = server;
    if !pod.is_meshed() {
        let summary = format!("directly to the application: {pod} has no proxy");
        return Step::new(DELIVERY, Outcome::Notice, summary)
            .hint(remedy::inject(&facts.place, pod));
    }
    if pod.skip_inbound.contains(address.port()) {
        return skipped_inbound(pod, address.port());
    }
    match &pod.enrolment {
        Ok(Enrolment::Waiting(reason)) => {
            let summary = format!("directly to the application: {pod} is not enrolled: {reason}");
            return Step::new(DELIVERY, Outcome::Notice, summary);
        }
        Ok(Enrolment::Absent) => {
            let summary =
                format!("directly to the application: the node agent does not know {pod}");
            return Step::new(DELIVERY, Outcome::Notice, summary);
        }
        Ok(Enrolment::Enrolled(_)) | Err(_) => {}
    }
    arrival(facts, server)
}

/// Whether the event is about a connection of the client that arrives in the server's pod.
pub(in crate::commands::why) fn is_arrival(
    event: &RedirectionEvent,
    client: IpAddr,
    server: IpAddr,
) -> bool {
    event.hook == Hook::Lookup
        && event.destination.ip() == server
        && event.verdict.starts_with("inbound-")
        && event.source.is_none_or(|source| source.ip() == client)
}

fn arrival(facts: &Facts, server: &Server) -> Step {
    let Server { pod, address, .. } = server;
    let steered = |by: String| {
        Step::new(
            DELIVERY,
            Outcome::Ok,
            format!("given to the proxy of {pod} {by}"),
        )
    };
    let event = server.kernel.as_ref().ok().and_then(|events| {
        events
            .iter()
            .find(|event| is_arrival(event, facts.client.ip, address.ip()))
    });
    if let Some(event) = event {
        return match event.verdict.as_str() {
            "inbound-steered" => steered("by the kernel".to_owned()),
            "inbound-skipped-port" => skipped_inbound(pod, event.destination.port()),
            "inbound-skipped-subnet" => Step::new(
                DELIVERY,
                Outcome::Notice,
                format!(
                    "directly to the application: the client is in {} of {pod}",
                    annotation::SKIP_SUBNETS
                ),
            ),
            "inbound-refused" => Step::new(
                DELIVERY,
                Outcome::Refused,
                format!("refused by the kernel: the proxy of {pod} does not listen"),
            ),
            "inbound-failed-open" => Step::new(
                DELIVERY,
                Outcome::Notice,
                format!("directly to the application: the proxy of {pod} does not listen"),
            ),
            other => Step::new(
                DELIVERY,
                Outcome::Unknown,
                format!("verdict {other:?} in {pod}, which this version does not know"),
            ),
        };
    }
    if matches!(server.tap, Ok(Some(_))) {
        return steered("which reported the request".to_owned());
    }
    // A pooled connection of the client's proxy is older than the trace.
    let step = match &pod.enrolment {
        Ok(Enrolment::Enrolled(Tier::Full)) => steered("(tier full)".to_owned()),
        Ok(Enrolment::Enrolled(tier)) => steered(format!("(tier {tier}, by a packet filter)")),
        _ => steered("if its pod is enrolled".to_owned()),
    };
    match &server.kernel {
        Ok(_) => step.detail("no new connection arrived: the client's proxy reused one"),
        Err(reason) => step.detail(format!("no trace of the kernel programs: {reason}")),
    }
}

fn skipped_inbound(pod: &Workload, port: u16) -> Step {
    let summary = format!(
        "directly to the application: port {port} is in {} of {pod}",
        annotation::SKIP_INBOUND_PORTS
    );
    Step::new(DELIVERY, Outcome::Notice, summary)
}
