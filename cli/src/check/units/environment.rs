//! What the proxies of units start with: environment files, ports and tokens.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use mesh_core::annotation;
use mesh_core::machine::UnitPorts;

use super::super::framework::CheckResult;
use super::membership::has_workload_api;
use super::{Findings, RESTART_AGENT, units};
use crate::certificate::{format_duration, format_expiry};
use crate::facts::Facts;
use crate::facts::host::Unit;
use crate::host::environment::{Content, is_of_proxies, is_unknown, proxy_variable};
use crate::host::token::Found;

/// The variables that the agent sets by the ports of the redirection.
const OF_AGENT: [&str; 5] = [
    "INBOUND_LISTEN_ADDR",
    "OUTBOUND_LISTEN_ADDR",
    "OUTBOUND_LISTEN_ADDRS",
    "CONTROL_LISTEN_ADDR",
    "ADMIN_LISTEN_ADDR",
];
/// A proxy follows them without a restart.
const ANCHORS: &str = "IDENTITY_TRUST_ANCHORS";
/// The most names of variables in a row.
const MAX_NAMES: usize = 5;
/// The agent replaces a token that is valid for less than twice this.
const MIN_TOKEN_SECONDS: u64 = 10 * 60;

pub(super) fn written(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    for unit in units(facts)? {
        let (name, path) = (unit.name(), unit.written_file());
        let shown = path.display();
        let file = unit.files.iter().find(|file| file.path == path);
        match file.map(|file| &file.content) {
            None => found.fail(
                format!("{name}: {} does not read {shown}", unit.proxy_unit),
                format!("systemctl edit {}: add EnvironmentFile={shown}", unit.proxy_unit),
            ),
            Some(Err(reason)) => found.fail(format!("{name}: {reason}"), RESTART_AGENT),
            Some(Ok(None)) => found.fail(
                format!("{name}: {shown} is missing, so that its proxy does not start; the agent writes it within two seconds"),
                RESTART_AGENT,
            ),
            Some(Ok(Some(_))) if !has_identity(unit) => found.fail(
                format!("{name}: the environment of its proxy names no identity service and no SPIFFE Workload API"),
                format!("meshctl machine enrol {name} --service-account NAMESPACE/NAME, or set LINKERD2_PROXY_IDENTITY_SPIRE_WORKLOAD_API_ADDRESS in /etc/mesh/proxy.env"),
            ),
            Some(Ok(Some(_))) => {}
        }
    }
    Ok(found.outcome(""))
}

fn has_identity(unit: &Unit) -> bool {
    let environment = unit.environment();
    environment.contains_key(&proxy_variable("IDENTITY_SVC_ADDR")) || has_workload_api(unit)
}

pub(super) fn overrides(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    // Several proxies read the same file.
    let mut seen = BTreeSet::new();
    for unit in units(facts)? {
        let written = unit.written_file();
        for file in &unit.files {
            if file.path == written || !seen.insert(&file.path) {
                continue;
            }
            let path = file.path.display().to_string();
            let restart = format!("correct {path}, then systemctl restart {}", unit.proxy_unit);
            match &file.content {
                Err(reason) => found.warn(reason, restart),
                Ok(None) => {}
                Ok(Some(content)) => {
                    for problem in problems(content) {
                        found.warn(format!("{path}: {problem}"), restart.clone());
                    }
                }
            }
        }
    }
    let files = seen.len();
    Ok(found.outcome(match files {
        0 => String::new(),
        _ => crate::output::count(files, "file", "files"),
    }))
}

/// Returns what has no effect in a file of settings, or takes effect against the agent.
fn problems(content: &Content) -> Vec<String> {
    let ignored = content
        .ignored
        .iter()
        .map(|line| format!("line {line} sets no variable, and systemd ignores it"));
    let names = || content.variables.keys();
    let unknown = names()
        .filter(|name| is_unknown(name))
        .map(|name| format!("no proxy reads {name} (docs/reference/proxy-environment.md)"));
    let of_agent = OF_AGENT.map(proxy_variable);
    let of_agent = names()
        .filter(|name| of_agent.contains(name) || *name == "MESH_PROXY_REDIRECT_CHECK")
        .map(|name| format!("{name} replaces what the agent redirects to; ports are chosen with meshctl machine enrol --annotation"));
    ignored.chain(unknown).chain(of_agent).collect()
}

