//! Evaluates facts: one step for everything that decides about the connection, in the order of the
//! decisions, and a verdict. A pure function, so that its tables need no mesh.

mod answer;
mod inbound;
mod kernel;
mod outbound;
mod policy;

#[cfg(test)]
mod tests;

use std::time::Duration;

use mesh_core::meta::Meta;
use serde::Serialize;

use super::facts::{Connection, Exchange, Facts, Place};
use super::kind::kind;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    pub(super) outcome: VerdictOutcome,
    pub(super) text: String,
    /// The status of the response, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) milliseconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum VerdictOutcome {
    Admitted,
    /// Admitted, or rather not stopped: a part of the mesh had no part in it.
    Bypassed,
    /// By policy.
    Refused,
    /// For another reason.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    pub(super) summary: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) details: Vec<String>,
    /// What would change the outcome: commands or objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) milliseconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Ok,
    /// It works, but not as in the mesh, or not as the client would expect.
    Notice,
    /// The connection or request ended here.
    Refused,
    /// It could not be found out.
    Unknown,
    /// It had no part in this connection.
    NotReached,
}

impl Step {
    fn new(name: &'static str, outcome: Outcome, summary: impl Into<String>) -> Self {
        Self {
            name,
            outcome,
            summary: summary.into(),
            details: Vec::new(),
            hints: Vec::new(),
            milliseconds: None,
        }
    }

    fn detail(mut self, detail: impl Into<String>) -> Self {
        self.details.push(detail.into());
        self
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    fn took(mut self, duration: Duration) -> Self {
        self.milliseconds = Some(milliseconds(duration));
        self
    }
}

pub(super) use self::inbound::inbound;
pub(super) use self::kernel::{dialled_by_proxy, is_arrival, is_through_proxy};

pub(super) fn evaluate(facts: &Facts) -> Report {
    let mut steps = vec![kernel::outbound(facts)];
    let bypasses = !is_through_proxy(facts);
    let later: [LaterStep; 7] = [
        (outbound::DISCOVERY, outbound::discovery, true),
        (outbound::ROUTE, outbound::route, true),
        (outbound::ENDPOINT, outbound::endpoint, false),
        (outbound::TLS, outbound::tls, false),
        (kernel::DELIVERY, kernel::delivery, false),
        (policy::NAME, policy::step, false),
        (answer::NAME, answer::step, false),
    ];
    for (name, step, is_of_client_proxy) in later {
        let ended = steps.iter().any(|step| step.outcome == Outcome::Refused);
        steps.push(match (ended, bypasses && is_of_client_proxy) {
            (true, _) if name == answer::NAME => answer::after_refusal(facts),
            (true, _) => Step::new(name, Outcome::NotReached, "not reached"),
            (false, true) => Step::new(name, Outcome::NotReached, NOT_PROXIED),
            (false, false) => step(facts),
        });
    }
    Report {
        verdict: verdict(facts, &steps),
        steps,
    }
}

const NOT_PROXIED: &str = "not asked: the connection does not go through the client's proxy";

fn verdict(facts: &Facts, steps: &[Step]) -> Verdict {
    let (status, after) = match &facts.connection {
        Connection::Made {
            exchange: Exchange::Response(response),
            ..
        } => (Some(response.status.as_u16()), Some(response.after)),
        Connection::Made { .. } | Connection::NotMade(_) | Connection::Failed(_) => (None, None),
    };
    let verdict = |outcome, text: String| Verdict {
        outcome,
        text,
        status,
        milliseconds: after.map(milliseconds),
    };
    if let Some(refused) = steps.iter().find(|step| step.outcome == Outcome::Refused) {
        let outcome = match refused.name {
            policy::NAME => VerdictOutcome::Refused,
            _ => VerdictOutcome::Failed,
        };
        return verdict(outcome, refused.summary.clone());
    }
    let of_mesh = [kernel::NAME, outbound::TLS, kernel::DELIVERY, policy::NAME];
    let bypass = steps
        .iter()
        .find(|step| step.outcome == Outcome::Notice && of_mesh.contains(&step.name));
    let (outcome, word) = match bypass {
        Some(_) => (VerdictOutcome::Bypassed, "not protected by the mesh"),
        None => (VerdictOutcome::Admitted, "admitted"),
    };
    if facts.place == Place::Machine {
        let text = match bypass {
            Some(step) => format!("{word}: {}", step.summary),
            None => format!("{word}, by agent and controllers; no connection was made"),
        };
        return verdict(outcome, text);
    }
    if let Connection::NotMade(reason) = &facts.connection {
        let reason = bypass.map_or(reason, |step| &step.summary);
        return verdict(VerdictOutcome::Bypassed, format!("not tried: {reason}"));
    }
    let took = after.map_or(String::new(), |after| format!(" in {}", show(after)));
    let text = match status {
        Some(status) if status >= 500 => {
            format!("{word}: the application answered {status}{took}")
        }
        Some(status) => format!("{word}: {status}{took}"),
        None => format!("{word}: connected{took}"),
    };
    match bypass {
        Some(step) => verdict(outcome, format!("{text} ({})", step.summary)),
        None => verdict(outcome, text),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    // The clocks resolve microseconds.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// A step, and whether it is a part of the client's proxy.
type LaterStep = (&'static str, fn(&Facts) -> Step, bool);

/// Shows a duration with two significant digits or milliseconds.
pub(super) fn show(duration: Duration) -> String {
    show_milliseconds(milliseconds(duration))
}

pub(super) fn show_milliseconds(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:.2} ms"),
        value if value < 100.0 => format!("{value:.1} ms"),
        value => format!("{value:.0} ms"),
    }
}

/// Shows the object that a part of a policy comes from: `Server shop/web`.
fn object(meta: &Meta) -> String {
    match meta {
        Meta::Default(name) => format!("default {name}"),
        Meta::Resource(resource) => {
            let section = if resource.section.is_empty() {
                String::new()
            } else {
                format!(" section {}", resource.section)
            };
            let namespace = match &*resource.namespace {
                "" => String::new(),
                namespace => format!("{namespace}/"),
            };
            format!(
                "{} {namespace}{}{section}",
                kind(&resource.kind),
                resource.name
            )
        }
    }
}

/// Adds the pod's namespace, since Linkerd's API leaves out the namespace of a Server.
fn in_namespace(meta: &Meta, namespace: &str) -> Meta {
    let mut meta = meta.clone();
    if let Meta::Resource(resource) = &mut meta
        && resource.namespace.is_empty()
    {
        resource.namespace = namespace.into();
    }
    meta
}
