//! `mesh-bench kube-api`: a scripted front of a Kubernetes API server, filled with Services and
//! their pods. The benchmark of the controllers runs them against it.
//!
//! It lists and watches every kind that the controllers ask for, and merges writes into stored
//! objects, as for Leases. Its objects match every selector that the controllers use, so it does
//! not evaluate selectors. It divides lists into pages by `limit` and `continue`. It authenticates
//! each token of a ServiceAccount, whatever its signature, after `--token-review-delay`
//! milliseconds.
//!
//! [`linked`] serves several such clusters, and one that links them.
//!
//! `POST /bench/toggle/NS/SERVICE` changes whether one endpoint of the Service is ready, and
//! `POST /bench/toggle-opaque/NS/SERVICE` whether its port is opaque.

mod cluster;
mod kinds;
pub(crate) mod linked;
mod population;
mod respond;
mod token_review;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use mesh_test_support::kube_api;
use serde_json::json;
use tokio::net::TcpListener;

use self::cluster::Cluster;
use crate::print_event;

pub(crate) use self::population::{PORT, Population, new_pod, service_name, service_namespace};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    population: Population,
    /// Milliseconds until a TokenReview is answered
    #[arg(long, value_name = "MS", default_value_t = 0)]
    token_review_delay: u64,
}

/// The state behind the responses.
struct Front {
    cluster: Cluster,
    token_review_delay: Duration,
    /// The path of a list that clients may not read.
    forbidden: Option<&'static str>,
}

/// Serves until the process exits.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let front = Arc::new(Front {
        cluster: Cluster::new(options.population),
        token_review_delay: Duration::from_millis(options.token_review_delay),
        forbidden: None,
    });
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    print_event(&json!({ "listening": options.listen.to_string() }))?;
    let respond = move |request| respond::respond(front.clone(), request);
    Err(kube_api::serve(listener, respond).await).context("accept a controller")
}
