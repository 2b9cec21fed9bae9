//! The agent of the machine.

use super::super::framework::{CheckResult, Finding, Outcome};
use super::Findings;
use crate::facts::host::AGENT_UNIT;
use crate::facts::{Facts, fact_ref};

pub(super) fn runs(facts: &Facts) -> CheckResult {
    let Some(own) = facts.host.own_unit(AGENT_UNIT) else {
        return Ok(Outcome::ok("not known: systemd cannot be asked"));
    };
    let (unit, answers) = (&own.unit, facts.host.agent.is_ok());
    let mut found = Findings::default();
    match (&*unit.active, answers) {
        ("active", _) if unit.file_state == "disabled" => found.warn(
            format!("{AGENT_UNIT} is not enabled: after the next boot no unit is redirected"),
            format!("systemctl enable {AGENT_UNIT}"),
        ),
        ("active", _) => {}
        (_, true) => found.warn(
            format!("an agent responds, but {AGENT_UNIT} is {}: after the next boot no unit is redirected", unit.active),
            format!("end the other agent, then systemctl enable --now {AGENT_UNIT}"),
        ),
        _ if unit.load == "not-found" => found.fail(
            format!("the agent is not installed: systemd has no unit {AGENT_UNIT}"),
            "install the package mesh-machine",
        ),
        (state, false) => {
            let why = match (&*unit.result, unit.exit_code) {
                ("exit-code", Some(code)) => format!(" (exit code {code})"),
                ("success" | "", _) => String::new(),
                (result, _) => format!(" ({result})"),
            };
            let fix = match state {
                "inactive" => format!("systemctl enable --now {AGENT_UNIT}"),
                _ => format!("journalctl -u {AGENT_UNIT} -n 50; then systemctl restart {AGENT_UNIT}"),
            };
            found.fail(format!("{AGENT_UNIT} is {state}{why}"), fix);
            let logged = facts.host.agent_log.iter();
            found.failures.extend(logged.map(|line| Finding::new(format!("it logged: {line}"))));
        }
    }
    Ok(found.outcome(""))
}

pub(super) fn answers(facts: &Facts) -> CheckResult {
    fact_ref(&facts.host.agent)?;
    // An agent of a Kubernetes node has none.
    let units = fact_ref(&facts.host.units)?;
    Ok(Outcome::ok(crate::output::count(
        units.len(),
        "unit",
        "units",
    )))
}

pub(super) fn version(facts: &Facts) -> CheckResult {
    let version = &fact_ref(&facts.host.agent)?.agent_version;
    Ok(if version == facts.cli_version {
        Outcome::ok(version)
    } else {
        Outcome::warn(format!(
            "the agent is {version}, meshctl {}",
            facts.cli_version
        ))
    })
}

/// Rows of their own report what the agent says about a unit, and about its own certificate.
pub(super) fn warnings(facts: &Facts) -> CheckResult {
    let status = fact_ref(&facts.host.agent)?;
    let is_of_unit = |warning: &str| {
        facts.host.enrolled.iter().any(|unit| {
            let rest = warning.strip_prefix(unit.as_str());
            rest.is_some_and(|rest| rest.starts_with(": "))
        })
    };
    let member = facts.host.membership.as_ref().ok();
    let failure = member.and_then(|member| member.as_ref()?.renewal_failure.as_deref());
    let is_of_renewal = |warning: &str| failure.is_some_and(|failure| warning.ends_with(failure));
    let others = status.warnings.iter();
    let others = others.filter(|warning| !is_of_unit(warning) && !is_of_renewal(warning));
    Ok(Outcome::fail_if(others.cloned(), ""))
}
