//! The rows of certificates: requests in a closed loop at the identity controller and at Istio's
//! certificate service, whose tokens the front of the API server reviews.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use mesh_test_support::network::free_address;

use super::command::{on_cpu, ours};
use super::programs::{Controller, KubeApi, number};
use super::report::{Figure, Row, Unit};
use super::{Plan, System, istio};
use crate::benchmark::machine::NoiseMonitor;
use crate::benchmark::statistics::median;
use crate::kube_api::Population;
use crate::testbed::process::Process;
use crate::testbed::{ANCHOR, DIRECTORY, Testbed};

/// Measurements of one certificate authority.
#[derive(Default)]
struct Samples {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<f64>,
}

/// Proxies that start at the same time.
const CLIENTS: usize = 50;
const POPULATION: Population = Population {
    services: 200,
    pods: 1,
};
/// So much that the limits of requests to the API server, 100 a second, are not reached.
const UNLIMITED: &str = "100000";
/// Certificates a second, as a ratio to Istio's, with immediate reviews. Slow reviews limit the
/// requests of this number of clients.
const MIN_OF_ISTIO: f64 = 5.0;

/// Measures requests while a TokenReview takes this many milliseconds.
pub(super) fn row(testbed: &Testbed, plan: &Plan, token_review: u32) -> anyhow::Result<Row> {
    let api = KubeApi::start_with(testbed, POPULATION, token_review)?;
    let mut all = Vec::new();
    for system in plan.systems() {
        let controller = match system {
            System::Ours => identity(testbed, &api)?,
            System::Istio => istio(testbed, &api)?,
        };
        // The first requests open connections to the API server.
        request(testbed, system, &controller, 1)?;
        all.push((system, controller, Samples::default()));
    }
    let monitor = NoiseMonitor::start(&testbed.cgroup)?;
    for _ in 0..plan.starts {
        for (system, controller, samples) in &mut all {
            testbed.check_interrupt()?;
            let cpu = controller.cpu()?;
            let outcome = request(testbed, *system, controller, plan.seconds)?;
            let operations = number(&outcome, "operations")?;
            samples.cpu.push((controller.cpu()? - cpu) / operations);
            samples.rate.push(operations / number(&outcome, "seconds")?);
            samples.p50.push(number(&outcome, "p50")? / 1e6);
            samples.p99.push(number(&outcome, "p99")? / 1e6);
        }
    }
    let noise = monitor.finish()?;
    let figure = |name, unit, values: fn(&Samples) -> &Vec<f64>| {
        let median_of_system = |number: usize| {
            let (_, _, samples) = all.get(number)?;
            median(values(samples))
        };
        let ours = median_of_system(0).context("nothing was measured")?;
        anyhow::Ok(Figure::new(name, unit, ours, median_of_system(1)))
    };
    let mut rate = figure("certificates", Unit::PerSecond, |it| &it.rate)?;
    if token_review == 0 {
        rate = rate.at_least_istio(MIN_OF_ISTIO);
    }
    Ok(Row {
        title: format!("{CLIENTS} clients request certificates, TokenReview {token_review} ms"),
        figures: vec![
            rate,
            figure("median request", Unit::Seconds, |it| &it.p50)?,
            figure("99 % of the requests", Unit::Seconds, |it| &it.p99)?,
            figure("CPU of a certificate", Unit::Seconds, |it| &it.cpu)?,
        ],
        noise,
    })
}

/// Requests certificates, and fails if one is refused.
fn request(
    testbed: &Testbed,
    system: System,
    controller: &Controller,
    seconds: u32,
) -> anyhow::Result<serde_json::Value> {
    let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
    command
        .args(["load", "certify"])
        .args(["--address", &controller.api.to_string()])
        .args(["--clients", &CLIENTS.to_string()])
        .args(["--accounts", &POPULATION.services.to_string()])
        .args(["--seconds", &seconds.to_string()]);
    if system == System::Istio {
        command.arg("--istio");
    }
    let outcome = Process::start("certify", &mut command)?.next_event()?;
    if outcome["failed"] != 0 {
        bail!("{system:?} refused certificates: {outcome}");
    }
    Ok(outcome)
}

/// Starts Istio's control plane so that it authenticates the clients of the port without TLS.
fn istio(testbed: &Testbed, api: &KubeApi) -> anyhow::Result<Controller> {
    let (grpc, admin) = (free_address(), free_address());
    let mut command = istio::command(testbed, &api.kubeconfig()?, grpc, admin)?;
    command.env("XDS_AUTH_PLAINTEXT", "true");
    Controller::run(testbed, "pilot-discovery", command, grpc, admin)
}

/// Starts the identity controller with the issuer of the testbed.
fn identity(testbed: &Testbed, api: &KubeApi) -> anyhow::Result<Controller> {
    let authority = testbed.authority();
    let issuer = Path::new(DIRECTORY).join("issuer");
    fs::create_dir_all(&issuer).with_context(|| format!("create {}", issuer.display()))?;
    for (from, to) in [("issuer.pem", "crt.pem"), ("issuer-key.pem", "key.pem")] {
        fs::copy(authority.join(from), issuer.join(to))
            .with_context(|| format!("copy {from} to {}", issuer.display()))?;
    }
    let (grpc, admin) = (free_address(), free_address());
    let mut command = ours(testbed, "identity", &api.kubeconfig()?)?;
    command
        .arg(format!("--addr={grpc}"))
        .arg(format!("--admin-addr={admin}"))
        .arg("--issuer-dir")
        .arg(issuer)
        .arg("--trust-anchors")
        .arg(authority.join(ANCHOR))
        .arg(format!("--kube-apiclient-qps={UNLIMITED}"))
        .arg(format!("--kube-apiclient-burst={UNLIMITED}"));
    Controller::run(testbed, "identity", command, grpc, admin)
}
