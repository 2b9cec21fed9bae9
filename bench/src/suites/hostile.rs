//! hostile: in-house attacks with valid but costly traffic, over connections that are reopened when
//! the proxy closes them. An honest client in parallel must hardly be slowed down, and the attack
//! must cost the proxies little CPU time.
//!
//! `mesh-bench attack` sends the traffic; `criteria` defines the limits.

mod criteria;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;

use self::criteria::{AttackResult, AttackStats, Baseline, Report};
use super::honest_client;
use super::outcome::Outcome;
use super::topology::{Application, Position, Topology};
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

/// The honest client's target and its baseline.
struct HonestClient {
    target: SocketAddr,
    baseline: Baseline,
}

/// Runs every attack in one position, and writes a table of results into a directory.
pub(super) fn run(
    topology: &Topology<'_>,
    position: Position,
    name: &str,
    directory: &Path,
) -> anyhow::Result<Outcome> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    let honest_client = HonestClient::new(topology, position, name)?;
    let mut report = Report::new(&honest_client.baseline);
    for (kind, application) in ATTACKS {
        // Ctrl-C also kills the attackers, which would otherwise count as a failed case.
        topology.check_interrupt()?;
        let target = topology.target(application, position);
        let seen = attack(topology, kind, target, name, &honest_client);
        report.add(kind, &honest_client.baseline, seen);
    }
    report.write(directory.join("summary.md"))
}

/// Runs one attack and the honest client in parallel.
fn attack(
    topology: &Topology<'_>,
    kind: &str,
    target: SocketAddr,
    name: &str,
    honest_client: &HonestClient,
) -> anyhow::Result<AttackResult> {
    let mut command = topology.bench_client()?;
    command
        .args(["attack", kind, "--target", &target.to_string()])
        .args(["--connections", &CONNECTIONS.to_string()])
        .args(["--seconds", &SECONDS.to_string()]);
    let before = topology.run_times()?;
    let attackers = Process::start(&format!("{name}-{kind}"), &mut command)?;
    // The attackers share a CPU with the honest client, and must compete with it only for the
    // proxies' CPU.
    attackers.deprioritise()?;
    let honest =
        honest_client::measure_during_attack(topology, honest_client.target, name, SECONDS);
    let sent = AttackStats::read(&attackers.output()?)?;
    let honest = honest.context("the honest client")?;
    let used = used_since(topology, before)?;
    let spent = honest_client.baseline.subtracted(used, &honest);
    Ok(AttackResult {
        honest,
        sent,
        spent,
    })
}

impl HonestClient {
    /// Measures the baseline before any attack.
    fn new(topology: &Topology<'_>, position: Position, name: &str) -> anyhow::Result<Self> {
        let target = topology.target(Application::Web, position);
        let before = topology.run_times()?;
        let honest = honest_client::measure_alone(topology, target, name)?;
        let baseline = Baseline::new(honest, used_since(topology, before)?);
        Ok(Self { target, baseline })
    }
}

/// Returns the CPU seconds of the proxies since `before`.
fn used_since(topology: &Topology<'_>, before: ProxyPair<f64>) -> anyhow::Result<ProxyPair<f64>> {
    let now = topology.run_times()?;
    Ok(ProxyPair {
        outbound: now.outbound - before.outbound,
        inbound: now.inbound - before.inbound,
    })
}