/// Compares the environment of running proxies with the one that they would start with.
pub(super) fn current(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    for unit in units(facts)? {
        let Some(process) = &unit.process else {
            continue;
        };
        let anchors = proxy_variable(ANCHORS);
        let changed = unit.environment().into_iter().filter(|(name, value)| {
            is_of_proxies(name) && *name != anchors && process.environment.get(name) != Some(value)
        });
        let changed: Vec<String> = changed.map(|(name, _)| name).collect();
        if changed.is_empty() {
            continue;
        }
        let more = changed.len().saturating_sub(MAX_NAMES);
        let mut names = changed[..changed.len() - more].join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        found.warn(
            format!(
                "{}: its proxy (process {}) was started with other values of {names}",
                unit.name(),
                process.id
            ),
            format!("systemctl restart {}", unit.proxy_unit),
        );
    }
    Ok(found.outcome(""))
}

pub(super) fn ports(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    let units = units(facts)?;
    for (at, unit) in units.iter().enumerate() {
        let (name, ports) = (unit.name(), unit.status.ports);
        for listener in &unit.status.foreign_listeners {
            found.fail(
                format!("{name}: another program listens on {listener}, and its proxy cannot"),
                free(name, ports, listener),
            );
        }
        for other in &units[at + 1..] {
            let shared = all(ports)
                .into_iter()
                .find(|port| uses(other.status.ports, *port));
            if let Some(port) = shared {
                found.fail(
                    format!(
                        "{name}: port {port} of its proxy is also one of {}",
                        other.name()
                    ),
                    format!(
                        "meshctl machine withdraw {}, and enrol it again",
                        other.name()
                    ),
                );
            }
        }
    }
    Ok(found.outcome(""))
}

fn all(ports: UnitPorts) -> [u16; 4] {
    [ports.inbound, ports.outbound, ports.control, ports.admin]
}

fn uses(ports: UnitPorts, port: u16) -> bool {
    all(ports).contains(&port) || (ports.redirect_first..=ports.redirect_last).contains(&port)
}

/// Returns how a port of a proxy becomes free, or another one is chosen.
fn free(unit: &str, ports: UnitPorts, listener: &SocketAddr) -> String {
    let port = listener.port();
    let key = [
        (ports.inbound, annotation::INBOUND_PORT),
        (ports.outbound, annotation::OUTBOUND_PORT),
        (ports.control, annotation::CONTROL_PORT),
        (ports.admin, annotation::ADMIN_PORT),
    ];
    let key = key.into_iter().find(|(own, _)| *own == port);
    let key = key.map_or("", |(_, key)| key);
    format!(
        "ss -ltnp 'sport = :{port}' names the program; move it, or meshctl machine enrol {unit} with --annotation {key}=PORT besides the settings to keep"
    )
}

pub(super) fn token(facts: &Facts) -> CheckResult {
    let mut found = Findings::default();
    for unit in units(facts)? {
        match &unit.token {
            None => {}
            Some(Err(reason)) => found.fail(format!("{}: {reason}", unit.name()), RESTART_AGENT),
            Some(Ok(file)) => {
                let path = file.path.display();
                match &file.found {
                    None => found.fail(
                        format!("{}: its token {path} is missing", unit.name()),
                        RESTART_AGENT,
                    ),
                    Some(token) => {
                        check_token(unit, &path.to_string(), token, facts.now, &mut found);
                    }
                }
            }
        }
    }
    Ok(found.outcome(""))
}

fn check_token(unit: &Unit, path: &str, token: &Found, now: u64, found: &mut Findings) {
    let name = unit.name();
    if let Some((uid, gid)) = unit.proxy_user
        && let Some(denied) = token.denied_by(uid, gid)
    {
        found.fail(
            format!(
                "{name}: user {uid}, which its proxy runs as, cannot read its token {path}: {} belongs to user {} and has mode {:o}",
                denied.path.display(),
                denied.uid,
                denied.mode
            ),
            format!("set User= of {} to the user of the agent's --proxy-user, mesh-proxy by default; {RESTART_AGENT}", unit.proxy_unit),
        );
    }
    let Some(expires) = token.expires else {
        found.fail(format!("{name}: {path} is not a token"), RESTART_AGENT);
        return;
    };
    let left = expires.saturating_sub(now);
    if left == 0 {
        let ago = format_duration(now - expires);
        let text = format!("{name}: its token {path} expired {ago} ago");
        found.fail(text, RESTART_AGENT);
    } else if left < MIN_TOKEN_SECONDS {
        let until = format_expiry(left, now);
        let text =
            format!("{name}: its token {path} expires {until}, and the agent has not replaced it");
        found.warn(text, RESTART_AGENT);
    }
}
