//! Faults that are planted under load, judged by what the load generators counted. The campaign of
//! faults (`tests/chaos/table`) names these tests.

mod certificates;
mod network;
mod resources;

use mesh_test_support::program::Program;
use tempfile::TempDir;

use crate::harness::{Mesh, Pod, sample};
use crate::load::{mesh, nginx, serve_by};

/// A client and servers of nginx, all of them meshed.
struct Scene {
    client: Pod,
    servers: Vec<Pod>,
    applications: Vec<(Program, TempDir)>,
    mesh: Mesh,
}

impl Scene {
    /// Skips where [`mesh`] does.
    async fn new(servers: usize) -> Option<Self> {
        let mesh = mesh()?;
        let mut scene = Self {
            client: mesh.pod("client").meshed().await,
            servers: Vec::new(),
            applications: Vec::new(),
            mesh,
        };
        for number in 0..servers {
            let pod = scene.mesh.pod(&format!("server{number}")).meshed().await;
            scene.applications.push(nginx(&pod).await);
            scene.servers.push(pod);
        }
        serve_by(&scene.mesh, &scene.servers);
        Some(scene)
    }

    /// The requests that the client's proxy has sent to a server.
    async fn sent_to(&self, server: &Pod) -> f64 {
        let metrics = self.client.metrics().await;
        let parts = [
            "request_total",
            "direction=\"outbound\"",
            &server.identity(),
        ];
        sample(&metrics, &parts).unwrap_or(0.0)
    }

    /// All pods with a proxy.
    fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.servers.iter().chain([&self.client])
    }
}
