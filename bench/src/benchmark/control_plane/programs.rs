//! The programs of a row: the front of the API server, a controller, and the watches.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail};
use mesh_test_support::http;
use mesh_test_support::network::free_address;
use serde_json::Value;

use super::command::{on_cpu, ours};
use super::istio;
use crate::kube_api::{PORT, Population, service_name, service_namespace};
use crate::testbed::process::Process;
use crate::testbed::usage::{self, Memory};
use crate::testbed::{DIRECTORY, Testbed};

/// A controller that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Destination,
    Policy,
    /// Istio's control plane, which is one program.
    Istio,
}

/// The front of the API server.
pub(super) struct KubeApi {
    address: SocketAddr,
    pub(super) population: Population,
    _process: Process,
}

/// A controller that has read all objects.
pub(super) struct Controller {
    process: Process,
    /// Address of its API.
    pub(super) api: SocketAddr,
    admin: SocketAddr,
    /// Seconds from its start until it was ready.
    pub(super) started: f64,
}

/// The clients and their watches.
#[derive(Clone, Copy)]
pub(super) struct Clients {
    pub(super) count: usize,
    /// Services that each of them watches.
    pub(super) each: usize,
}

/// The watches of clients.
pub(super) struct Watches {
    process: Process,
}

/// Seconds from a change until it arrived.
pub(super) struct Change {
    pub(super) first: f64,
    pub(super) median: f64,
    pub(super) last: f64,
}

/// The same of many changes and watches.
pub(super) struct Changes {
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) last: f64,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Policy => "policy",
            Self::Istio => "pilot-discovery",
        }
    }

    /// Returns the load program of its watches.
    fn load(self) -> &'static str {
        match self {
            Self::Destination => "destinations",
            Self::Policy => "policies",
            Self::Istio => "endpoints",
        }
    }

    /// Returns the path of the front that changes the objects that its clients watch.
    fn change(self) -> &'static str {
        match self {
            Self::Destination | Self::Istio => "toggle",
            Self::Policy => "toggle-opaque",
        }
    }
}

impl KubeApi {
    pub(super) fn start(testbed: &Testbed, population: Population) -> anyhow::Result<Self> {
        Self::start_with(testbed, population, 0)
    }

    /// Starts it with a delay of TokenReviews in milliseconds.
    pub(super) fn start_with(
        testbed: &Testbed,
        population: Population,
        token_review_delay: u32,
    ) -> anyhow::Result<Self> {
        let address = free_address();
        let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        command
            .args(["kube-api", "--listen", &address.to_string()])
            .args(["--services", &population.services.to_string()])
            .args(["--pods", &population.pods.to_string()])
            .args(["--token-review-delay", &token_review_delay.to_string()]);
        let process = Process::start("kube-api", &mut command)?;
        process.next_event()?;
        Ok(Self {
            address,
            population,
            _process: process,
        })
    }

    /// Writes the file that tells a controller where the front is, and returns its path.
    pub(super) fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        kubeconfig(self.address)
    }
}

/// Writes the file that tells a controller the address of an API server, and returns its path.
pub(super) fn kubeconfig(server: SocketAddr) -> anyhow::Result<PathBuf> {
    let text = format!(
        "apiVersion: v1
kind: Config
current-context: bench
clusters: [{{name: bench, cluster: {{server: 'http://{server}'}}}}]
users: [{{name: bench, user: {{}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: bench}}}}]
"
    );
    let path = Path::new(DIRECTORY).join(format!("kubeconfig-{}", server.port()));
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

impl Controller {
    /// Starts a controller and waits until it is ready.
    pub(super) fn start(testbed: &Testbed, kind: Kind, api: &KubeApi) -> anyhow::Result<Self> {
        Self::start_with(testbed, kind, &api.kubeconfig()?)
    }

