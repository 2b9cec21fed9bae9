//! `mesh-bench attack`: traffic whose single frames are valid, and that costs the receiver more
//! than the sender.
//!
//! Each connection sends as fast as possible, reads the responses, and is reopened immediately when
//! the receiver closes it. Frames are encoded directly, in writes as large as a receiver's largest
//! read, since a library would spend as much on each frame as the receiver. `kind` generates the
//! frames, `flow_control` tracks the receiver's windows.

mod bytes;
mod flow_control;
mod kind;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::select;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout_at};

use self::flow_control::FlowControl;
use self::kind::{Attack, AttackKind};

/// Size of reads; receivers send little.
const READ: usize = 64 * 1024;
/// The kernel doubles it, and so buffers one write of 256 KiB at most. Bytes still buffered when a
/// connection closes are counted as sent.
const SEND_BUFFER: usize = 128 * 1024;

#[derive(Debug, Args)]
pub(crate) struct Options {
    kind: AttackKind,
    #[arg(long)]
    target: SocketAddr,
    /// Concurrent connections
    #[arg(long, default_value_t = 8)]
    connections: u32,
    #[arg(long)]
    seconds: f64,
}

/// Statistics of attackers.
#[derive(Debug, Default)]
struct AttackStats {
    /// Bytes written to sockets.
    bytes: u64,
    connections: u64,
    streams: u64,
    /// Failed attempts to connect.
    failed: u64,
    /// Error of the first failed attempt.
    failure: Option<String>,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(options.seconds);
    let (kind, target) = (options.kind, options.target);
    let mut attackers = JoinSet::new();
    for _ in 0..options.connections {
        attackers.spawn(attacker(kind, target, end));
    }
    let mut stats = AttackStats::default();
    while let Some(part) = attackers.join_next().await {
        stats.add(part.context("an attacker panicked")?);
    }
    crate::print_event(&json!({
        "bytes": stats.bytes,
        "connections": stats.connections,
        "streams": stats.streams,
        "failed": stats.failed,
        "failure": stats.failure,
        "seconds": begun.elapsed().as_secs_f64(),
    }))
}

/// Attacks over one connection after the other.
async fn attacker(kind: AttackKind, target: SocketAddr, end: Instant) -> AttackStats {
    let mut stats = AttackStats::default();
    while Instant::now() < end {
        match timeout_at(end, connect(target)).await {
            Ok(Ok(tcp)) => {
                stats.connections += 1;
                // The receiver is expected to close connections.
                drop(timeout_at(end, send(kind, target, tcp, &mut stats)).await);
            }
            Ok(Err(error)) => stats.fail(&error),
            Err(_elapsed) => break,
        }
        yield_now().await;
    }
    stats
}

async fn connect(target: SocketAddr) -> std::io::Result<TcpStream> {
    let tcp = TcpStream::connect(target).await?;
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(&tcp);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    // Closed with a reset, which avoids TIME_WAIT: tens of thousands of such sockets slow down
    // every later connect().
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(tcp)
}

/// Sends until the connection is closed.
async fn send(
    kind: AttackKind,
    target: SocketAddr,
    mut tcp: TcpStream,
    stats: &mut AttackStats,
) -> std::io::Result<()> {
    let (mut from, mut to) = tcp.split();
    let mut attack = Attack::new(kind, target);
    let mut flow_control = FlowControl::default();
    let mut buffer = vec![0; READ];
    let mut unsent = attack.opening();
    let mut sent = 0;
    loop {
        if sent == unsent.len() {
            unsent.clear();
            sent = 0;
            if attack.is_exhausted() {
                return Ok(());
            }
            stats.streams += attack.fill(&mut unsent, &mut flow_control);
        }
        select! {
            read = from.read(&mut buffer) => match read? {
                0 => return Ok(()),
                length if kind.is_http2() => flow_control.read(&buffer[..length]),
                _ => (),
            },
            written = to.write(&unsent[sent..]), if sent < unsent.len() => {
                let written = written?;
                sent += written;
                stats.bytes += written as u64;
            }
        }
    }
}

impl AttackStats {
    /// Adds the statistics of another attacker.
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.streams += other.streams;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.failed += 1;
        self.failure.get_or_insert_with(|| error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::ValueEnum as _;
    use tokio::net::TcpListener;

    use super::*;

    /// The deadline holds even if the receiver reads nothing.
    #[tokio::test]
    async fn attack_stops_on_time_against_silent_receiver() {
        for kind in AttackKind::value_variants() {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let target = listener.local_addr().unwrap();
            let end = Instant::now() + Duration::from_millis(50);
            let stats = attacker(*kind, target, end).await;
            assert!(stats.connections == 1 && stats.bytes > 0, "{kind:?}");
        }
    }

    #[tokio::test]
    async fn closed_connections_are_reopened() {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let target = listener.local_addr().unwrap();
        let ending = tokio::spawn(async move {
            while let Ok((mut tcp, _)) = listener.accept().await {
                drop(tcp.read(&mut [0; 1024]).await);
            }
        });
        let end = Instant::now() + Duration::from_millis(200);
        let mut stats = attacker(AttackKind::RapidReset, target, end).await;
        ending.abort();
        assert!(stats.connections > 1, "{stats:?}");
        assert!(stats.streams > stats.connections, "{stats:?}");
        stats.add(AttackStats {
            failed: 1,
            failure: Some("refused".to_owned()),
            ..AttackStats::default()
        });
        assert_eq!(
            (stats.failed, stats.failure.as_deref()),
            (1, Some("refused"))
        );
    }

    #[tokio::test]
    async fn refused_connections_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        drop(listener);
        let end = Instant::now() + Duration::from_millis(20);
        let stats = attacker(AttackKind::PingFlood, target, end).await;
        assert!(stats.failed > 0 && stats.failure.is_some(), "{stats:?}");
        assert_eq!((stats.bytes, stats.connections), (0, 0));
    }
}
