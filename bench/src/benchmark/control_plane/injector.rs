//! The row of the injector: reviews of new pods in a closed loop.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use mesh_test_support::network::free_address;
use xtask::workspace;

use super::Plan;
use super::command::{on_cpu, ours};
use super::programs::{Controller, KubeApi, number};
use super::report::{Figure, Row, Unit};
use crate::benchmark::machine::NoiseMonitor;
use crate::testbed::process::Process;
use crate::testbed::{ANCHOR, DIRECTORY, SERVER, Testbed};

/// Reviews at the same time.
const CONCURRENT: usize = 50;
/// More than most pods have.
const CONTAINERS: u32 = 5;
/// Seconds of 99 % of the reviews.
const MAX_P99: f64 = 0.01;

pub(super) fn row(testbed: &Testbed, plan: &Plan) -> anyhow::Result<Row> {
    let api = KubeApi::start(testbed, plan.population)?;
    let controller = start(testbed, &api)?;
    let services = plan.population.services;
    review(testbed, &controller, services, 1)?;
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    let cpu = controller.cpu()?;
    let outcome = review(testbed, &controller, services, plan.seconds)?;
    let cpu = controller.cpu()? - cpu;
    let noise = monitor.finish()?;
    let operations = number(&outcome, "operations")?;
    let seconds = |name| anyhow::Ok(number(&outcome, name)? / 1e6);
    let rate = operations / number(&outcome, "seconds")?;
    let figure = |name, unit, value| Figure::new(name, unit, value, None);
    Ok(Row {
        title: format!("{CONCURRENT} reviews of pods with {CONTAINERS} containers at a time"),
        figures: vec![
            figure("reviews", Unit::PerSecond, rate),
            figure("median review", Unit::Seconds, seconds("p50")?),
            figure("99 % of the reviews", Unit::Seconds, seconds("p99")?).at_most(MAX_P99),
            figure("CPU of a review", Unit::Seconds, cpu / operations),
            figure("resident memory", Unit::Bytes, controller.resident()?),
        ],
        noise,
    })
}

/// Has pods reviewed, and fails if one is not injected.
fn review(
    testbed: &Testbed,
    controller: &Controller,
    services: u32,
    seconds: u32,
) -> anyhow::Result<serde_json::Value> {
    let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
    command
        .args(["load", "reviews"])
        .args(["--address", &controller.api.to_string()])
        .arg("--authority")
        .arg(testbed.authority())
        .args(["--name", SERVER])
        .args(["--concurrent", &CONCURRENT.to_string()])
        .args(["--containers", &CONTAINERS.to_string()])
        .args(["--services", &services.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    let outcome = Process::start("reviews", &mut command)?.next_event()?;
    if outcome["failed"] != 0 {
        bail!("the injector did not inject pods: {outcome}");
    }
    Ok(outcome)
}

/// Starts the injector with the values of the chart and a certificate of the testbed.
fn start(testbed: &Testbed, api: &KubeApi) -> anyhow::Result<Controller> {
    let certificate = testbed.certificate("server");
    let tls = Path::new(DIRECTORY).join("webhook");
    fs::create_dir_all(&tls).with_context(|| format!("create {}", tls.display()))?;
    for (from, to) in [(certificate.chain, "tls.crt"), (certificate.key, "tls.key")] {
        fs::copy(&from, tls.join(to)).with_context(|| format!("copy {}", from.display()))?;
    }
    let values = workspace::root()?.join("helm/linkerd-control-plane/values.yaml");
    let (webhook, admin) = (free_address(), free_address());
    let mut command = ours(testbed, "proxy-injector", &api.kubeconfig()?)?;
    command
        .arg(format!("--addr={webhook}"))
        .arg(format!("--metrics-addr={admin}"))
        .arg("--values-file")
        .arg(values)
        .arg("--trust-anchors")
        .arg(testbed.authority().join(ANCHOR))
        .arg("--tls-dir")
        .arg(tls);
    Controller::run(testbed, "proxy-injector", command, webhook, admin)
}
