//! Enrolled units and the state of their proxies.

use mesh_core::machine::UnitState;

use super::super::framework::{CheckResult, Finding, Outcome};
use super::membership::admit;
use super::{Findings, RESTART_AGENT, units};
use crate::certificate::format_expiry;
use crate::facts::Facts;
use crate::facts::host::Unit;
use crate::facts::trust::certificate_expiry;
use crate::host::systemd;
use crate::output::count;

/// The exit code of a proxy that refuses its environment.
const BAD_ENVIRONMENT: u32 = 64;

pub(super) fn exists(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    let units = units(facts)?;
    for unit in units {
        let name = unit.name();
        let Ok(systemd) = &unit.systemd else {
            continue;
        };
        let cgroup = systemd.cgroup.trim_start_matches('/');
        match &*systemd.load {
            "not-found" => found.fail(
                format!("{name}: systemd has no such unit"),
                format!("meshctl machine withdraw {name}, or install the unit again"),
            ),
            "masked" => found.warn(
                format!("{name} is masked: systemd does not start it"),
                format!("systemctl unmask {name}, or meshctl machine withdraw {name}"),
            ),
            _ if !cgroup.is_empty() && !unit.status.cgroups.iter().any(|it| it == cgroup) => {
                let enrolled = unit.status.cgroups.join(" ");
                found.fail(
                    format!("{name} runs in cgroup {cgroup}, and is enrolled with {enrolled}: it is not redirected"),
                    format!("meshctl machine enrol {name} without --cgroup, besides the settings to keep"),
                );
            }
            _ => {}
        }
    }
    let running = units.iter().filter(|unit| unit.status.running).count();
    Ok(found.outcome(match units.len() {
        0 => "no unit is enrolled".to_owned(),
        all => format!(
            "{} enrolled, {running} running",
            count(all, "unit", "units")
        ),
    }))
}

pub(super) fn warnings(facts: &Facts) -> CheckResult {
    let warnings = units(facts)?.iter().flat_map(|unit| {
        let warnings = unit.status.warnings.iter();
        warnings.map(|warning| format!("{}: {warning}", unit.name()))
    });
    Ok(Outcome::warn_if(warnings, ""))
}

pub(super) fn runs(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    for unit in units(facts)? {
        match &unit.proxy {
            Ok(proxy) => check_proxy(unit, proxy, &mut found),
            Err(_) if unit.process.is_some() => {}
            Err(_) => found.fail(
                format!(
                    "{}: no process runs in cgroup {}, where its proxy should be",
                    unit.name(),
                    unit.status.proxy_cgroup
                ),
                format!("start mesh-proxy in cgroup {}", unit.status.proxy_cgroup),
            ),
        }
    }
    Ok(found.outcome(""))
}

fn check_proxy(unit: &Unit, proxy: &systemd::Unit, found: &mut Findings) {
    let (name, own) = (&unit.proxy_unit, unit.name());
    let log = format!("journalctl -u {name} -n 50; then systemctl restart {name}");
    match (&*proxy.load, &*proxy.active) {
        ("not-found", _) => found.fail(
            format!("{own}: systemd has no unit {name} for its proxy"),
            "install the package mesh-machine",
        ),
        ("masked", _) => found.fail(
            format!("{own}: {name}, its proxy, is masked"),
            format!("systemctl unmask {name}; systemctl enable --now {name}"),
        ),
        (_, "active") if proxy.file_state == "disabled" => found.warn(
            format!("{own}: {name} is not enabled: after the next boot the connections of {own} are refused"),
            format!("systemctl enable {name}"),
        ),
        (_, "active") => {}
        (_, "inactive") => found.fail(
            format!("{own}: {name}, its proxy, does not run"),
            format!("systemctl enable --now {name}"),
        ),
        (_, state) => {
            let why = match (&*proxy.result, proxy.exit_code) {
                ("exit-code", Some(BAD_ENVIRONMENT)) => {
                    ": it refuses its environment, and its log names each bad variable".to_owned()
                }
                ("exit-code", Some(code)) => format!(": it ends with exit code {code}"),
                ("success" | "", _) => String::new(),
                (result, _) => format!(": {result}"),
            };
            found.fail(format!("{own}: {name}, its proxy, is {state} ({}){why}", proxy.sub), log);
        }
    }
}

