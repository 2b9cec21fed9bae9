//! The machine as a member of a mesh: its certificate, trust anchors and clock.

use mesh_core::machine::MembershipStatus;

use super::super::expiry::check_expiry;
use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::kubernetes::MAX_SKEW_SECONDS;
use super::{Findings, units};
use crate::certificate::{self, format_duration, format_expiry, time_problem};
use crate::facts::host::Unit;
use crate::facts::{Fact, Facts, fact_ref};
use crate::host::environment::proxy_variable;

/// The renewal is asked for within a minute of its time.
const LATE_SECONDS: u64 = 3600;
/// The agent renews from the twentieth day before the end on. A renewal that has failed since then
/// needs the user.
const URGENT_SECONDS: u64 = 7 * 24 * 3600;
/// The agent replaces a token ten minutes after its start. It is valid for 20 more.
const TOKEN_SKEW_SECONDS: u64 = 20 * 60;

fn member(facts: &Facts) -> Fact<Option<&MembershipStatus>> {
    fact_ref(&facts.host.membership).map(Option::as_ref)
}

const NOT_JOINED: &str = "the machine has not joined a mesh";

pub(super) fn joined(facts: &Facts) -> CheckResult {
    let member = member(facts);
    let units = units(facts)?;
    if let Some(member) = member? {
        return Ok(Outcome::ok(format!(
            "{} of trust domain {}",
            member.machine, member.trust_domain
        )));
    }
    let with_account = units.iter().filter_map(|unit| {
        let account = &unit.status.identity.as_ref()?.service_account;
        Some(format!(
            "{}: its ServiceAccount {account} is of no mesh, because {NOT_JOINED}",
            unit.name()
        ))
    });
    let with_account: Vec<String> = with_account.collect();
    if !with_account.is_empty() {
        return Ok(Outcome::fail_if(with_account, ""));
    }
    Ok(if !units.is_empty() && units.iter().all(has_workload_api) {
        Outcome::ok("it has not; the proxies use the SPIFFE Workload API")
    } else {
        Outcome::warn(NOT_JOINED)
    })
}

/// Whether an agent of the SPIFFE Workload API gives the proxy its identity.
pub(super) fn has_workload_api(unit: &Unit) -> bool {
    let environment = unit.environment();
    ["WORKLOAD_API_ADDRESS", "SOCKET"]
        .into_iter()
        .any(|name| environment.contains_key(&proxy_variable(&format!("IDENTITY_SPIRE_{name}"))))
}

pub(super) fn certificate(facts: &Facts) -> CheckResult {
    let Some(member) = member(facts)? else {
        return Ok(Outcome::ok(NOT_JOINED));
    };
    let left = member.certificate_expires.saturating_sub(facts.now);
    Ok(if left == 0 {
        let ago = facts.now - member.certificate_expires;
        let text = format!(
            "the certificate of machine {} expired {} ago: no proxy gets a token, and their certificates end within a day",
            member.machine,
            format_duration(ago)
        );
        Outcome::fail(Finding::new(text).with_fix(join_again(member)))
    } else {
        Outcome::ok(format!("it expires {}", format_expiry(left, facts.now)))
    })
}

fn join_again(member: &MembershipStatus) -> String {
    format!(
        "{} > join.yaml at a workstation, then meshctl machine join join.yaml here",
        admit(member)
    )
}

/// Returns the command that admits the machine again.
pub(super) fn admit(member: &MembershipStatus) -> String {
    format!(
        "meshctl machine admit {} --key-sha256 {}",
        member.machine, member.key_sha256
    )
}

pub(super) fn renewal(facts: &Facts) -> CheckResult {
    let Some(member) = member(facts)? else {
        return Ok(Outcome::ok(NOT_JOINED));
    };
    let left = member.certificate_expires.saturating_sub(facts.now);
    let until = format_expiry(left, facts.now);
    let due = facts.now.saturating_sub(member.renews_at);
    Ok(match &member.renewal_failure {
        Some(failure) => {
            let text =
                format!("the last renewal failed, and the certificate expires {until}: {failure}");
            if left < URGENT_SECONDS {
                Outcome::fail(text)
            } else {
                Outcome::warn(text)
            }
        }
        None if due > LATE_SECONDS => Outcome::warn(
            Finding::new(format!(
                "the renewal was due {} ago and was not tried; the certificate expires {until}",
                format_duration(due)
            ))
            .with_fix("check the clock; systemctl restart mesh-agent.service renews at once"),
        ),
        None => Outcome::ok(format!(
            "the next renewal is {}",
            format_expiry(member.renews_at.saturating_sub(facts.now), facts.now)
        )),
    })
}

pub(super) fn anchors(facts: &Facts) -> CheckResult {
    let Some(member) = member(facts)?.filter(|member| !member.trust_anchors.is_empty()) else {
        return Ok(Outcome::ok("not known"));
    };
    let what = "the trust anchors of the machine";
    let all = certificate::read_pem(member.trust_anchors.as_bytes(), what)?;
    let parsed = all.iter().map(|der| certificate::parse(der, what));
    let parsed: Vec<_> = parsed.collect::<Result<_, _>>()?;
    let mut found = Findings::default();
    let problems = parsed.iter().filter_map(|one| time_problem(one, facts.now));
    let problems: Vec<String> = problems.collect();
    if problems.len() == parsed.len() {
        for problem in problems {
            found.fail(problem, join_again(member));
        }
        return Ok(found.outcome(""));
    }
    // The others verify the control plane; this one is removed by the next rotation.
    for problem in problems {
        found.warn(
            problem,
            "meshctl identity rotate at a workstation removes it",
        );
    }
    match check_expiry(&parsed, facts.now) {
        Outcome::Ok(detail) => Ok(found.outcome(detail)),
        Outcome::Warn(soon) | Outcome::Fail(soon) => {
            let fix = "meshctl identity rotate at a workstation, before the last one expires";
            found
                .warnings
                .extend(soon.into_iter().map(|it| it.with_fix(fix)));
            Ok(found.outcome(""))
        }
    }
}

pub(super) fn clock(facts: &Facts) -> CheckResult {
    // The row about the identity service reports that it cannot be asked.
    let Ok(Some(clocks)) = facts.host.clocks else {
        return Ok(Outcome::ok(
            "not known: the identity service does not tell its own",
        ));
    };
    let skew = clocks.service.abs_diff(clocks.own);
    let direction = if clocks.own > clocks.service {
        "ahead of"
    } else {
        "behind"
    };
    let text = format!("the clock of this machine is {skew} s {direction} the identity service's");
    Ok(if skew > TOKEN_SKEW_SECONDS {
        Outcome::fail(format!("{text}: tokens are not accepted"))
    } else if skew > MAX_SKEW_SECONDS {
        Outcome::warn(format!(
            "{text}: proxies of others, or this machine's, reject certificates for so long"
        ))
    } else {
        Outcome::ok("")
    })
}
