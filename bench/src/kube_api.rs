//! `mesh-bench kube-api`: a scripted front of a Kubernetes API server, filled with Services and
//! their pods. The benchmark of the controllers runs them against it.
//!
//! It lists and watches every kind that the controllers ask for, and merges writes into stored
//! objects, as for Leases. Its objects match every selector that the controllers use, so that
//! selectors are not evaluated. A list is never divided into pages. `POST /bench/toggle/NS/SERVICE`
//! changes whether one endpoint of the Service is ready.

mod cluster;
mod population;
mod respond;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use self::cluster::Cluster;
use crate::print_event;

pub(crate) use self::population::{PORT, Population, service_name, service_namespace};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    population: Population,
}

/// Serves until the process exits.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let cluster = Arc::new(Cluster::new(options.population));
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    print_event(&json!({ "listening": options.listen.to_string() }))?;
    loop {
        let (tcp, _) = listener.accept().await.context("accept a controller")?;
        // Nagle's algorithm would delay an event until the previous one is acknowledged.
        tcp.set_nodelay(true).context("send without delay")?;
        let cluster = cluster.clone();
        let service = service_fn(move |request| respond::respond(cluster.clone(), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(tcp), service);
        // An error of the connection is the controller's to report.
        tokio::spawn(async move { drop(connection.await) });
    }
}
