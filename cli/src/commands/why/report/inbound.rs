//! The inbound side of a systemd unit: whether its connections go to its proxy, who may connect to
//! each of its ports, and the decisions so far.

use mesh_core::annotation;
use mesh_core::machine::UnitState;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{Authorization, ServerPolicy, ServerProtocol};

use super::policy::enforcer;
use super::{Outcome, Report, Step, Verdict, VerdictOutcome, in_namespace, object};
use crate::commands::why::authorization;
use crate::commands::why::facts::{Fact, Inbound, Workload};
use crate::facts::host::Unit;
use crate::output::count;

/// Evaluates the facts about connections to a unit.
pub(in crate::commands::why) fn inbound(unit: &Unit, facts: &Inbound) -> Report {
    let mut steps = vec![redirection(unit, &facts.unit), proxy(unit)];
    let policies = facts.policies.iter();
    steps.extend(policies.map(|(port, policy)| of_port(&facts.unit, *port, policy)));
    if facts.policies.is_empty() {
        let summary = format!("{} listens on no port for other hosts", unit.name());
        steps.push(Step::new(PORT, Outcome::Notice, summary));
    }
    steps.push(counters(unit));
    let decisive = steps[..2]
        .iter()
        .find(|step| step.outcome != Outcome::Ok)
        .unwrap_or(&steps[0]);
    Report {
        verdict: Verdict {
            outcome: match decisive.outcome {
                Outcome::Ok => VerdictOutcome::Admitted,
                Outcome::Refused => VerdictOutcome::Failed,
                Outcome::Notice | Outcome::Unknown | Outcome::NotReached => {
                    VerdictOutcome::Bypassed
                }
            },
            text: decisive.summary.clone(),
            status: None,
            milliseconds: None,
        },
        steps,
    }
}

const REDIRECTION: &str = "kernel";
const PROXY: &str = "proxy";
const PORT: &str = "port";
const COUNTERS: &str = "counters";

fn redirection(unit: &Unit, workload: &Workload) -> Step {
    let status = &unit.status;

    let step = match status.state {
        UnitState::Redirected => {
            let summary = format!("connections of other hosts to {workload} go to its proxy");
            Step::new(REDIRECTION, Outcome::Ok, summary)
        }
        UnitState::Waiting => {
            let summary = format!("{workload} is not redirected: its proxy has not listened yet");
            let fix = format!("systemctl enable --now {}", unit.proxy_unit);
            Step::new(REDIRECTION, Outcome::Notice, summary).hint(fix)
        }
    };
    let mut step = step.detail(format!("cgroups {}, tier full", status.cgroups.join(" ")));
    for key in [annotation::SKIP_INBOUND_PORTS, annotation::SKIP_SUBNETS] {
        if let Some(value) = status.annotations.get(key) {
            step = step.detail(format!("{key}: {value}"));
        }
    }
    step
}

fn proxy(unit: &Unit) -> Step {
    let (status, name) = (&unit.status, &unit.proxy_unit);
    let log = format!("journalctl -u {name} -n 50");
    if !status.proxy_listens {
        let outcome = match status.state {
            UnitState::Redirected => Outcome::Refused,
            UnitState::Waiting => Outcome::Notice,
        };
        let summary = format!("{name} does not listen");
        return Step::new(PROXY, outcome, summary).hint(log);
    }
    let ports = status.ports;
    let process = unit.process.as_ref();
    let process = process.map_or_else(String::new, |it| format!(" (process {})", it.id));
    let summary = format!(
        "{name}{process} listens on ports {} and {}",
        ports.inbound, ports.outbound
    );
    match &unit.ready {
        Ok(()) => Step::new(PROXY, Outcome::Ok, summary),
        Err(reason) => Step::new(PROXY, Outcome::Notice, format!("{summary}: {reason}")).hint(log),
    }
}

fn of_port(unit: &Workload, port: u16, policy: &Fact<ServerPolicy>) -> Step {
    if unit.skip_inbound.contains(port) {
        let summary = format!(
            "{port}: directly to the unit, in {}",
            annotation::SKIP_INBOUND_PORTS
        );
        return Step::new(PORT, Outcome::Notice, summary);
    }
    let policy = match policy {
        Ok(policy) => policy,
        Err(reason) => {
            return Step::new(PORT, Outcome::Unknown, format!("{port}: {reason}"));
        }
    };
    let by = enforcer(&in_namespace(&policy.meta, &unit.namespace));
    let authorizations = policy.authorizations.iter();
    let of_routes = routes(policy);
    let shown: Vec<String> = authorizations
        .filter(|it| !authorization::is_of_host(it))
        .map(|it| authorization::describe(it, object))
        .chain(of_routes)
        .collect();
    let number = count(shown.len(), "authorization", "authorizations");
    let step = if shown.is_empty() {
        Step::new(
            PORT,
            Outcome::Refused,
            format!("{port}: {by} admits no client"),
        )
    } else {
        Step::new(PORT, Outcome::Ok, format!("{port}: {by}, {number}"))
    };
    shown.into_iter().fold(step, Step::detail)
}

/// Returns the authorizations of single routes.
fn routes(policy: &ServerPolicy) -> Vec<String> {
    let mut shown: Vec<String> = match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => {
            let rules = http
                .routes
                .iter()
                .flat_map(|route| route.rules.iter().map(|rule| (&route.meta, &rule.action)));
            rules
                .flat_map(|(meta, rule)| of_rule(meta, &rule.authorizations))
                .collect()
        }
        ServerProtocol::Grpc(routes) => {
            let rules = routes
                .iter()
                .flat_map(|route| route.rules.iter().map(|rule| (&route.meta, &rule.action)));
            rules
                .flat_map(|(meta, rule)| of_rule(meta, &rule.authorizations))
                .collect()
        }
        ServerProtocol::Opaque | ServerProtocol::Tls => Vec::new(),
    };
    shown.dedup();
    shown
}

fn of_rule(route: &Meta, authorizations: &[Authorization]) -> Vec<String> {
    let route = object(route);
    let shown = authorizations
        .iter()
        .map(|it| format!("{route}: {}", authorization::describe(it, object)));
    shown.collect()
}

fn counters(unit: &Unit) -> Step {
    let counts = unit.status.connections.iter();
    let counts = counts.filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts
        .map(|(verdict, count)| format!("{verdict} {count}"))
        .collect();
    let summary = match counts.as_slice() {
        [] => "no connection has been decided about yet".to_owned(),
        counts => format!("connections by verdict: {}", counts.join(", ")),
    };
    Step::new(COUNTERS, Outcome::Ok, summary)
}
