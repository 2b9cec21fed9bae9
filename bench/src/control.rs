//! `mesh-bench control`: a control plane whose answers are computed and need no waiting.
//!
//! Every proxy under test has one on its loopback address, which proxies trust without TLS. `answers` says what is said, `services` is the gRPC. The only
//! thing that ever changes are the endpoints of the moving services, and only while the line `changes N` on standard input asks for it.

mod answers;
mod services;

use std::{net::Ipv4Addr, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Args;
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::watch, time::MissedTickBehavior};
use tower::service_fn;

use self::{answers::Answers, services::Services};
use crate::{authority::Authority, say};

/// How often a thousand changes a second are divided: finer than a proxy's own batching, coarse enough for a timer.
const TICK: Duration = Duration::from_millis(2);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Where to listen
    #[arg(long)]
    listen: SocketAddr,
    /// The folder that `mesh-bench authority` filled
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
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
    authority: Arc<Authority>,
    answers: Arc<Answers>,
    /// How many changes the moving services have seen.
    turn: watch::Receiver<u64>,
}

/// Serves until the process is ended.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let (turns, turn) = watch::channel(0);
    let control_plane = ControlPlane {
        authority: Arc::new(Authority::load(&options.authority)?),
        answers: Arc::new(Answers::new(&options)?),
        turn,
    };
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    tokio::spawn(change(turns));
    say(&serde_json::json!({ "listening": options.listen.to_string() }))?;
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

/// Turns the moving services as often as standard input asks.
async fn change(turns: watch::Sender<u64>) {
    let (wish, mut wished) = watch::channel(0_u64);
    // A thread: a pipe cannot be read without one that may block.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let number = line.strip_prefix("changes ").map(str::parse);
            if let Some(Ok(rate)) = number {
                wish.send_replace(rate);
            }
        }
    });
    let mut owed = 0.0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        if *wished.borrow_and_update() == 0 {
            if wished.changed().await.is_err() {
                return;
            }
            ticks.reset();
            continue;
        }
        ticks.tick().await;
        owed += *wished.borrow() as f64 * TICK.as_secs_f64();
        while owed >= 1.0 {
            owed -= 1.0;
            turns.send_modify(|turn| *turn += 1);
            // Each change is a message of its own, not a part of the next.
            tokio::task::yield_now().await;
        }
    }
}
