//! hostile: traffic of our own that is allowed frame by frame and costly, over connections that are
//! made anew as often as they are ended. Beside it an honest client must hardly notice, and what
//! the attackers sent must have cost the proxies little.
//!
//! `mesh-bench attack` sends it; `judgement` says what is held against what.

mod criteria;

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Context;

use self::criteria::{AttackResult, AttackStats, Baseline, Report};
use super::{
    honest_client,
    outcome::Outcome,
    topology::{Application, Position, Topology},
};
use crate::testbed::{ProxyPair, process::Process};

/// How long each attack lasts.
const SECONDS: u32 = 15;
/// Attackers, each with one connection at a time.
const CONNECTIONS: u32 = 8;

/// What `mesh-bench attack` knows, and what is behind the proxies that it attacks: something that
/// takes the protocol, and is not what the honest client waits for.
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

/// Where the honest client is, and what is known of it.
struct HonestClient {
    target: SocketAddr,
    baseline: Baseline,
}

/// Runs every attack in one position, and fills a directory with a table of what came of them.
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
        // An attack that cannot be made is a failed case, and Ctrl-C ends attackers too.
        topology.check_interrupt()?;
        let target = topology.target(application, position);
        let seen = attack(topology, kind, target, name, &honest_client);
        report.add(kind, &honest_client.baseline, seen);
    }
    report.write(directory.join("summary.md"))
}

/// One attack, and the honest client beside it.
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
    // They are to keep the honest client from the proxies' CPU, not from its own, which they share.
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
    /// Watches the honest client before any attack.
    fn new(topology: &Topology<'_>, position: Position, name: &str) -> anyhow::Result<Self> {
        let target = topology.target(Application::Web, position);
        let before = topology.run_times()?;
        let honest = honest_client::measure_alone(topology, target, name)?;
        let baseline = Baseline::new(honest, used_since(topology, before)?);
        Ok(Self { target, baseline })
    }
}

/// The CPU seconds that the proxies have used since they had used `before`.
fn used_since(topology: &Topology<'_>, before: ProxyPair<f64>) -> anyhow::Result<ProxyPair<f64>> {
    let now = topology.run_times()?;
    Ok(ProxyPair {
        outbound: now.outbound - before.outbound,
        inbound: now.inbound - before.inbound,
    })
}
