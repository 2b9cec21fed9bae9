//! Runs load through a system: starts the load generator and parses its report.

mod bench_load;
mod packaged;

pub(super) use self::{bench_load::read as parse_bench_load, packaged::SAMPLED};

use std::process::Command;

use anyhow::Context;

use super::metric::Metric;
use super::row::Sample;
use super::system::{CLIENT, RETRIED, System};
use super::workload::{Load, Service, body_path};
use crate::testbed::process::Process;
use crate::testbed::{ProxyPair, Testbed};
use crate::turn::Turn;

/// Connections of the workloads at a fixed rate.
pub(super) const RATE_CONNECTIONS: u32 = 64;
/// Streams of the streaming workloads, and the number of their connections.
const STREAMS: (u32, u32) = (100, 10);
/// Connections of HTTP/2 load and streams on each.
const HTTP2: (u32, u32) = (8, 16);

/// The report of a load generator. Times are in seconds; operations are gigabytes for bulk
/// transfer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) operations: f64,
    pub(super) failed: u64,
    pub(super) seconds: f64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) p999: Option<f64>,
    /// Operations without a latency, since the machine stood still.
    pub(super) stalled: Option<u64>,
}

impl Outcome {
    /// Adds the outcome of another run of the load. Its latencies are lost: percentiles have no
    /// sum.
    pub(super) fn add(&mut self, other: &Self) {
        *self = Self {
            operations: self.operations + other.operations,
            failed: self.failed + other.failed,
            seconds: self.seconds + other.seconds,
            ..Self::default()
        };
    }
}

/// Runs a load through a system for `seconds`. Returns the sample, CPU included, and the number of
/// failed operations.
pub(super) fn measure(
    testbed: &Testbed,
    system: &mut System,
    service: Service,
    load: Load,
    seconds: u32,
) -> anyhow::Result<(Sample, u64)> {
    let before = system.run_times()?;
    let outcome = apply(testbed, system, service, load, seconds)?;
    let mut sample = sample(&outcome);
    add_cpu(&mut sample, system, before, outcome.operations)?;
    Ok((sample, outcome.failed))
}

/// Adds the CPU time that the proxies of a system used for each operation since the given run
/// times.
pub(super) fn add_cpu(
    sample: &mut Sample,
    system: &System,
    before: Option<ProxyPair<f64>>,
    operations: f64,
) -> anyhow::Result<()> {
    if let (Some(before), Some(after)) = (before, system.run_times()?) {
        let both = after.zip(before);
        let cpu = both.map(|(after, before)| (after - before) / operations);
        sample.extend([(Metric::CpuOut, cpu.outbound), (Metric::CpuIn, cpu.inbound)]);
    }
    Ok(())
}

/// Runs a load through a system for `seconds` and returns the report of the load generator.
pub(super) fn apply(
    testbed: &Testbed,
    system: &mut System,
    service: Service,
    load: Load,
    seconds: u32,
) -> anyhow::Result<Outcome> {
    let command = command(testbed, system, service, load, seconds)?;
    let output = output(system, command)?;
    read(load, &output)
        .with_context(|| format!("parse the report of the load on {}:\n{output}", system.sut))
}

/// Runs HTTP/1 load at a fixed rate through a system, and returns the outcome of each second. The
/// first second is even. Each turn has `seconds` of them.
pub(super) fn by_second(
    testbed: &Testbed,
    system: &mut System,
    rate: u32,
    seconds: u32,
) -> anyhow::Result<Vec<Outcome>> {
    let load = Load::FixedRate { rate };
    let seconds = seconds * Turn::ALL.len() as u32;
    let mut command = command(testbed, system, Service::Http1, load, seconds)?;
    command.arg("--by-second");
    let output = output(system, command)?;
    let outcomes: anyhow::Result<_> = output.lines().map(bench_load::read).collect();
    outcomes.with_context(|| format!("parse the report of the load on {}:\n{output}", system.sut))
}

fn output(system: &mut System, mut command: Command) -> anyhow::Result<String> {
    let name = format!("{}-load", system.pods.client.name);
    let output = Process::start(&name, &mut command)
        .and_then(Process::output)
        .with_context(|| format!("load on {}", system.sut))?;
    system.check()?;
    Ok(output)
}

