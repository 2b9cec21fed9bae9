//! `machine check`: this machine as a host of systemd units, its agent, its membership of a mesh,
//! the services of the control plane, and the proxies of enrolled units. Nothing takes an API
//! server.

mod agent;
mod control_plane;
mod environment;
mod host;
mod membership;
mod proxies;

use super::framework::{AppliesTo, Category, Check, CheckResult, Finding, OnFailure, Outcome};
use super::repairs::REPAIRS;
use crate::facts::host::Unit;
use crate::facts::{Fact, Facts, Mode, fact_ref};

const APPLIES: fn(&Facts) -> bool = |facts| facts.mode == Mode::Host;

/// Tries what has failed at once, and shows what the agent logs about it.
const RESTART_AGENT: &str = "systemctl restart mesh-agent.service; journalctl -u mesh-agent.service -n 50 shows why it fails";
/// Replaces the settings, the anchors and the certificate of the machine.
const JOIN_AGAIN: &str = "meshctl machine admit NAME --key-sha256 KEY at a workstation, then meshctl machine leave and meshctl machine join FILE here";

/// If one of these fails, the agent tells nothing, or does not do its work.
const AGENT: &[&str] = &["machine-agent-runs", "machine-agent-answers"];
/// If one of these fails, no proxy of this machine gets a certificate.
const IDENTITY: &[&str] = &[
    "machine-certificate",
    "machine-anchors",
    "machine-clock",
    "machine-reaches-identity",
];
/// If one of these fails, a proxy does not start, or not as the redirection needs it.
const NOT_STARTED: &[&str] = &[
    "machine-unit-files",
    "unit-environment",
    "unit-ports",
    "unit-proxy-runs",
];

pub(super) const HOST: Category = Category {
    name: "machine",
    applies: APPLIES,
    checks: &[
        check(
            "machine-root",
            "meshctl runs as root",
            "run the command again with sudo",
            host::root,
        )
        .on_failure(OnFailure::Abort),
        check(
            "machine-systemd",
            "systemd is process 1",
            "boot the machine with systemd; in a container, run systemd there",
            host::systemd,
        ),
        check(
            "machine-kernel",
            "the kernel has what the redirection of units needs",
            "meshctl check explain machine-kernel",
            host::kernel,
        ),
        check(
            "machine-unit-files",
            "the unit files are of this version",
            "install the package mesh-machine again",
            host::unit_files,
        ),
    ],
};

pub(super) const AGENT_OF_HOST: Category = Category {
    name: "mesh-agent",
    applies: APPLIES,
    checks: &[
        check(
            "machine-agent-runs",
            "the agent runs, also after the next boot",
            "systemctl enable --now mesh-agent.service",
            agent::runs,
        )
        .explained_by(&[&["machine-unit-files"]]),
        check(
            "machine-agent-answers",
            "the agent responds",
            RESTART_AGENT,
            agent::answers,
        )
        .explained_by(&[&["machine-agent-runs"]]),
        check(
            "machine-agent-version",
            "the agent has the version of this command",
            "systemctl restart mesh-agent.service, which interrupts no connection; if that does not help, install the package mesh-machine again",
            agent::version,
        ),
        check(
            "machine-agent-warnings",
            "the agent can do all of its work",
            RESTART_AGENT,
            agent::warnings,
        ),
        REPAIRS,
    ],
};

pub(super) const MEMBERSHIP: Category = Category {
    name: "mesh-membership",
    applies: APPLIES,
    checks: &[
        check(
            "machine-joined",
            "the machine has joined a mesh",
            "meshctl machine key; meshctl machine admit NAME --key-sha256 KEY at a workstation; meshctl machine join FILE here",
            membership::joined,
        )
        .explained_by(&[AGENT]),
        check(
            "machine-certificate",
            "the certificate of the machine is valid",
            JOIN_AGAIN,
            membership::certificate,
        ),
        check(
            "machine-renewal",
            "the certificate of the machine is renewed",
            "correct what the message names; systemctl restart mesh-agent.service tries again at once",
            membership::renewal,
        )
        .explained_by(&[IDENTITY]),
        check(
            "machine-anchors",
            "the trust anchors of the machine are valid",
            JOIN_AGAIN,
            membership::anchors,
        ),
        check(
            "machine-clock",
            "the clock of the machine agrees with the control plane's",
            "timedatectl set-ntp true",
            membership::clock,
        ),
        check(
            "machine-reaches-identity",
            "the identity service is reached",
            control_plane::ADVICE,
            |facts| control_plane::reached(facts, "identity"),
        )
        .explained_by(&[&["machine-anchors"]]),
        check(
            "machine-reaches-destination",
            "the destination service is reached",
            control_plane::ADVICE,
            |facts| control_plane::reached(facts, "destination"),
        )
        .explained_by(&[&["machine-anchors"]]),
        check(
            "machine-reaches-policy",
            "the policy service is reached",
            control_plane::ADVICE,
            |facts| control_plane::reached(facts, "policy"),
        )
        .explained_by(&[&["machine-anchors"]]),
    ],
};

