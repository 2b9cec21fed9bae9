//! Compares requests with and without an access log in JSON.
//!
//! The log goes to a pipe that a program reads, as a container runtime does. What the proxy dropped
//! because the pipe was full was not paid for, so that the share of the written entries stands
//! beside the cost.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::metric::Metric;
use super::row::{Row, Sample};
use super::system::System;
use super::with_and_without::{Variant, compare, restart};
use super::workload::{Load, Service};
use super::{Run, load};
use crate::testbed::pod::{Container, CpuRole};
use crate::testbed::process::{Process, run as run_command};
use crate::testbed::proxies::{self, ProxySettings};
use crate::testbed::{DIRECTORY, Testbed};

const READER: Container<'_> = Container::root("log-reader", CpuRole::Load);
const JSON: (&str, &str) = ("LINKERD2_PROXY_ACCESS_LOG", "json");
const LOAD: Load = Load::Wrk { connections: 64 };
const DROPPED: &str = "mesh_access_log_dropped_total ";

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let pipe = Path::new(DIRECTORY).join("access-log");
    // Every user may write, since the proxy has its own.
    run_command(Command::new("mkfifo").args(["-m", "666"]).arg(&pipe))?;
    compare(run, |system, variant| match variant {
        Variant::With => with_log(run, system, &pipe),
        Variant::Without => {
            restart(run, system, &ProxySettings::default(), LOAD)?;
            load::measure(run.testbed, system, Service::Http1, LOAD, run.plan.seconds)
        }
    })
}

fn with_log(run: Run<'_>, system: &mut System, pipe: &Path) -> anyhow::Result<(Sample, u64)> {
    let settings = ProxySettings {
        environment: vec![JSON],
        log_pipe: Some(PathBuf::from(pipe)),
        ..ProxySettings::default()
    };
    let reader = start_reader(run.testbed, system, pipe)?;
    restart(run, system, &settings, LOAD)?;
    let (mut sample, failed) =
        load::measure(run.testbed, system, Service::Http1, LOAD, run.plan.seconds)?;
    let dropped = dropped(&proxies::metrics(&system.pods.server)?)?;
    // The pipe ends with the proxy, and with it the reader.
    system.stop_proxies();
    let lines = reader.output()?;
    let lines: u64 = lines.trim().parse().context("parse the number of lines")?;
    sample.insert(Metric::Logged, lines as f64 / (lines + dropped) as f64);
    Ok((sample, failed))
}

/// Starts a program that reads the pipe and finally prints the number of lines. The few lines that
/// are not of the access log do not matter.
fn start_reader(testbed: &Testbed, system: &System, pipe: &Path) -> anyhow::Result<Process> {
    testbed.check_interrupt()?;
    let pod = &system.pods.server;
    let mut command = pod.command(READER, "sh")?;
    command.args(["-c", "exec wc -l < \"$0\""]).arg(pipe);
    Process::start(&format!("{}-log-reader", pod.name), &mut command)
}

/// Returns the number of dropped entries by the metrics of a proxy.
fn dropped(metrics: &str) -> anyhow::Result<u64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(DROPPED));
    let count = line.with_context(|| format!("the proxy's metrics lack {DROPPED}"))?;
    count.parse().with_context(|| format!("{DROPPED}{count}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_entries_are_read_from_metrics() {
        let metrics = "# TYPE x counter\nmesh_access_log_dropped_total 12\n";
        assert_eq!(dropped(metrics).expect("the counter"), 12);
        assert!(dropped("x 1\n").is_err());
    }
}