    /// The same with the kubeconfig of an API server.
    pub(super) fn start_with(
        testbed: &Testbed,
        kind: Kind,
        kubeconfig: &Path,
    ) -> anyhow::Result<Self> {
        let (grpc, admin) = (free_address(), free_address());
        if kind == Kind::Istio {
            let command = istio::command(testbed, kubeconfig, grpc, admin)?;
            return Self::run(testbed, kind.name(), command, grpc, admin);
        }
        let mut command = ours(testbed, kind.name(), kubeconfig)?;
        match kind {
            Kind::Policy => command
                .arg(format!("--grpc-addr={grpc}"))
                .arg(format!("--admin-addr={admin}"))
                .arg("--admission-controller-disabled"),
            Kind::Destination | Kind::Istio => command
                .arg(format!("--addr={grpc}"))
                .arg(format!("--metrics-addr={admin}")),
        };
        Self::run(testbed, kind.name(), command, grpc, admin)
    }

    /// Runs a command, and waits until `/ready` of its admin server says that it is.
    pub(super) fn run(
        testbed: &Testbed,
        name: &str,
        mut command: Command,
        api: SocketAddr,
        admin: SocketAddr,
    ) -> anyhow::Result<Self> {
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
            api,
            admin,
            started,
        })
    }

    /// Returns its CPU seconds since it started.
    pub(super) fn cpu(&self) -> anyhow::Result<f64> {
        usage::run_time(self.process.id())
    }

    pub(super) fn memory(&self) -> anyhow::Result<Memory> {
        usage::memory(self.process.id())
    }

    /// Returns its resident memory, with its share of pages that several processes have.
    pub(super) fn proportional(&self) -> anyhow::Result<f64> {
        Ok(usage::proportional(self.process.id())? as f64)
    }

    /// Returns the value of a metric without labels.
    pub(super) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let response = http::request(self.admin, "GET /metrics").context("scrape it")?;
        let value = response.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.with_context(|| format!("it has no metric {name}"))
    }

    /// Returns its resident memory.
    pub(super) fn resident(&self) -> anyhow::Result<f64> {
        Ok(self.memory()?.resident as f64)
    }

    /// Lets [`Self::peak`] begin anew.
    pub(super) fn reset_peak(&self) -> anyhow::Result<()> {
        usage::reset_peak(self.process.id())
    }

    /// Returns the maximum of its resident memory.
    pub(super) fn peak(&self) -> anyhow::Result<f64> {
        Ok(usage::peak(self.process.id())? as f64)
    }
}

impl Watches {
    /// Opens the watches, and waits until they have all endpoints.
    pub(super) fn open(
        testbed: &Testbed,
        api: &KubeApi,
        kind: Kind,
        controller: &Controller,
        clients: Clients,
    ) -> anyhow::Result<Self> {
        let Population { services, pods } = api.population;
        let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        command
            .args(["load", kind.load()])
            .args(["--address", &controller.api.to_string()])
            .args(["--streams", &clients.count.to_string()])
            .args(["--each", &clients.each.to_string()])
            .arg("--change")
            .arg(format!(
                "http://{}/bench/{}/{{namespace}}/{{name}}",
                api.address,
                kind.change()
            ));
        if kind != Kind::Policy {
            command.args(["--endpoints", &pods.to_string()]);
        }
        for service in 0..services {
            let (name, namespace) = (service_name(service), service_namespace(service));
            let path = format!("{name}.{namespace}.svc.cluster.local:{PORT}");
            command.args(["--path", &path]);
        }
        let process = Process::start(&format!("watches-of-{}", kind.name()), &mut command)?;
        let watches = Self { process };
        watches.seconds("synced")?;
        Ok(watches)
    }

    /// Changes the first Service and waits until all its watches have received it.
    pub(super) fn change(&mut self) -> anyhow::Result<Change> {
        self.process.write_line("change")?;
        let event = self.process.next_event()?;
        Ok(Change {
            first: number(&event, "first")?,
            median: number(&event, "median")?,
            last: number(&event, "last")?,
        })
    }

    /// Changes the Services in turn, and waits until all watches have received it.
    pub(super) fn changes(&mut self, rate: u32, seconds: u32) -> anyhow::Result<Changes> {
        self.process
            .write_line(&format!("changes {rate} {seconds}"))?;
        let event = self.process.next_event()?;
        Ok(Changes {
            median: number(&event, "median")?,
            p99: number(&event, "p99")?,
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

pub(super) fn number(event: &Value, name: &str) -> anyhow::Result<f64> {
    let value = event[name].as_f64();
    value.with_context(|| format!("{event} has no number {name:?}"))
}
