//! `mesh-bench control`: a control plane whose answers are computed and need no waiting.
//!
//! Every proxy under test has one on its loopback address, which proxies trust without TLS.
//! `answers` says what is said, `services` is the gRPC. Nothing changes but by a line on standard
//! input: `changes N` moves the endpoints of the moving services so often in a second,
//! `authority DIR` signs with another issuer from then on.

mod responses;
mod services;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::watch, time::MissedTickBehavior};
use tower::service_fn;

use self::{responses::Responses, services::Services};
use crate::{
    authority::{CertificateAuthority, LIFETIME},
    print_error, print_event,
};

/// How often a thousand changes a second are divided: finer than a proxy's own batching, coarse
/// enough for a timer.
const TICK: Duration = Duration::from_millis(2);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where to listen
    #[arg(long)]
    listen: SocketAddr,
    /// The directory that `mesh-bench authority` filled
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// How long the certificates are valid that proxies ask for
    #[arg(long, value_name = "SECONDS", default_value_t = LIFETIME.as_secs())]
    lifetime: u64,
    /// The pod behind every ordinary service
    #[arg(long)]
    server: Ipv4Addr,
    /// The identity of that pod's proxy
    #[arg(long, value_name = "NAME")]
    server_identity: String,
    /// The identity of the client's proxy, which the server's policies admit
    #[arg(long, value_name = "NAME")]
    client_identity: String,
    /// Ports whose bytes nobody looks at
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    opaque: Vec<u16>,
    /// Ports that are opaque, and served without the mesh's TLS
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    plain: Vec<u16>,
    /// Ports that are looked into, and served without the mesh's TLS
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    clear: Vec<u16>,
}

/// What all connections share.
#[derive(Clone)]
struct ControlPlane {
    authority: watch::Receiver<Arc<CertificateAuthority>>,
    responses: Arc<Responses>,
    /// How many changes the moving services have seen.
    turn: watch::Receiver<u64>,
}

/// Serves until the process is ended.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let lifetime = Duration::from_secs(options.lifetime);
    let first = CertificateAuthority::load(&options.authority, lifetime)?;
    let (authorities, authority) = watch::channel(Arc::new(first));
    let (turn_sender, turn) = watch::channel(0);
    let (rates, rate) = watch::channel(0);
    let control_plane = ControlPlane {
        authority,
        responses: Arc::new(Responses::new(&options)?),
        turn,
    };
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    tokio::spawn(advance_turns(rate, turn_sender));
    // A thread: a pipe cannot be read without one that may block.
    std::thread::spawn(move || execute_commands(&rates, &authorities, lifetime));
    print_event(&serde_json::json!({ "listening": options.listen.to_string() }))?;
    loop {
        let (tcp, _) = listener.accept().await.context("accept a proxy")?;
        // An answer that waits for the acknowledgement of another is not given at once.
        tcp.set_nodelay(true).context("send without delay")?;
        let services = Services(control_plane.clone());
        let service =
            TowerToHyperService::new(service_fn(move |request| services.clone().route(request)));
        let connection =
            http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(tcp), service);
        // How a connection ends is the proxy's affair.
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// Does what standard input says, line by line.
fn execute_commands(
    changes: &watch::Sender<u64>,
    authorities: &watch::Sender<Arc<CertificateAuthority>>,
    lifetime: Duration,
) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("changes", rate)) if let Ok(rate) = rate.parse() => {
                changes.send_replace(rate);
            }
            Some(("authority", directory)) => {
                match CertificateAuthority::load(Path::new(directory), lifetime) {
                    Ok(authority) => drop(authorities.send_replace(Arc::new(authority))),
                    Err(error) => print_error(&error.context("the issuer stays the same")),
                }
            }
            _ => print_error(&anyhow::anyhow!(
                "neither `changes N` nor `authority DIR`: {line:?}"
            )),
        }
    }
}

/// Turns the moving services as often as it is wished.
async fn advance_turns(mut rate: watch::Receiver<u64>, turn_sender: watch::Sender<u64>) {
    let mut due = 0.0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        if *rate.borrow_and_update() == 0 {
            if rate.changed().await.is_err() {
                return;
            }
            ticks.reset();
            continue;
        }
        ticks.tick().await;
        due += *rate.borrow() as f64 * TICK.as_secs_f64();
        while due >= 1.0 {
            due -= 1.0;
            turn_sender.send_modify(|turn| *turn += 1);
            // Each change is a message of its own, not a part of the next.
            tokio::task::yield_now().await;
        }
    }
}
