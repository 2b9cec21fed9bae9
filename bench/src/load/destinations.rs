//! Many watches of the endpoints of a Service, each on a connection of its own as proxies have
//! them, at any server of Linkerd's destination API.
//!
//! Reports when all watches have so many endpoints. Then commands on standard input, one per line:
//! `change` requests a change of the Service and reports when each watch has received it, and
//! `reconnect` closes all connections, opens them again and reports as at first.

mod scan;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::{BufMut as _, Bytes, BytesMut};
use clap::Args;
use http::Request;
use http::uri::Uri;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::scan::Scanner;
use super::percentile;
use crate::print_event;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of a server of the destination API, without TLS
    #[arg(long)]
    address: SocketAddr,
    /// Service and port, for example web.shop.svc.cluster.local:80
    #[arg(long, value_name = "NAME:PORT", value_parser = path)]
    path: String,
    /// Number of watches
    #[arg(long)]
    streams: usize,
    /// Number of endpoints that the Service has
    #[arg(long)]
    endpoints: u64,
    /// URL without TLS, to which a POST changes the Service
    #[arg(long, value_name = "URL")]
    change: Option<Uri>,
}

/// A watch has received its Service's endpoints, or a change of them.
struct Received {
    at: Instant,
}

/// The watches of all connections. Dropping it closes them.
struct Watches {
    tasks: JoinSet<anyhow::Result<()>>,
    received: UnboundedReceiver<Received>,
    count: usize,
}

/// Enough for a thousand watches of ten thousand endpoints.
const TIMEOUT: Duration = Duration::from_secs(120);
/// So large that no stream waits for the client's windows.
const WINDOW: u32 = 16 * 1024 * 1024;
/// The longest path whose length is one byte in protobuf.
const MAX_PATH: usize = 127;

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let (lines, mut commands) = mpsc::unbounded_channel();
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || {
        let all = std::io::stdin().lines().map_while(Result::ok);
        all.for_each(|line| drop(lines.send(line)));
    });
    let mut watches = Watches::open(&options).await?;
    while let Some(command) = commands.recv().await {
        match command.as_str() {
            "change" => {
                let uri = options.change.as_ref();
                let uri = uri.context("`change` needs the option --change")?;
                let begun = Instant::now();
                let posted = async { post(uri).await.context("request a change") };
                let ((), all) = tokio::try_join!(posted, watches.next_of_each())?;
                let times: Vec<Duration> = all.iter().map(|at| *at - begun).collect();
                let seconds = |share| percentile(&times, share).map(|time| time.as_secs_f64());
                print_event(&json!({
                    "first": seconds(0.0), "median": seconds(0.5), "last": seconds(1.0),
                }))?;
            }
            "reconnect" => {
                drop(watches);
                watches = Watches::open(&options).await?;
            }
            other => bail!("expected `change` or `reconnect`, got {other:?}"),
        }
    }
    Ok(())
}

impl Watches {
    /// Opens all watches, waits for their endpoints and reports the time.
    async fn open(options: &Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let (sender, received) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            let (path, endpoints) = (options.path.clone(), options.endpoints);
            tasks.spawn(watch(options.address, path, endpoints, sender.clone()));
        }
        let mut watches = Self {
            tasks,
            received,
            count: options.streams,
        };
        let times = watches.next_of_each().await?;
        let last = times.last().map(|at| (*at - begun).as_secs_f64());
        print_event(&json!({ "watches": watches.count, "synced": last }))?;
        Ok(watches)
    }

    /// Waits until each watch has received something once, and returns when, in ascending order.
    async fn next_of_each(&mut self) -> anyhow::Result<Vec<Instant>> {
        let mut times = Vec::with_capacity(self.count);
        let all = async {
            while times.len() < self.count {
                tokio::select! {
                    received = self.received.recv() => {
                        times.push(received.context("no watch is open")?.at);
                    }
                    Some(ended) = self.tasks.join_next() => {
                        ended.context("a watch panicked")??;
                        bail!("the server ended a watch");
                    }
                }
            }
            Ok(())
        };
        let outcome = timeout(TIMEOUT, all).await;
        outcome
            .with_context(|| format!("{} of {} watches received it", times.len(), self.count))??;
        times.sort_unstable();
        Ok(times)
    }
}

/// Watches a Service until the server ends the stream.
async fn watch(
    address: SocketAddr,
    path: String,
    endpoints: u64,
    received: UnboundedSender<Received>,
) -> anyhow::Result<()> {
    let tcp = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    tcp.set_nodelay(true)?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake::<_, Bytes>(tcp)
        .await?;
    let stream = read(sender, address, path, endpoints, received);
    tokio::select! {
        outcome = stream => outcome,
        ended = connection => Ok(ended?),
    }
}

async fn read(
    sender: h2::client::SendRequest<Bytes>,
    address: SocketAddr,
    path: String,
    endpoints: u64,
    received: UnboundedSender<Received>,
) -> anyhow::Result<()> {
    let method = "io.linkerd.proxy.destination.Destination/Get";
    let request = Request::post(format!("http://{address}/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (response, mut body) = sender.ready().await?.send_request(request, false)?;
    body.send_data(get_destination(&path), true)?;
    let response = response.await?;
    if let Some(status) = response.headers().get("grpc-status") {
        bail!(
            "grpc-status {status:?}: {:?}",
            response.headers().get("grpc-message")
        );
    }
    let mut body = response.into_body();
    let mut scanner = Scanner::default();
    let mut missing = endpoints;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        for added in scanner.feed(&data)? {
            // A message after the first endpoints is a change.
            let is_change = missing == 0;
            missing = missing.saturating_sub(added);
            if is_change || missing == 0 {
                let at = Instant::now();
                // The receiver is dropped only with this task.
                let _sent = received.send(Received { at });
            }
        }
    }
    match body.trailers().await? {
        Some(trailers) => bail!("the server ended a watch: {trailers:?}"),
        None => bail!("the server ended a watch"),
    }
}

/// Returns the gRPC message `GetDestination` with the scheme `k8s` and a path.
fn get_destination(path: &str) -> Bytes {
    let fields = [(0x0a, "k8s"), (0x12, path)];
    let length: usize = fields.iter().map(|(_, value)| 2 + value.len()).sum();
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(length as u32);
    for (key, value) in fields {
        message.put_u8(key);
        message.put_u8(value.len() as u8);
        message.put_slice(value.as_bytes());
    }
    message.freeze()
}

/// Sends a POST without a body.
async fn post(uri: &Uri) -> anyhow::Result<()> {
    let authority = uri.authority().context("the URL has no host")?;
    let mut tcp = TcpStream::connect(authority.as_str())
        .await
        .with_context(|| format!("connect to {authority}"))?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    tcp.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    tcp.read_to_string(&mut response).await?;
    if !response.starts_with("HTTP/1.1 200") {
        bail!("{}", response.lines().next().unwrap_or("no response"));
    }
    Ok(())
}

fn path(text: &str) -> Result<String, String> {
    if text.len() > MAX_PATH {
        return Err(format!("longer than {MAX_PATH} bytes"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_the_message_of_the_api() {
        // Field 1 is the scheme, field 2 the path.
        let expect = b"\0\0\0\0\x0b\x0a\x03k8s\x12\x04a:80";
        assert_eq!(get_destination("a:80")[..], expect[..]);
        assert!(path(&"a".repeat(MAX_PATH + 1)).is_err());
    }
}
