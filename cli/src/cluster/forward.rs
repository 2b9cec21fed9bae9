//! Streams to ports of pods, through the API server and the kubelet. The kubelet connects on the
//! loopback interface of the pod, which is never redirected. For a pod in the host network that is
//! the loopback interface of the node, where the admin server of the node agent listens.

use std::time::Duration;

use anyhow::Context as _;
use kube::Api;
use mesh_core::exposition::{self, Sample};
use mesh_k8s::kinds::Pod;

use super::{Cluster, error};
use crate::clients::connection::Connection;
use crate::clients::http;
use crate::exit::Failure;

/// API server, kubelet and container runtime add one hop each; a healthy cluster takes tens of
/// milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Cluster {
    pub(crate) async fn forward(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
    ) -> anyhow::Result<Connection> {
        self.forward_within(namespace, pod, port, CONNECT_TIMEOUT)
            .await
    }

    /// Like [`Self::forward`], with a limit of the caller.
    pub(crate) async fn forward_within(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
        timeout: Duration,
    ) -> anyhow::Result<Connection> {
        let what = format!("reach port {port} of pod {namespace}/{pod}");
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let ports = [port];
        let forwarder = tokio::time::timeout(timeout, pods.portforward(pod, &ports)).await;
        let forwarder = forwarder.map_err(|_elapsed| {
            Failure::TimedOut(format!("cannot {what}: no response within {timeout:?}"))
        })?;
        let mut forwarder = forwarder.map_err(|error| error::failed(&what, error))?;
        let io = forwarder
            .take_stream(port)
            .with_context(|| format!("cannot {what}: the stream is already in use"))?;
        let mut connection = Connection::new(io);
        if let Some(failure_reason) = forwarder.take_error(port) {
            connection.failure_reason = Some(Box::pin(failure_reason));
        }
        Ok(connection)
    }

    /// Returns the metrics at a port of a pod. The limit is of the connection and of the response
    /// each.
    pub(crate) async fn metrics(
        &self,
        namespace: &str,
        pod: &str,
        port: u16,
        timeout: Duration,
    ) -> anyhow::Result<Vec<Sample>> {
        let server = format!("port {port} of pod {namespace}/{pod}");
        let connection = self.forward_within(namespace, pod, port, timeout);
        let request = http::Get {
            server: &server,
            host: "localhost",
            path: "/metrics",
            timeout,
        };
        let (status, body) = http::get_any_status(connection.await?, &request).await?;
        anyhow::ensure!(
            status == ::http::StatusCode::OK,
            "GET /metrics from {server} returned {status}"
        );
        Ok(exposition::parse(&body))
    }
}
