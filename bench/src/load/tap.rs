//! A tap of one proxy over mutual TLS, as the tap service makes it: a subscription for a second,
//! which ends early after `--limit` requests. It is on every other second, so that one load is
//! observed with the tap and without it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use http::Uri;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mesh_api::proto::tap::tap_client::TapClient;
use mesh_core::tap::{TapEventKind, TapFilter, TapRequest};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::body::Body;

use super::OPERATION_TIMEOUT;
use crate::tls;
use crate::turn::{self, Turn};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the proxy's tap server
    #[arg(long)]
    target: SocketAddr,
    /// Identity of the proxy
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Directory with the files of `mesh-bench authority`, including the files of the leaf `tap`
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Requests that are reported each second
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// The seconds of the clock when it taps
    #[arg(long, value_name = "SECONDS")]
    turn: Turn,
}

/// The totals of a tap.
#[derive(Debug, Default)]
struct Reported {
    requests: u64,
    events: u64,
}

/// Taps until standard input is closed, and reports the totals.
pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let sender = tokio::time::timeout(OPERATION_TIMEOUT, connect(&options))
        .await
        .context("the connection to the tap server timed out")??;
    let (closed, mut is_closed) = oneshot::channel();
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || {
        std::io::stdin().lines().for_each(drop);
        // The receiver is dropped only when the process exits.
        let _sent = closed.send(());
    });
    let first = Instant::now() + options.turn.until(turn::now());
    let mut turns = interval_at(first, turn::PERIOD);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut reported = Reported::default();
    let begun = Instant::now();
    crate::print_event(&json!({ "tapping": options.target.to_string() }))?;
    loop {
        tokio::select! {
            _begun = turns.tick() => {}
            _ended = &mut is_closed => break,
        }
        tokio::select! {
            observed = observe(sender.clone(), options.limit, &mut reported) => observed?,
            _ended = &mut is_closed => break,
        }
    }
    crate::print_event(&json!({
        "requests": reported.requests,
        "events": reported.events,
        "seconds": begun.elapsed().as_secs_f64(),
    }))
}

async fn connect(options: &Options) -> anyhow::Result<SendRequest<Body>> {
    let tcp = TcpStream::connect(options.target)
        .await
        .with_context(|| format!("connect to {}", options.target))?;
    tcp.set_nodelay(true)?;
    let tls = tls::connect(tcp, &options.authority, "tap", &options.name, &[]).await?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .context("begin HTTP/2 with the tap server")?;
    // Its end is reported by the next call.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// Reads the events of one subscription.
async fn observe(
    sender: SendRequest<Body>,
    limit: u32,
    reported: &mut Reported,
) -> anyhow::Result<()> {
    let service = tower::service_fn(move |request| sender.clone().send_request(request));
    let everything = TapRequest {
        limit,
        filter: TapFilter::All(Vec::new()),
        with_headers: false,
    };
    let request = mesh_api::tap::request_to_proto(&everything);
    let mut client = TapClient::with_origin(service, Uri::from_static("http://proxy"));
    let response = client.observe(request).await.context("tap the proxy")?;
    let mut events = response.into_inner();
    while let Some(message) = events.message().await.context("read the events")? {
        let event = mesh_api::tap::event(message)?;
        reported.events += 1;
        if matches!(event.kind, TapEventKind::Request { .. }) {
            reported.requests += 1;
        }
    }
    Ok(())
}
