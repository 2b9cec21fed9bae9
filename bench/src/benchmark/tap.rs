//! Compares load at a fixed rate while the server's pod is tapped and while it is not.
//!
//! It is one load on one pair of proxies, and the tap has every other second of it.
//!
//! The tap is like the tap service's: its identity, mutual TLS, and a limit of requests in each
//! second. A request makes three events, and the limit makes 100 events. With the limit of `meshctl
//! viz tap`, 100 requests, the tap would report one request of fifty, and p99 would be among them.

use std::net::SocketAddr;

use anyhow::{Context, bail};

use super::metric::{Metric, SystemUnderTest};
use super::row::{Row, Sample};
use super::system::System;
use super::workload::{Load, Service};
use super::{Run, alternation, load};
use crate::testbed::pod::{Container, CpuRole};
use crate::testbed::process::Process;
use crate::testbed::proxies::{PROXY_CONTAINER, PROXY_USER, ProxySettings};
use crate::testbed::{SERVER, TAP, Testbed};
use crate::turn::Turn;

/// Requests each second.
const RATE: u32 = 5000;
const OBSERVER: (&str, &str) = ("LINKERD2_PROXY_TAP_SVC_NAME", TAP);
const PORT: u16 = 4190;
/// Requests that are reported in each second of the tap.
const LIMIT: u32 = 34;
/// A slower tap would measure too little.
const LEAST: f64 = 0.8 * LIMIT as f64;
/// The tap service connects through a proxy of its own. The agent does not redirect this container,
/// so that the tap does not pass the proxy of the clients under load.
const CLIENT: Container<'_> = Container {
    name: PROXY_CONTAINER,
    cpu_role: CpuRole::Load,
    user: Some(PROXY_USER),
};

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let settings = ProxySettings {
        environment: vec![OBSERVER],
        ..ProxySettings::default()
    };
    let sut = SystemUnderTest::MeshProxy;
    let mut system = System::start_with(run.testbed, sut, &settings)?;
    let load = Load::FixedRate { rate: RATE };
    load::apply(run.testbed, &mut system, Service::Http1, load, 1)?;
    alternation::row(run, |turn, seconds| {
        let tap = start_tap(run.testbed, &system, turn)?;
        let outcomes = load::by_second(run.testbed, &mut system, RATE, seconds)?;
        let reported = reported(tap)? / f64::from(seconds);
        if reported < LEAST {
            bail!("the tap reported {reported:.0} requests a second instead of {LIMIT}");
        }
        Ok((outcomes, Sample::from([(Metric::Tapped, reported)])))
    })
}

/// Ends a tap and returns the number of requests that it reported.
fn reported(tap: Process) -> anyhow::Result<f64> {
    // The end of its input ends the tap.
    let report = tap.output()?;
    let report: serde_json::Value =
        serde_json::from_str(report.trim()).with_context(|| format!("the tap printed {report}"))?;
    let requests = report["requests"].as_f64();
    requests.with_context(|| format!("the tap printed {report}"))
}

fn start_tap(testbed: &Testbed, system: &System, turn: Turn) -> anyhow::Result<Process> {
    let target = SocketAddr::from((system.pods.server.ip, PORT));
    let pod = &system.pods.client;
    let mut command = pod.command(CLIENT, &testbed.programs.bench)?;
    command
        .args(["load", "tap", "--target", &target.to_string()])
        .args(["--name", SERVER, "--limit", &LIMIT.to_string()])
        .args(["--turn", turn.name()])
        .arg("--authority")
        .arg(testbed.authority());
    let process = Process::start(&format!("{}-tap", pod.name), &mut command)?;
    process.next_event()?;
    // It shares a CPU with the load generator, which would wait for it, and that delay would be
    // attributed to the proxy.
    process.deprioritise()?;
    Ok(process)
}
