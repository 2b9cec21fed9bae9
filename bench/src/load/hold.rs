//! Many connections that carry one operation and then stay idle until standard input is closed.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http::Request;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::OPERATION_TIMEOUT;
use super::rate::response_length;

/// Connections that are opened concurrently; fewer than the backlog of any listener.
const OPENING: usize = 16;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The first target; the others have the following addresses
    #[arg(long)]
    target: SocketAddr,
    /// Number of targets; connections are distributed to them in turn
    #[arg(long, default_value_t = 1)]
    targets: u32,
    #[arg(long)]
    connections: u32,
    #[arg(long)]
    kind: ConnectionKind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ConnectionKind {
    /// One request each
    Http1,
    /// One request each, with prior knowledge
    Http2,
    /// One byte, which is echoed
    Tcp,
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let SocketAddr::V4(first) = options.target else {
        bail!("targets have IPv4 addresses");
    };
    let opening = Arc::new(Semaphore::new(OPENING));
    let mut opened = JoinSet::new();
    for number in 0..options.connections {
        let ip = u32::from(*first.ip()) + number % options.targets;
        let target = SocketAddr::new(std::net::Ipv4Addr::from(ip).into(), first.port());
        let (opening, kind) = (opening.clone(), options.kind);
        opened.spawn(async move {
            let _turn = opening.acquire_owned().await;
            tokio::time::timeout(OPERATION_TIMEOUT, open(kind, target))
                .await
                .context("the connection timed out")
                .flatten()
                .with_context(|| format!("connection {number}, to {target}"))
        });
    }
    let mut held = Vec::new();
    while let Some(connection) = opened.join_next().await {
        held.push(connection.context("opening a connection panicked")??);
    }
    crate::print_event(&json!({ "held": held.len() }))?;
    // Reads of a pipe block and need a thread.
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().for_each(drop);
        // The receiver is dropped only when the process exits.
        let _sent = end.send(());
    });
    drop(ended.await);
    drop(held);
    Ok(())
}

/// An open connection; closed on drop.
enum HeldConnection {
    Tcp {
        _tcp: TcpStream,
    },
    Http2 {
        _sender: h2::client::SendRequest<Bytes>,
    },
}

async fn open(kind: ConnectionKind, target: SocketAddr) -> anyhow::Result<HeldConnection> {
    let mut tcp = TcpStream::connect(target).await.context("connect")?;
    tcp.set_nodelay(true)?;
    match kind {
        ConnectionKind::Tcp => {
            tcp.write_all(b"x").await?;
            tcp.read_exact(&mut [0]).await.context("no echo")?;
            Ok(HeldConnection::Tcp { _tcp: tcp })
        }
        ConnectionKind::Http1 => {
            let request = format!("GET / HTTP/1.1\r\nhost: {target}\r\n\r\n");
            tcp.write_all(request.as_bytes()).await?;
            let mut response = Vec::new();
            while response_length(&response)?.is_none_or(|whole| response.len() < whole) {
                if tcp.read_buf(&mut response).await? == 0 {
                    bail!("connection closed before a response");
                }
            }
            Ok(HeldConnection::Tcp { _tcp: tcp })
        }
        ConnectionKind::Http2 => open_http2(tcp, target).await,
    }
}

async fn open_http2(tcp: TcpStream, target: SocketAddr) -> anyhow::Result<HeldConnection> {
    let (mut sender, connection) = h2::client::handshake(tcp).await?;
    tokio::spawn(async move {
        drop(connection.await);
        // The connection stays open until its `HeldConnection` is dropped; one that the proxy
        // closes early is not reopened.
        pending::<()>().await;
    });
    let request = Request::get(format!("http://{target}/")).body(())?;
    let (response, _) = sender.send_request(request, true)?;
    let response = response.await.context("no response")?;
    if response.status() != 200 {
        bail!("{}", response.status());
    }
    let mut body = response.into_body();
    while let Some(piece) = body.data().await {
        let length = piece?.len();
        body.flow_control().release_capacity(length)?;
    }
    Ok(HeldConnection::Http2 { _sender: sender })
}
