//! Measures the metrics API's own time for the statistics of 200 Deployments with 1,000 pods.
//!
//! A Prometheus scrapes the series of the proxies of all pods, which `mesh-bench series` serves.
//! The metrics API reads the objects from manifests. Its own time is the CPU time of its process:
//! reading the request, making the queries, reading their results, making the rows. The time that
//! it waits for Prometheus is only part of the time until the response.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use mesh_test_support::network::free_address;

use super::Run;
use super::load::{self, Outcome};
use super::metric::{Metric, SystemUnderTest};
use super::row::{Round, Row, Sample};
use super::traffic::rounds;
use crate::series::{NAMESPACE, Population, pod_name, workload_name};
use crate::testbed::process::{Process, wait_until};
use crate::testbed::{DIRECTORY, Testbed, pod, usage};

const POPULATION: Population = Population {
    workloads: 200,
    pods: 5,
};
/// Linkerd's interval.
const SCRAPE_INTERVAL: &str = "10s";
/// Requests in a round.
const CALLS: u32 = 10;

/// The running programs. Dropped in this order.
struct MetricsApi {
    server: Process,
    address: SocketAddr,
    _prometheus: Process,
    _series: Process,
}

pub(super) fn row(run: Run<'_>) -> anyhow::Result<Row> {
    let mut api = MetricsApi::start(run.testbed)?;
    // The rate of a counter needs two scrapes.
    wait_until("all workloads have requests", || {
        run.testbed.check_interrupt()?;
        if let Some(status) = api.server.exit_status()? {
            bail!(
                "the metrics API exited: {status}\n{}",
                api.server.command_and_log()
            );
        }
        let response = api.stat(run.testbed, 1);
        Ok(response
            .is_ok_and(|outcome| outcome.failed == 0)
            .then_some(()))
    })?;
    rounds(run, |_, _| {
        let before = usage::run_time(api.server.id())?;
        let outcome = api.stat(run.testbed, CALLS)?;
        let used = usage::run_time(api.server.id())? - before;
        let response = outcome.p50.context("the metrics API has responded")?;
        let sample = Sample::from([
            (Metric::ApiCpu, used / f64::from(CALLS)),
            (Metric::ApiResponse, response),
        ]);
        Ok(Round {
            samples: [(SystemUnderTest::MeshProxy, sample)].into(),
            failed: [(SystemUnderTest::MeshProxy, outcome.failed)].into(),
            ..Round::default()
        })
    })
}

impl MetricsApi {
    fn start(testbed: &Testbed) -> anyhow::Result<Self> {
        let program = &testbed.programs.viz;
        if !program.exists() {
            bail!(
                "{} does not exist: run without --no-build",
                program.display()
            );
        }
        let directory = Path::new(DIRECTORY).join("metrics-api");
        let manifests = directory.join("manifests");
        fs::create_dir_all(&manifests)?;
        for workload in 0..POPULATION.workloads {
            let file = manifests.join(format!("{}.yaml", workload_name(workload)));
            fs::write(&file, objects(workload))?;
        }
        let (series, target) = start_series(testbed)?;
        let (prometheus, url) = start_prometheus(testbed, &directory, target)?;
        let address = free_address();
        let mut command = on_cpu(testbed, testbed.cpus.proxies, program)?;
        command
            .args(["metrics-api", "--prometheus-url", &url, "--source-dir"])
            .arg(&manifests)
            .arg(format!("--addr={address}"))
            .arg(format!("--metrics-addr={}", free_address()));
        let server = Process::start("metrics-api", &mut command)?;
        Ok(Self {
            server,
            address,
            _prometheus: prometheus,
            _series: series,
        })
    }

