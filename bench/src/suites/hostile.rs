//! hostile: in-house attacks with valid but costly traffic, over connections that are reopened when
//! the proxy closes them. An honest client in parallel must hardly be slowed down, and the attack
//! must cost the proxies little CPU time.
//!
//! `mesh-bench attack` sends the traffic; `criteria` defines the limits.

mod criteria;

use std::fs;
use std::net::SocketAddr;

use anyhow::Context;

use self::criteria::{AttackResult, AttackStats, Baseline, Report};
use super::outcome::Outcome;
use super::topology::{Application, Topology};
use super::{Run, honest_client};
use crate::testbed::ProxyPair;
use crate::testbed::process::Process;

/// Duration of each attack.
const SECONDS: u32 = 15;
/// Number of attackers; each has one connection at a time.
const CONNECTIONS: u32 = 8;

/// The attacks of `mesh-bench attack` and their target applications, which differ from the honest
/// client's.
const ATTACKS: [(&str, Application); 11] = [
    ("zero-window-update", Application::Http2),
    ("half-closed-data", Application::Http2),
    ("empty-data", Application::Http2),
    ("reset-data", Application::Http2),
    ("hpack-bomb", Application::Http2),
    ("tiny-chunks", Application::Sink),
    ("tiny-data", Application::Http2),
    ("rapid-reset", Application::Http2),
    ("continuation", Application::Http2),
    ("settings-flood", Application::Http2),
    ("ping-flood", Application::Http2),
];

/// Runs every attack in one position, and writes a table of results into a directory.
pub(super) fn run(run: &Run<'_>) -> anyhow::Result<Outcome> {
    let directory = &run.report;
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let before = run.topology.run_times()?;
    let honest = honest_client::measure_alone(run)?;
    let baseline = Baseline::new(honest, used_since(run.topology, before)?);
    let mut report = Report::new(&baseline);
    for (kind, application) in ATTACKS {
        // Ctrl-C also kills the attackers, which would otherwise count as a failed case.
        run.topology.check_interrupt()?;
        let target = run.topology.target(application, run.position);
        report.add(kind, &baseline, attack(run, kind, target, &baseline));
    }
    report.write(directory.join("summary.md"))
}

/// Runs one attack and the honest client in parallel.
fn attack(
    run: &Run<'_>,
    kind: &str,
    target: SocketAddr,
    baseline: &Baseline,
) -> anyhow::Result<AttackResult> {
    let topology = run.topology;
    let mut command = topology.bench_client()?;
    command
        .args(["attack", kind, "--target", &target.to_string()])
        .args(["--connections", &CONNECTIONS.to_string()])
        .args(["--seconds", &SECONDS.to_string()]);
    let before = topology.run_times()?;
    let attackers = Process::start(&format!("{}-{kind}", run.name), &mut command)?;
    // The attackers share a CPU with the honest client, and must compete with it only for the
    // proxies' CPU.
    attackers.deprioritise()?;
    let honest = honest_client::measure_during_attack(run, SECONDS);
    let sent = AttackStats::read(&attackers.output()?)?;
    let honest = honest.context("the honest client")?;
    let used = used_since(topology, before)?;
    let spent = baseline.subtracted(used, &honest);
    Ok(AttackResult {
        honest,
        sent,
        spent,
    })
}

/// Returns the CPU seconds of the proxies since `before`.
fn used_since(topology: &Topology<'_>, before: ProxyPair<f64>) -> anyhow::Result<ProxyPair<f64>> {
    let both = topology.run_times()?.zip(before);
    Ok(both.map(|(now, before)| now - before))
}
