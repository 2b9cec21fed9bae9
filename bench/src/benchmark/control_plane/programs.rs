//! The programs of a row: the front of the API server, a controller, and the watches.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};
use mesh_test_support::network::free_address;
use serde_json::Value;

use crate::kube_api::{PORT, Population, service_name, service_namespace};
use crate::testbed::process::Process;
use crate::testbed::{DIRECTORY, Testbed, pod};

/// The front of the API server.
pub(super) struct KubeApi {
    address: SocketAddr,
    _process: Process,
}

/// A controller that has read all objects.
pub(super) struct Controller {
    process: Process,
    grpc: SocketAddr,
    /// Seconds from its start until it was ready.
    pub(super) started: f64,
}

/// The watches of a Service's endpoints.
pub(super) struct Destinations {
    process: Process,
}

/// Seconds from a change until it arrived.
pub(super) struct Change {
    pub(super) first: f64,
    pub(super) median: f64,
    pub(super) last: f64,
}

impl KubeApi {
    pub(super) fn start(testbed: &Testbed, population: Population) -> anyhow::Result<Self> {
        let address = free_address();
        let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        command
            .args(["kube-api", "--listen", &address.to_string()])
            .args(["--services", &population.services.to_string()])
            .args(["--pods", &population.pods.to_string()]);
        let process = Process::start("kube-api", &mut command)?;
        process.next_event()?;
        Ok(Self {
            address,
            _process: process,
        })
    }

    fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let text = format!(
            "apiVersion: v1
kind: Config
current-context: bench
clusters: [{{name: bench, cluster: {{server: 'http://{}'}}}}]
users: [{{name: bench, user: {{}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: bench}}}}]
",
            self.address
        );
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

impl Controller {
    /// Starts `mesh-controller destination` or `policy`, and waits until it is ready.
    pub(super) fn start(testbed: &Testbed, name: &str, api: &KubeApi) -> anyhow::Result<Self> {
        let kubeconfig = Path::new(DIRECTORY).join("kubeconfig");
        api.write_kubeconfig(&kubeconfig)?;
        let (grpc, admin) = (free_address(), free_address());
        let mut command = on_cpu(testbed, testbed.cpus.proxies, &testbed.programs.controller)?;
        command.arg(name).arg("--kubeconfig").arg(&kubeconfig);
        match name {
            "policy" => command
                .arg(format!("--grpc-addr={grpc}"))
                .arg(format!("--admin-addr={admin}"))
                .arg("--admission-controller-disabled"),
            _ => command
                .arg(format!("--addr={grpc}"))
                .arg(format!("--metrics-addr={admin}")),
        };
        let begun = Instant::now();
        let mut process = Process::start(name, &mut command)?;
        let mut ready = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        ready.args(["load", "ready", "--path", "/ready", "--at"]);
        let ready = Process::start("ready", ready.arg(admin.to_string()))?.output();
        let started = begun.elapsed().as_secs_f64();
        if let Some(status) = process.exit_status()? {
            bail!("it exited: {status}\n{}", process.command_and_log());
        }
        ready.with_context(|| process.command_and_log())?;
        Ok(Self {
            process,
            grpc,
            started,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Destinations {
    /// Opens the watches of the first Service, and waits until they have its endpoints.
    pub(super) fn start(
        testbed: &Testbed,
        api: &KubeApi,
        controller: &Controller,
        watches: usize,
        endpoints: u32,
    ) -> anyhow::Result<Self> {
        let (name, namespace) = (service_name(0), service_namespace(0));
        let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        command
            .args(["load", "destinations"])
            .args(["--address", &controller.grpc.to_string()])
            .args([
                "--path",
                &format!("{name}.{namespace}.svc.cluster.local:{PORT}"),
            ])
            .args(["--streams", &watches.to_string()])
            .args(["--endpoints", &endpoints.to_string()])
            .arg("--change")
            .arg(format!(
                "http://{}/bench/toggle/{namespace}/{name}",
                api.address
            ));
        let process = Process::start("destinations", &mut command)?;
        let destinations = Self { process };
        destinations.seconds("synced")?;
        Ok(destinations)
    }

    /// Changes the Service and waits until all watches have received it.
    pub(super) fn change(&mut self) -> anyhow::Result<Change> {
        self.process.write_line("change")?;
        let event = self.process.next_event()?;
        Ok(Change {
            first: number(&event, "first")?,
            median: number(&event, "median")?,
            last: number(&event, "last")?,
        })
    }

    /// Opens all watches again, and returns the seconds until they have the endpoints.
    pub(super) fn reconnect(&mut self) -> anyhow::Result<f64> {
        self.process.write_line("reconnect")?;
        self.seconds("synced")
    }

    fn seconds(&self, name: &str) -> anyhow::Result<f64> {
        number(&self.process.next_event()?, name)
    }
}

fn number(event: &Value, name: &str) -> anyhow::Result<f64> {
    let value = event[name].as_f64();
    value.with_context(|| format!("{event} has no number {name:?}"))
}

/// Returns a command outside of the pods, on one CPU, with enough files for all connections.
fn on_cpu(testbed: &Testbed, cpu: usize, program: &Path) -> anyhow::Result<Command> {
    let cgroup = testbed.cgroup.join("control-plane");
    fs::create_dir_all(&cgroup)?;
    let mut command = pod::within_with_files(&cgroup);
    command.args(["taskset", "-c"]);
    command.arg(cpu.to_string()).arg(program);
    Ok(command)
}