    /// Requests the statistics of all workloads. A workload without requests is a failure.
    fn stat(&self, testbed: &Testbed, calls: u32) -> anyhow::Result<Outcome> {
        let cpu = testbed.cpus.load;
        let mut command = on_cpu(testbed, cpu, &testbed.programs.bench)?;
        command
            .args(["load", "stat", "--target", &self.address.to_string()])
            .args(["--namespace", NAMESPACE])
            .args(["--workloads", &POPULATION.workloads.to_string()])
            .args(["--calls", &calls.to_string()]);
        let output = Process::start("stat", &mut command)?.output();
        load::parse_bench_load(&output.with_context(|| self.server.command_and_log())?)
    }
}

fn start_series(testbed: &Testbed) -> anyhow::Result<(Process, SocketAddr)> {
    let address = free_address();
    let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
    command
        .args(["series", "--listen", &address.to_string()])
        .args(["--workloads", &POPULATION.workloads.to_string()])
        .args(["--pods", &POPULATION.pods.to_string()]);
    let process = Process::start("series", &mut command)?;
    process.next_event()?;
    Ok((process, address))
}

/// Starts a Prometheus that scrapes a target, and returns its URL.
fn start_prometheus(
    testbed: &Testbed,
    directory: &Path,
    target: SocketAddr,
) -> anyhow::Result<(Process, String)> {
    let configuration = directory.join("prometheus.yml");
    fs::write(&configuration, prometheus_configuration(target))?;
    let data = directory.join("data");
    let address = free_address();
    let mut command = on_cpu(testbed, testbed.cpus.load, &PathBuf::from("prometheus"))?;
    command
        .arg(format!("--config.file={}", configuration.display()))
        .arg(format!("--storage.tsdb.path={}", data.display()))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=error");
    Ok((
        Process::start("prometheus", &mut command)?,
        format!("http://{address}"),
    ))
}

fn prometheus_configuration(target: SocketAddr) -> String {
    format!(
        "global: {{scrape_interval: {SCRAPE_INTERVAL}}}
scrape_configs: [{{job_name: linkerd-proxy, honor_labels: true, static_configs: [{{targets: ['{target}']}}]}}]
"
    )
}

/// Returns a command outside of the pods, on one CPU.
fn on_cpu(testbed: &Testbed, cpu: usize, program: &Path) -> anyhow::Result<Command> {
    let cgroup = testbed.cgroup.join("metrics-api");
    fs::create_dir_all(&cgroup)?;
    let mut command = pod::within(&cgroup);
    command.args(["taskset", "-c", &cpu.to_string()]);
    command.arg(program);
    Ok(command)
}

/// Returns the manifests of a Deployment, its ReplicaSet and its pods.
fn objects(workload: u32) -> String {
    let name = workload_name(workload);
    let set = format!("{name}-7d9c6b5f4");
    let mut text = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {name}, namespace: {NAMESPACE}}}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: {set}, namespace: {NAMESPACE}, ownerReferences: [{{apiVersion: apps/v1, kind: Deployment, name: {name}, uid: {name}}}]}}
"
    );
    for pod in 0..POPULATION.pods {
        // Writing to a string does not fail.
        let _written = write!(
            text,
            "---
apiVersion: v1
kind: Pod
metadata:
  name: {}
  namespace: {NAMESPACE}
  labels: {{linkerd.io/control-plane-ns: linkerd}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: {set}, uid: {set}}}]
spec: {{containers: [], serviceAccountName: {name}}}
status: {{phase: Running, podIP: 10.{}.{}.{}}}
",
            pod_name(workload, pod),
            128 + workload / 256,
            workload % 256,
            pod + 1,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_have_the_pods_of_the_series() {
        let text = objects(3);
        let documents: Vec<&str> = text.split("---\n").collect();
        assert_eq!(documents.len(), 2 + POPULATION.pods as usize);
        for pod in 0..POPULATION.pods {
            let name = format!("name: {}\n", pod_name(3, pod));
            assert!(text.contains(&name), "{text}");
        }
        assert_eq!(POPULATION.workloads * POPULATION.pods, 1000);
    }
}
