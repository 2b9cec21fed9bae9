//! A stream to a port of a pod, through the API server and the kubelet.
//!
//! The kubelet connects to the port on the pod's own loopback, which no redirection touches; for a
//! pod in the host's network that is the node's loopback, which is where the node agent's admin
//! server listens.

use std::time::Duration;

use anyhow::Context as _;
use kube::Api;
use mesh_k8s::kinds::Pod;

use super::{Cluster, error};
use crate::{exit::Failure, mesh::connection::Connection};

/// API server, kubelet and container runtime each add a hop; a healthy cluster takes tens of
/// milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

impl Cluster {
    pub(crate) async fn forward(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> anyhow::Result<Connection> {
        let what = format!("reach port {port} of pod {namespace}/{pod}");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let ports = [port];
        let forwarder = tokio::time::timeout(PATIENCE, pods.portforward(pod, &ports)).await;
        let forwarder = forwarder.map_err(|_elapsed| {
            Failure::TimedOut(format!(
                "cannot {what}: no answer within {} s",
                PATIENCE.as_secs()
            ))
        })?;
        let mut forwarder = forwarder.map_err(|error| error::failed(&what, error))?;
        let io = forwarder
            .take_stream(port)
            .with_context(|| format!("cannot {what}: the stream was taken already"))?;
        let mut connection = Connection::new(io);
        if let Some(trouble) = forwarder.take_error(port) {
            connection.trouble = Some(Box::pin(trouble));
        }
        Ok(connection)
    }
}
