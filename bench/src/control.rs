//! `mesh-bench control`: a control plane that computes its responses without delay.
//!
//! Every proxy under test has one on its loopback address, which proxies trust without TLS.
//! `responses` computes policies and endpoints, `services` implements the gRPC services. Commands
//! on standard input change its state: `changes N even` or `odd` changes the endpoints of the
//! moving services N times a second in such seconds of the clock, `authority DIR` replaces the
//! issuer. `sent` prints the number of messages about endpoints of moving services.

mod responses;
mod services;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum as _};
use mesh_test_support::control_plane::serve_connection;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use self::responses::Responses;
use crate::authority::{CertificateAuthority, LIFETIME};
use crate::turn::{self, Turn};
use crate::{print_error, print_event};

/// Interval between changes: shorter than a proxy's own batching, long enough for a timer.
const TICK: Duration = Duration::from_millis(2);
/// The end of a second with changes has none, so that the next one has no message about them.
const LAST_CHANGE: Duration = Duration::from_millis(950);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Directory with the files of `mesh-bench authority`
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Lifetime of the certificates issued to proxies
    #[arg(long, value_name = "SECONDS", default_value_t = LIFETIME.as_secs())]
    lifetime: u64,
    /// Address of the pod behind every ordinary service
    #[arg(long)]
    server: Ipv4Addr,
    /// Identity of that pod's proxy
    #[arg(long, value_name = "NAME")]
    server_identity: String,
    /// Identity of the client's proxy, which the server's policies authorize
    #[arg(long, value_name = "NAME")]
    client_identity: String,
    /// Opaque ports
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    opaque: Vec<u16>,
    /// Opaque ports without the mesh's TLS
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    plain: Vec<u16>,
    /// Ports with protocol detection and without the mesh's TLS
    #[arg(long, value_name = "PORT", value_delimiter = ',')]
    clear: Vec<u16>,
}

/// The rate of changes to endpoints, and their turn.
#[derive(Clone, Copy)]
struct Changes {
    rate: u64,
    turn: Turn,
}

/// State shared by all connections.
#[derive(Clone)]
struct ControlPlane {
    authority: watch::Receiver<Arc<CertificateAuthority>>,
    responses: Arc<Responses>,
    /// Number of endpoint changes of the moving services.
    change: watch::Receiver<u64>,
    /// Number of messages about them. One counts when the connection takes it, so that clients that
    /// do not read have a window of them at most.
    sent: Arc<AtomicU64>,
}

/// Serves until the process exits.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let lifetime = Duration::from_secs(options.lifetime);
    let first = CertificateAuthority::load(&options.authority, lifetime)?;
    let (authorities, authority) = watch::channel(Arc::new(first));
    let (change_sender, change) = watch::channel(0);
    let (requests, requested) = watch::channel(None);
    let sent = Arc::default();
    let control_plane = ControlPlane {
        authority,
        responses: Arc::new(Responses::new(&options)?),
        change,
        sent: Arc::clone(&sent),
    };
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    tokio::spawn(make_changes(requested, change_sender));
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || execute_commands(&requests, &sent, &authorities, lifetime));
    print_event(&serde_json::json!({ "listening": options.listen.to_string() }))?;
    loop {
        let (tcp, _) = listener.accept().await.context("accept a proxy")?;
        // Nagle's algorithm would delay a response until the previous one is acknowledged.
        tcp.set_nodelay(true).context("send without delay")?;
        tokio::spawn(serve_connection(tcp, control_plane.clone()));
    }
}

/// Executes the commands on standard input, one per line.
fn execute_commands(
    requests: &watch::Sender<Option<Changes>>,
    sent: &AtomicU64,
    authorities: &watch::Sender<Arc<CertificateAuthority>>,
    lifetime: Duration,
) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            None if line == "sent" => {
                let sent = serde_json::json!({ "sent": sent.load(Ordering::Relaxed) });
                // Nothing waits for it if standard output is closed.
                print_event(&sent).unwrap_or_else(|error| print_error(&error));
            }
            Some(("changes", changes)) if let Some(changes) = Changes::parse(changes) => {
                requests.send_replace(Some(changes));
            }
            Some(("authority", directory)) => {
                match CertificateAuthority::load(Path::new(directory), lifetime) {
                    Ok(authority) => {
                        let _previous = authorities.send_replace(Arc::new(authority));
                    }
                    Err(error) => print_error(&error.context("keep the current issuer")),
                }
            }
            _ => print_error(&anyhow::anyhow!(
                "expected `changes N even|odd`, `sent` or `authority DIR`, got {line:?}"
            )),
        }
    }
}

impl Changes {
    fn parse(words: &str) -> Option<Self> {
        let (rate, turn) = words.split_once(' ')?;
        Some(Self {
            rate: rate.parse().ok()?,
            turn: Turn::from_str(turn, false).ok()?,
        })
    }
}

/// Changes the endpoints of the moving services as requested.
async fn make_changes(
    mut requested: watch::Receiver<Option<Changes>>,
    changes: watch::Sender<u64>,
) {
    let mut due = 0.0;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        let request = *requested.borrow_and_update();
        let Some(Changes { rate, turn }) = request else {
            if requested.changed().await.is_err() {
                return;
            }
            continue;
        };
        let time = turn::now();
        if Turn::at(time) != turn || turn::elapsed(time) > LAST_CHANGE {
            tokio::select! {
                () = tokio::time::sleep(turn.until(time)) => {}
                changed = requested.changed() => if changed.is_err() {
                    return;
                }
            }
            ticks.reset();
            continue;
        }
        ticks.tick().await;
        due += rate as f64 * TICK.as_secs_f64();
        while due >= 1.0 {
            due -= 1.0;
            changes.send_modify(|change| *change += 1);
            // Sends each change as a separate message.
            tokio::task::yield_now().await;
        }
    }
}
