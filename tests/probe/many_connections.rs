//! Very many concurrent connections, with one thread in server and client.
//! `probe many-connections serve NAME ADDR…` greets and holds each connection until its client
//! closes. `probe many-connections connect ADDR COUNT` opens connections, reads and reports the
//! greetings, keeps all connections until standard input ends, and closes. Several processes can
//! share the work: servers share a port.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::client::{TIMEOUT, errno_name};
use super::event;
use super::listen::{original_dst, plain};

/// Connections that are opened concurrently: below any backlog, so that no SYN is retransmitted.
const CONCURRENT_CONNECTS: usize = 512;
/// Connections between two progress events.
const PROGRESS_INTERVAL: u32 = 1000;
/// Backlog of the listener; the kernel caps it at net.core.somaxconn.
const BACKLOG: u32 = 4096;
/// Extends the timeout, since all handshakes share one CPU.
const TIMEOUT_FACTOR: u32 = 12;

pub(crate) fn run(args: &[&str]) -> anyhow::Result<()> {
    // Raises the limit of descriptors to the hard limit.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match args {
        ["serve", name, addresses @ ..] => runtime.block_on(serve(name, addresses)),
        ["connect", address, count] => runtime.block_on(connect(address.parse()?, count.parse()?)),
        _ => anyhow::bail!(
            "usage: many-connections serve NAME ADDR…, or many-connections connect ADDR COUNT"
        ),
    }
}

async fn serve(name: &str, addresses: &[&str]) -> anyhow::Result<()> {
    let mut accepting = JoinSet::new();
    for address in addresses {
        let address: SocketAddr = address.parse()?;
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
        event(&[("listening", listener.local_addr()?.to_string().into())]);
        accepting.spawn(accept(listener, name.to_owned()));
    }
    while let Some(ended) = accepting.join_next().await {
        ended??;
    }
    Ok(())
}

async fn accept(listener: TcpListener, name: String) -> anyhow::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let greeting = serde_json::json!({
            "reached": name,
            "peer": plain(peer),
            "original": original_dst(&stream, peer),
        });
        tokio::spawn(hold(stream, format!("{greeting}\n")));
    }
}

/// Greets and waits for the end; a client that is gone earlier has its reasons.
async fn hold(mut stream: TcpStream, greeting: String) -> std::io::Result<()> {
    stream.write_all(greeting.as_bytes()).await?;
    while stream.read(&mut [0; 64]).await? > 0 {}
    Ok(())
}

async fn connect(target: SocketAddr, count: u32) -> anyhow::Result<()> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let mut open = JoinSet::new();
    for _ in 0..CONCURRENT_CONNECTS {
        open.spawn(async move {
            let mut streams = Vec::new();
            let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
            loop {
                let number = STARTED.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                if number.is_multiple_of(PROGRESS_INTERVAL) {
                    event(&[("begun", number.into())]);
                }
                let limit = TIMEOUT * TIMEOUT_FACTOR;
                let outcome =
                    match tokio::time::timeout(limit, connect_and_read_greeting(target)).await {
                        Ok(Ok((stream, greeting))) => {
                            streams.push(stream);
                            greeting
                        }
                        Ok(Err(error)) => errno_name(&error),
                        Err(_elapsed) => "timed out".to_owned(),
                    };
                *outcomes.entry(outcome).or_default() += 1;
            }
            (streams, outcomes)
        });
    }
    let mut held = Vec::new();
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    while let Some(ended) = open.join_next().await {
        let (streams, more) = ended?;
        held.extend(streams);
        for (outcome, count) in more {
            *outcomes.entry(outcome).or_default() += count;
        }
    }
    event(&[
        ("held", held.len().into()),
        ("outcomes", serde_json::to_value(outcomes)?),
    ]);
    std::io::stdin().read_line(&mut String::new())?;
    for stream in &held {
        // Closes with a reset: tens of thousands of sockets in TIME_WAIT would exhaust the pod's
        // ports.
        stream.set_zero_linger()?;
    }
    Ok(())
}

/// Connects and returns the connection, and the server's name and original destination as text.
async fn connect_and_read_greeting(target: SocketAddr) -> std::io::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect(target).await?;
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await?;
    let greeting: serde_json::Value = serde_json::from_str(&line).map_err(std::io::Error::other)?;
    let text = |field: &str| greeting[field].as_str().unwrap_or("?").to_owned();
    let words = format!("{}, original {}", text("reached"), text("original"));
    Ok((stream, words))
}