pub(super) fn listens(facts: &Facts) -> CheckResult {
    let absent = units(facts)?
        .iter()
        .filter(|unit| !unit.status.proxy_listens);
    let absent = absent.map(|unit| {
        let (name, ports) = (unit.name(), unit.status.ports);
        let effect = match unit.status.state {
            UnitState::Redirected => "connections of the unit are refused",
            UnitState::Waiting => "the unit is not redirected yet",
        };
        Finding::new(format!(
            "{name}: its proxy does not listen on ports {} and {}: {effect}",
            ports.inbound, ports.outbound
        ))
        .with_fix(format!("journalctl -u {} -n 50", unit.proxy_unit))
    });
    Ok(Outcome::fail_if(absent, ""))
}

pub(super) fn redirected(facts: &Facts) -> CheckResult {
    let waiting = units(facts)?
        .iter()
        .filter(|unit| unit.status.state == UnitState::Waiting);
    let waiting = waiting.map(|unit| {
        Finding::new(format!(
            "{} is waiting for its proxy: its connections bypass the mesh until the proxy listens",
            unit.name()
        ))
        .with_fix(if unit.status.proxy_listens {
            RESTART_AGENT.to_owned()
        } else {
            format!("systemctl enable --now {}", unit.proxy_unit)
        })
    });
    Ok(Outcome::fail_if(waiting, ""))
}

/// A proxy is asked only while it runs, which other rows report.
fn running(unit: &&Unit) -> bool {
    let is_active = |proxy: &systemd::Unit| proxy.active == "active";
    unit.proxy
        .as_ref()
        .map_or(unit.process.is_some(), is_active)
}

pub(super) fn ready(facts: &Facts) -> CheckResult {
    let running = units(facts)?.iter().filter(running);
    let wrong = running.filter_map(|unit| {
        let reason = unit.ready.as_ref().err()?;
        let finding = Finding::new(format!("{}: {reason}", unit.name()));
        Some(finding.with_fix(format!("journalctl -u {} -n 50", unit.proxy_unit)))
    });
    Ok(Outcome::fail_if(wrong, ""))
}

pub(super) fn account(facts: &Facts) -> CheckResult {
    let member = facts.host.membership.as_ref().ok();
    let member = member.and_then(Option::as_ref);
    let refused = units(facts)?.iter().filter_map(|unit| {
        let refusal = unit.refusal.as_ref().filter(|refusal| refusal.is_denied)?;
        let identity = unit.status.identity.as_ref()?;
        let finding = Finding::new(format!(
            "{}: the identity service refuses ServiceAccount {}: {}",
            unit.name(),
            identity.service_account,
            refusal.message
        ));
        Some(match member {
            Some(member) => finding.with_fix(format!(
                "{} --service-account {} at a workstation, with all others of the machine; or meshctl machine enrol {} with another one",
                admit(member),
                identity.service_account,
                unit.name()
            )),
            None => finding,
        })
    });
    Ok(Outcome::fail_if(refused, ""))
}

pub(super) fn certificate(facts: &Facts) -> CheckResult {
    let (mut found, mut first) = (Findings::default(), None);
    for unit in units(facts)?.iter().filter(running) {
        let name = unit.name();
        let log = format!("journalctl -u {} -n 50", unit.proxy_unit);
        // Another row reports an admin server that does not respond.
        let Ok(samples) = &unit.metrics else {
            continue;
        };
        let because = unit.refusal.as_ref();
        let because = because.map_or_else(String::new, |refusal| format!(": {}", refusal.message));
        match certificate_expiry(samples) {
            None => found.fail(
                format!("{name}: its proxy has no certificate yet{because}"),
                log,
            ),
            Some(expiry) if expiry <= facts.now => {
                found.fail(
                    format!("{name}: the certificate of its proxy has expired{because}"),
                    log,
                );
            }
            Some(expiry) => {
                let left = expiry - facts.now;
                if unit.refusal.is_some() {
                    let until = format_expiry(left, facts.now);
                    found.warn(format!("{name}: the certificate of its proxy expires {until}, and is not renewed{because}"), log);
                }
                first = Some(first.map_or(left, |first: u64| first.min(left)));
            }
        }
    }
    Ok(found.outcome(first.map_or_else(String::new, |left| {
        format!("the next expiry is {}", format_expiry(left, facts.now))
    })))
}
