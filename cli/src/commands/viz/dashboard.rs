//! `meshctl viz dashboard`: opens the dashboard of the extension through the API server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::source;
use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use crate::output::browser::{self, Show};

const EXAMPLES: &str = "\
Examples:
  meshctl viz dashboard
  meshctl viz dashboard --show url --port 8084    without opening a browser

The command forwards a port of this machine to the dashboard until Ctrl-C.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Address of this machine to serve the dashboard on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Port on this machine; 0 for any
    #[arg(short, long, value_name = "PORT", default_value_t = browser::PORT)]
    port: u16,
    /// What to open
    #[arg(long, value_enum, default_value_t = Show::Dashboard)]
    show: Show,
    /// How long to wait for a ready dashboard (10s, 2m)
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = mesh_core::units::parse_duration)]
    wait: Duration,
}

/// The port of the dashboard in its pod.
const PORT: u16 = 8084;

/// Connections at the same time. A browser opens six, and one for each live table.
const MAX_CONNECTIONS: usize = 64;

/// The pause between two looks for a ready pod.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn run(
    args: &Args,
    namespace: Option<&str>,
    global: &Global,
) -> anyhow::Result<()> {
    let (cluster, _scope) = source::cluster(global).await?;
    let (namespace, pod) = Box::pin(ready_pod(&cluster, namespace, args.wait)).await?;
    let addr = SocketAddr::new(args.address, args.port);
    let listener = TcpListener::bind(addr).await.map_err(|error| {
        Failure::Input(format!(
            "cannot listen on {addr}: {error}; --port 0 takes any free port"
        ))
    })?;
    let url = browser::url(listener.local_addr().context("read the port")?);
    browser::present(args.show, &url)?;
    Box::pin(serve(&listener, cluster, &namespace, &pod)).await
}

async fn ready_pod(
    cluster: &Cluster,
    namespace: Option<&str>,
    wait: Duration,
) -> anyhow::Result<(String, String)> {
    let deadline = Instant::now() + wait;
    loop {
        match cluster.dashboard_pod(namespace).await {
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(error) if is_permanent(&error) => return Err(error),
            Err(_not_ready) => sleep(INTERVAL).await,
            Ok(pod) => return Ok(pod),
        }
    }
}

/// Whether waiting does not help, for example without permission to list pods.
fn is_permanent(error: &anyhow::Error) -> bool {
    !matches!(
        error.downcast_ref::<Failure>(),
        Some(Failure::Unreachable(_))
    )
}

/// Forwards connections until the process is interrupted.
async fn serve(
    listener: &TcpListener,
    cluster: Cluster,
    namespace: &str,
    pod: &str,
) -> anyhow::Result<()> {
    let cluster = Arc::new(cluster);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = permits.clone().acquire_owned().await?;
        let (client, _from) = listener.accept().await.context("accept a connection")?;
        let (cluster, namespace, pod) = (cluster.clone(), namespace.to_owned(), pod.to_owned());
        tokio::spawn(async move {
            let forwarded = Box::pin(forward(client, &cluster, &namespace, &pod)).await;
            if let Err(error) = forwarded {
                output::note(&format!("a connection failed: {error:#}"));
            }
            drop(permit);
        });
    }
}

async fn forward(
    mut client: TcpStream,
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
) -> anyhow::Result<()> {
    let mut connection = cluster.forward(namespace, pod, PORT).await?;
    // The browser closes connections as it likes.
    drop(copy_bidirectional(&mut client, &mut connection.io).await);
    match connection.failure_reason {
        None => Ok(()),
        Some(reason) => match tokio::time::timeout(INTERVAL, reason).await {
            Ok(Some(reason)) => Err(anyhow::anyhow!(reason)),
            Ok(None) | Err(_) => Ok(()),
        },
    }
}
