//! `mesh-bench linked-clusters`: scripted API servers of linked clusters, and of a cluster that
//! links them, for the benchmark of linked clusters.
//!
//! Each linked cluster has an API server of its own, with TLS, and replaces its pods one after the
//! other ([`replacement`]). Two servers play the cluster that links them. One is a front like
//! [`super::run`]'s, for the destination controller: it has the Secrets of all links, and Services
//! whose endpoints are in linked clusters ([`own`]). The other one is for service mirrors, which
//! write: it has Links, and stores what they write.
//!
//! A line `away N` on standard input closes the connections of the first N clusters and all that
//! follow, until another line says otherwise.

pub(crate) mod own;
mod pods;
mod replacement;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use mesh_test_support::kube_api;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use self::own::Own;
use self::pods::Pods;
use super::cluster::Cluster;
use super::population::Population;
use super::{Front, respond};
use crate::{print_event, tls};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of linked clusters
    #[arg(long)]
    clusters: u32,
    /// Services of each cluster, and their pods
    #[command(flatten)]
    population: Population,
    /// Seconds after which a pod is replaced; the pods of a cluster follow each other evenly
    #[arg(long, value_name = "SECONDS")]
    pod_lifetime: f64,
    /// Directory of `mesh-bench authority` with a certificate `server`
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// The name in that certificate
    #[arg(long, value_name = "DNS")]
    server_name: String,
}

/// The list that the account of a link may not read: Linkerd's charts grant no right to it.
const FORBIDDEN: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Serves until standard input is closed.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let acceptor = tls::acceptor(&options.authority, "server")?;
    let away = watch::Sender::new(0);
    let pods_of_cluster = options.population.total();
    let each = options.pod_lifetime / f64::from(pods_of_cluster.max(1));
    let mut addresses = Vec::new();
    for number in 0..options.clusters {
        let pods = Pods::new(options.population, number);
        let front = Arc::new(Front {
            cluster: Cluster::with(options.population, |plural| pods.objects(plural)),
            token_review_delay: Duration::ZERO,
            forbidden: Some(FORBIDDEN),
        });
        let listener = listen().await?;
        addresses.push(listener.local_addr()?);
        let share = f64::from(number) / f64::from(options.clusters);
        let first = Duration::from_secs_f64(each * share);
        let replace = replacement::run(front.clone(), pods, first, Duration::from_secs_f64(each));
        tokio::spawn(replace);
        let serve = server::run(front, listener, acceptor.clone(), number, away.subscribe());
        tokio::spawn(serve);
    }
    let own = Own::new(&options, &addresses)?;
    let listener = listen().await?;
    let destination = listener.local_addr()?;
    let front = Arc::new(Front {
        cluster: Cluster::with(options.population, |plural| own.objects(plural)),
        token_review_delay: Duration::ZERO,
        forbidden: None,
    });
    let respond = move |request| respond::respond(front.clone(), request);
    tokio::spawn(kube_api::serve(listener, respond));
    let mirrors = own.for_mirrors().listen("mirror").await;
    print_event(&json!({
        "destination": destination.to_string(), "mirrors": mirrors.to_string(),
    }))?;
    follow_commands(&away).await
}

async fn listen() -> anyhow::Result<TcpListener> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = TcpListener::bind(address).await;
    listener.context("listen on the loopback")
}

async fn follow_commands(away: &watch::Sender<u32>) -> anyhow::Result<()> {
    let (lines, mut commands) = mpsc::unbounded_channel();
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || {
        let all = std::io::stdin().lines().map_while(Result::ok);
        all.for_each(|line| drop(lines.send(line)));
    });
    while let Some(command) = commands.recv().await {
        let Some(number) = command.strip_prefix("away ") else {
            bail!("expected `away N`, got {command:?}");
        };
        let number = number.parse().context("read the number of clusters")?;
        away.send_replace(number);
        print_event(&json!({ "away": number }))?;
    }
    Ok(())
}
