//! Memory workloads. They start fresh processes, since an allocator keeps memory that it once had.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::system::{CLIENT, System};
use super::traffic::rounds;
use super::workload::{IdleConnection, Service};
use super::{Plan, Run};
use crate::testbed::pod::descriptors;
use crate::testbed::process::Process;
use crate::testbed::usage::Memory;
use crate::testbed::{ProxyPair, Testbed};

/// Noise does not affect memory, and starting fresh pairs takes long: three rounds show
/// repeatability.
const ROUNDS: usize = 3;
/// Number of targets, and the first target and the endpoints of each in the two halves of a round.
const TARGETS: u32 = 1000;
const FEW: (Ipv4Addr, f64) = (Ipv4Addr::new(10, 97, 0, 1), 1.0);
const MANY: (Ipv4Addr, f64) = (Ipv4Addr::new(10, 98, 0, 1), 10.0);
/// Open files of a proxy besides the two sockets of each connection.
const SPARE: u32 = 500;
/// Interval between two readings. A proxy returns memory in the background; readings are repeated
/// until two agree.
const SETTLES: Duration = Duration::from_millis(500);
const READINGS: usize = 20;
/// Two readings agree if their relative difference is below this.
const SAME: f64 = 0.005;

/// Measures the memory of idle connections.
pub(super) fn idle(
    run: Run<'_>,
    service: Service,
    held: IdleConnection,
    count: u32,
) -> anyhow::Result<Row> {
    let testbed = run.testbed;
    let plan = memory_plan(run.plan);
    let run = Run { plan: &plan, ..run };
    let descriptors = descriptors()?;
    let possible = descriptors.saturating_sub(SPARE) / 2;
    let note = (possible < count).then(|| {
        format!("{possible} connections, since a process here may have {descriptors} files open")
    });
    let count = count.min(possible);
    let row = rounds(run, |number, progress| {
        let mut round = Round::default();
        for sut in run.suts() {
            testbed.check_interrupt()?;
            progress.line(&format!("round {}, {sut}", number + 1));
            progress.tick();
            let system = System::start(testbed, sut)?;
            let to = system.target(service).to_string();
            // The first connection makes the allocations that all connections share.
            let first = hold(testbed, &system, &to, (1, 1), held)?;
            let before = stable_memory(testbed, &system)?;
            let all = hold(testbed, &system, &to, (1, count), held)?;
            let after = stable_memory(testbed, &system)?;
            drop((first, all));
            let each = after.zip(before).map(|(after, before)| {
                (after.anonymous as f64 - before.anonymous as f64) / f64::from(count)
            });
            let sample = Sample::from([
                (Metric::MemoryOut, each.outbound),
                (Metric::MemoryIn, each.inbound),
            ]);
            round.samples.insert(sut, sample);
        }
        Ok(round)
    })?;
    Ok(Row { note, ..row })
}

/// Measures the memory of targets, of their endpoints, and of a proxy without any.
pub(super) fn targets(run: Run<'_>) -> anyhow::Result<Row> {
    let testbed = run.testbed;
    let plan = memory_plan(run.plan);
    rounds(Run { plan: &plan, ..run }, |_, _| {
        let mut grown = Vec::new();
        let mut base = None;
        for (first, _) in [FEW, MANY] {
            let system = System::start(testbed, SystemUnderTest::MeshProxy)?;
            let before = stable_memory(testbed, &system)?;
            let to = format!("{first}:{}", Service::Http1.port());
            let connections = (TARGETS, TARGETS);
            let all = hold(testbed, &system, &to, connections, IdleConnection::Http1)?;
            let after = stable_memory(testbed, &system)?;
            drop(all);
            grown.push(after.outbound.anonymous as f64 - before.outbound.anonymous as f64);
            base = Some(before.outbound);
        }
        let base = base.context("a proxy was measured")?;
        let [few, many] = grown[..] else {
            bail!("two proxies were measured");
        };
        let targets = f64::from(TARGETS);
        let endpoints = targets * (MANY.1 - FEW.1);
        let sample = Sample::from([
            (Metric::MemoryOut, few / targets),
            (Metric::MemoryEndpoint, (many - few) / endpoints),
            (Metric::Resident, base.resident as f64),
            (Metric::Anonymous, base.anonymous as f64),
        ]);
        Ok(Round {
            samples: [(SystemUnderTest::MeshProxy, sample)].into(),
            ..Round::default()
        })
    })
}

/// The plan of a memory workload: fewer rounds, and none is discarded.
fn memory_plan(plan: &Plan) -> Plan {
    Plan {
        suts: plan.suts.clone(),
        rounds: if plan.quick { 1 } else { ROUNDS },
        with_noisy: true,
        ..*plan
    }
}

/// Opens connections from a system's client to the targets in turn, and returns once all are open.
/// They close when the returned process is dropped.
pub(super) fn hold(
    testbed: &Testbed,
    system: &System,
    to: &str,
    (targets, connections): (u32, u32),
    held: IdleConnection,
) -> anyhow::Result<Process> {
    let kind = match held {
        IdleConnection::Http1 => "http1",
        IdleConnection::Http2 => "http2",
        IdleConnection::Tcp => "tcp",
    };
    let pod = &system.pods.client;
    let mut command = pod.command(CLIENT, &testbed.programs.bench)?;
    command
        .args(["load", "hold", "--target", to, "--kind", kind])
        .args(["--targets", &targets.to_string()])
        .args(["--connections", &connections.to_string()]);
    let process = Process::start(&format!("{}-hold-{connections}", pod.name), &mut command)?;
    let event = process.next_event()?;
    if event["held"] != connections {
        bail!("requested {connections} connections, got {event}");
    }
    Ok(process)
}

/// Returns the memory of the pair once it has stopped changing.
pub(super) fn stable_memory(
    testbed: &Testbed,
    system: &System,
) -> anyhow::Result<ProxyPair<Memory>> {
    let read = || system.memory()?.context("the system has no proxies");
    let mut last = read()?;
    for _ in 0..READINGS {
        thread::park_timeout(SETTLES);
        testbed.check_interrupt()?;
        let now = read()?;
        let same = now.zip(last).map(|(now, last)| {
            let (now, last) = (now.anonymous as f64, last.anonymous as f64);
            (now - last).abs() <= SAME * last
        });
        if same.outbound && same.inbound {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}