pub(super) const UNITS: Category = Category {
    name: "mesh-units",
    applies: APPLIES,
    checks: &[
        check(
            "unit-exists",
            "systemd has the enrolled units where the agent looks for them",
            "systemctl status UNIT",
            proxies::exists,
        )
        .explained_by(&[AGENT]),
        check(
            "unit-warnings",
            "nothing interferes with the redirection of a unit",
            "meshctl check explain unit-warnings",
            proxies::warnings,
        ),
        check(
            "unit-environment",
            "the proxies have the environment that the agent writes",
            RESTART_AGENT,
            environment::written,
        ),
        check(
            "unit-overrides",
            "the settings in /etc/mesh have an effect",
            "correct the file, then systemctl restart the proxy",
            environment::overrides,
        ),
        check(
            "unit-ports",
            "no other program uses the ports of a proxy",
            "ss -ltnp shows which program listens",
            environment::ports,
        ),
        check(
            "unit-token",
            "the proxies have valid tokens, and can read them",
            RESTART_AGENT,
            environment::token,
        )
        .explained_by(&[&["machine-certificate", "machine-agent-warnings"]]),
        check(
            "unit-proxy-runs",
            "the proxies run, also after the next boot",
            "systemctl enable --now PROXY",
            proxies::runs,
        )
        .explained_by(&[&["machine-unit-files", "unit-environment"]]),
        check(
            "unit-proxy-listens",
            "the proxies listen in both directions",
            "journalctl -u PROXY -n 50",
            proxies::listens,
        )
        .explained_by(&[NOT_STARTED]),
        check(
            "unit-redirected",
            "the units are redirected to their proxies",
            RESTART_AGENT,
            proxies::redirected,
        )
        .explained_by(&[NOT_STARTED, &["unit-proxy-listens"]]),
        check(
            "unit-proxy-current",
            "the proxies run with their current settings",
            "systemctl restart PROXY",
            environment::current,
        )
        .explained_by(&[&["unit-environment"]]),
        check(
            "unit-account",
            "the identity service gives each proxy its identity",
            "meshctl machine admissions at a workstation lists what the machine may have",
            proxies::account,
        )
        .explained_by(&[IDENTITY, &["unit-token"]]),
        check(
            "unit-certificate",
            "the proxies have certificates that have not expired",
            "journalctl -u PROXY -n 50",
            proxies::certificate,
        )
        .explained_by(&[
            IDENTITY,
            &["unit-token", "unit-account"],
            NOT_STARTED,
            &["unit-proxy-listens"],
        ]),
        check(
            "unit-proxy-ready",
            "the proxies are ready",
            "journalctl -u PROXY -n 50",
            proxies::ready,
        )
        .explained_by(&[
            NOT_STARTED,
            &["unit-proxy-listens", "unit-certificate"],
            &["machine-reaches-destination", "machine-reaches-policy"],
        ]),
    ],
};

const fn check(
    id: &'static str,
    description: &'static str,
    advice: &'static str,
    run: fn(&Facts) -> CheckResult,
) -> Check {
    Check::new(id, description, advice, run).applies_to(AppliesTo::Machine)
}

fn units(facts: &Facts) -> Fact<&[Unit]> {
    fact_ref(&facts.host.units).map(Vec::as_slice)
}

/// The problems of several objects.
#[derive(Default)]
struct Findings {
    failures: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl Findings {
    fn fail(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.failures.push(Finding::new(text).with_fix(fix));
    }

    fn warn(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.warnings.push(Finding::new(text).with_fix(fix));
    }

    /// Returns all of them as a failure if there is one among them.
    fn outcome(self, ok: impl Into<String>) -> Outcome {
        let Self {
            mut failures,
            warnings,
        } = self;
        if failures.is_empty() {
            return Outcome::warn_if(warnings, ok);
        }
        failures.extend(warnings);
        Outcome::fail_if(failures, ok)
    }
}
