//! Reviews of new pods by the injector's webhook in a closed loop, on one connection with HTTP/2 as
//! an API server has it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use h2::client::SendRequest;
use http::Request;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::closed_loops;
use crate::kube_api::new_pod;
use crate::tls;

/// The windows of Go's HTTP/2 client, which API servers use. With those that HTTP/2 starts with,
/// responses would wait for each other.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the webhook
    #[arg(long)]
    address: SocketAddr,
    /// Directory of the authority whose anchor the webhook's certificate has
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// DNS name in the webhook's certificate
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Number of reviews at the same time
    #[arg(long)]
    concurrent: usize,
    /// Containers of each pod
    #[arg(long)]
    containers: u32,
    /// Number of Services in the cluster, whose pods are new
    #[arg(long)]
    services: u32,
    #[arg(long)]
    seconds: f64,
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let tcp = TcpStream::connect(options.address)
        .await
        .with_context(|| format!("connect to {}", options.address))?;
    tcp.set_nodelay(true)?;
    let connected = tls::connect(tcp, &options.authority, "client", &options.name, &[b"h2"]);
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(connected.await?)
        .await?;
    let connection = tokio::spawn(connection);
    let services = 0..options.services;
    let bodies: Vec<Bytes> = services
        .map(|service| review(service, options.containers).to_string().into())
        .collect();
    let bodies: &'static [Bytes] = bodies.leak();
    let clients = vec![sender; options.concurrent];
    let address = options.address;
    let send = move |sender, body| send(sender, address, body);
    closed_loops(clients, bodies, options.seconds, send).await?;
    connection.abort();
    Ok(())
}

/// Sends a review, and fails unless the response has a patch.
async fn send(
    sender: SendRequest<Bytes>,
    address: SocketAddr,
    body: &'static Bytes,
) -> anyhow::Result<()> {
    let request = Request::post(format!("https://{address}/?timeout=10s"))
        .header("content-type", "application/json")
        .body(())?;
    let (response, mut stream) = sender.ready().await?.send_request(request, false)?;
    super::wait_for_capacity(&mut stream, body.len()).await?;
    stream.send_data(body.clone(), true)?;
    let response = response.await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        text.extend_from_slice(&data);
    }
    let patch = br#""patch":""#;
    if status != 200 || !text.windows(patch.len()).any(|part| part == patch) {
        bail!("{status}: {}", String::from_utf8_lossy(&text));
    }
    Ok(())
}

fn review(service: u32, containers: u32) -> Value {
    let pod = new_pod(service, containers);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": format!("review-{service}"),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": pod["metadata"]["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": pod,
            "oldObject": null,
            "dryRun": false,
        },
    })
}