pub(super) fn sample(outcome: &Outcome) -> Sample {
    let latencies = [
        (Metric::P50, outcome.p50),
        (Metric::P99, outcome.p99),
        (Metric::P999, outcome.p999),
    ];
    let mut sample = Sample::from([(Metric::Rate, outcome.operations / outcome.seconds)]);
    if let Some(stalled) = outcome.stalled {
        sample.insert(Metric::Stalled, stalled as f64 / outcome.operations);
    }
    let latencies = latencies.into_iter();
    sample.extend(latencies.filter_map(|(metric, value)| Some((metric, value?))));
    sample
}

fn command(
    testbed: &Testbed,
    system: &System,
    service: Service,
    load: Load,
    seconds: u32,
) -> anyhow::Result<Command> {
    let target = match load {
        Load::Retried { .. } => (RETRIED, service.port()).into(),
        _ => system.target(service),
    };
    let (to, duration) = (target.to_string(), seconds.to_string());
    let cpus = testbed.cpus;
    let pod = &system.pods.client;
    let own = |name: &str| -> anyhow::Result<Command> {
        let mut command = pod.command(CLIENT, &testbed.programs.bench)?;
        command.args(["load", name, "--target", &to, "--seconds", &duration]);
        Ok(command)
    };
    let wrk = |connections: u32, path: &str| -> anyhow::Result<Command> {
        let mut command = pod.command(CLIENT, "wrk")?;
        command
            .args(["--threads", "1", "--latency"])
            .args(["--connections", &connections.to_string()])
            .args(["--duration", &format!("{duration}s")])
            .arg(format!("http://{to}{path}"));
        Ok(command)
    };
    let command = match load {
        Load::Wrk { connections } | Load::Retried { connections } => wrk(connections, "/")?,
        Load::Traced { connections } => {
            let mut command = wrk(connections, "/")?;
            command.arg("--script").arg(packaged::traced_requests()?);
            command
        }
        Load::Bodies { connections, size } => {
            let mut command = wrk(connections, &body_path(size))?;
            command.arg("--script").arg(packaged::bodies(size)?);
            command
        }
        Load::H2load { grpc } => {
            let mut command = pod.command(CLIENT, "h2load")?;
            command
                .args(["--threads=1", "--no-tls-proto=h2c"])
                .arg(format!("--clients={}", HTTP2.0))
                .arg(format!("--max-concurrent-streams={}", HTTP2.1))
                .arg(format!("--duration={duration}"));
            let path = if grpc { "grpc" } else { "" };
            if grpc {
                command
                    .args(["-H", "content-type: application/grpc"])
                    .args(["-H", "te: trailers"])
                    .arg(format!("--data={}", packaged::grpc_message()?.display()));
            }
            command.arg(format!("http://{to}/{path}"));
            command
        }
        Load::Iperf3 { connections } => {
            let mut command = pod.command(CLIENT, "iperf3")?;
            command
                .args(["--json", "--time", &duration])
                .args(["--parallel", &connections.to_string()])
                .args(["--client", &target.ip().to_string()])
                .args(["--port", &target.port().to_string()]);
            command
        }
        Load::FixedRate { rate } => {
            let mut command = own("rate")?;
            command
                .args(["--rate", &rate.to_string()])
                .args(["--connections", &RATE_CONNECTIONS.to_string()])
                .args(["--cpus", &format!("{},{}", cpus.load, cpus.proxies)]);
            command
        }
        Load::Streams { size } => {
            let mut command = own("streams")?;
            command
                .args(["--size", &size.to_string()])
                .args(["--streams", &STREAMS.0.to_string()])
                .args(["--connections", &STREAMS.1.to_string()]);
            command
        }
        Load::Connect { parallel } => {
            let mut command = own("connect")?;
            command.args(["--parallel", &parallel.to_string()]);
            command
        }
    };
    Ok(command)
}

fn read(load: Load, output: &str) -> anyhow::Result<Outcome> {
    match load {
        Load::Wrk { .. } | Load::Retried { .. } | Load::Traced { .. } | Load::Bodies { .. } => {
            packaged::wrk(output)
        }
        Load::H2load { .. } => packaged::h2load(output),
        Load::Iperf3 { .. } => packaged::iperf3(output),
        Load::FixedRate { .. } | Load::Streams { .. } | Load::Connect { .. } => {
            bench_load::read(output)
        }
    }
}
