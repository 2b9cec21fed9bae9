//! The response of the application, or what became of the connection.

use super::{Outcome, Step, show};
use crate::commands::why::facts::{Connection, Exchange, Facts, Response, TappedRequest};

pub(super) const NAME: &str = "answer";

pub(super) fn step(facts: &Facts) -> Step {
    match &facts.connection {
        Connection::Failed(reason) => Step::new(NAME, Outcome::Refused, reason.clone()),
        Connection::NotMade(reason) => {
            let summary = format!("no connection was made: {reason}");
            Step::new(NAME, Outcome::Unknown, summary)
        }
        Connection::Made { exchange, .. } => match exchange {
            Exchange::Open(time) => {
                let summary = format!("connected; it was open for {}", show(*time));
                Step::new(NAME, Outcome::Ok, summary)
                    .detail("no request was sent: -- GET /PATH sends one")
            }
            Exchange::Closed(after) => Step::new(
                NAME,
                Outcome::Refused,
                format!("failed: the connection was closed after {}", show(*after)),
            )
            .took(*after),
            Exchange::NoResponse { reason, after } => Step::new(
                NAME,
                Outcome::Refused,
                format!("failed: no response: {reason}"),
            )
            .took(*after),
            Exchange::Response(response) => of_response(facts, response),
        },
    }
}

/// The step where another one refused the request.
pub(super) fn after_refusal(facts: &Facts) -> Step {
    let Connection::Made {
        exchange: Exchange::Response(response),
        ..
    } = &facts.connection
    else {
        return Step::new(NAME, Outcome::NotReached, "the application was not reached");
    };
    let by = match response.proxy_error {
        Some(_) => "the client's proxy",
        None => "the server's proxy",
    };
    let summary = format!(
        "the application was not reached; {by} answered {}",
        response.status.as_u16()
    );
    Step::new(NAME, Outcome::NotReached, summary).took(response.after)
}

fn of_response(facts: &Facts, response: &Response) -> Step {
    let status = response.status.as_u16();
    if let Some(error) = &response.proxy_error {
        let summary = format!("failed: the client's proxy answered {status}: {error}");
        return Step::new(NAME, Outcome::Refused, summary).took(response.after);
    }
    let outcome = if response.status.is_server_error() {
        Outcome::Notice
    } else {
        Outcome::Ok
    };
    let summary = format!(
        "the application answered {status}, {} bytes",
        response.body_bytes
    );
    let step = Step::new(NAME, outcome, summary).took(response.after);
    let at_server = facts
        .server
        .as_ref()
        .ok()
        .and_then(|it| it.tap.as_ref().ok());
    let parts = [
        time("application", at_server.and_then(Option::as_ref)),
        time(
            "from the client's proxy on",
            facts.client_tap.as_ref().ok().and_then(Option::as_ref),
        ),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        step
    } else {
        step.detail(parts.join(", "))
    }
}

fn time(name: &str, tapped: Option<&TappedRequest>) -> Option<String> {
    let response = tapped?.response?;
    Some(format!("{name} {}", show(response.after)))
}
