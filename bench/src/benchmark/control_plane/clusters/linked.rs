//! The scripted API servers of linked clusters, and of the one that links them.

use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::Value;

use super::{POD_LIFETIME, population};
use crate::benchmark::control_plane::command::on_cpu;
use crate::testbed::process::Process;
use crate::testbed::{SERVER, Testbed};

/// A running `mesh-bench linked-clusters`.
pub(super) struct Linked {
    process: Process,
    /// The API server for the destination controller.
    pub(super) destination: SocketAddr,
    /// The API server for service mirrors.
    pub(super) mirrors: SocketAddr,
}

impl Linked {
    pub(super) fn start(testbed: &Testbed, clusters: u32, services: u32) -> anyhow::Result<Self> {
        let population = population(services);
        let mut command = on_cpu(testbed, testbed.cpus.load, &testbed.programs.bench)?;
        command
            .arg("linked-clusters")
            .args(["--clusters", &clusters.to_string()])
            .args(["--services", &population.services.to_string()])
            .args(["--pods", &population.pods.to_string()])
            .args(["--pod-lifetime", &POD_LIFETIME.to_string()])
            .args(["--server-name", SERVER])
            .arg("--authority")
            .arg(testbed.authority());
        let process = Process::start("linked-clusters", &mut command)?;
        let event = process.next_event()?;
        Ok(Self {
            destination: address(&event, "destination")?,
            mirrors: address(&event, "mirrors")?,
            process,
        })
    }

    /// Closes the connections of the first clusters, or brings all back.
    pub(super) fn away(&mut self, clusters: u32) -> anyhow::Result<()> {
        self.process.write_line(&format!("away {clusters}"))?;
        self.process.next_event().map(drop)
    }
}

fn address(event: &Value, name: &str) -> anyhow::Result<SocketAddr> {
    let text = event[name].as_str();
    let address = text.and_then(|text| text.parse().ok());
    address.with_context(|| format!("{event} has no address {name:?}"))
}
