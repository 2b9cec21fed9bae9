//! `linkerd2-network-validator`: checks that the pod is redirected before its other containers
//! start. It listens on the proxy's port, connects to an address without a listener, and expects to
//! reach itself.
//!
//! For pods that a packet filter redirects (another CNI plugin, or the `nft` and `iptables` tiers).
//! The full eBPF tier redirects to the proxy only, not to other listeners on its port; there the
//! proxy performs the check (`mesh-proxy::redirection`).

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use mesh_core::units::parse_duration;
use mesh_runtime::log::Format;
use mesh_runtime::signal::Termination;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{VERSION, print_error, start_log};

/// The exit code that repair controllers search for in the pod's status: EOPNOTSUPP.
const NOT_REDIRECTED: u8 = 95;
const TOKEN_LENGTH: usize = 32;

/// Checks that the pod's connections are redirected to its proxy.
#[derive(Debug, Parser)]
#[command(name = "linkerd2-network-validator", version = VERSION.as_str(), max_term_width = 100)]
pub(super) struct Args {
    /// Log filter
    #[arg(long, env = "LINKERD_VALIDATOR_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Log format
    #[arg(
        long,
        value_name = "plain|json",
        env = "LINKERD_VALIDATOR_LOG_FORMAT",
        default_value = "plain"
    )]
    log_format: Format,
    /// How long to wait for the redirected connection
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// The address that connections are redirected to
    #[arg(long, default_value = "0.0.0.0:4140")]
    listen_addr: SocketAddr,
    /// The address to connect to; no host may respond at it
    #[arg(long, default_value = "192.0.2.2:1404")]
    connect_addr: SocketAddr,
}

pub(super) fn run(args: &Args) -> ExitCode {
    if let Err(error) = start_log(&args.log_level, args.log_format) {
        print_error(&format!("{error:#}"));
        return ExitCode::from(super::USAGE);
    }
    match validate(args) {
        Ok(()) => {
            tracing::info!("The pod's connections are redirected");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(NOT_REDIRECTED)
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn validate(args: &Args) -> anyhow::Result<()> {
    let mut termination = Termination::listen().context("cannot listen for signals")?;
    tokio::select! {
        result = check_self_connection(args) => result,
        () = tokio::time::sleep(args.timeout) => anyhow::bail!(
            "a connection to {} was not redirected to {} within {:?}; is the CNI plugin of the mesh installed on this node?",
            args.connect_addr, args.listen_addr, args.timeout
        ),
        signal = termination.received() => anyhow::bail!("ended by {signal} before the connection was redirected"),
    }
}

async fn check_self_connection(args: &Args) -> anyhow::Result<()> {
    let token = token().context("cannot read random bytes")?;
    let listener = TcpListener::bind(args.listen_addr)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen_addr))?;
    let received = tokio::select! {
        received = read_token(args.connect_addr) => received?,
        error = serve_token(&listener, &token) => {
            return Err(error).with_context(|| format!("cannot accept on {}", args.listen_addr));
        }
    };
    ensure!(
        received == token,
        "the listener at {} is not this program: the pod's connections are not redirected",
        args.connect_addr
    );
    Ok(())
}

async fn read_token(address: SocketAddr) -> anyhow::Result<Vec<u8>> {
    tracing::debug!(%address, "Connecting");
    let mut stream = TcpStream::connect(address).await.with_context(|| {
        format!("cannot connect to {address}: the pod's connections are not redirected")
    })?;
    let mut received = vec![0; TOKEN_LENGTH];
    stream
        .read_exact(&mut received)
        .await
        .with_context(|| format!("cannot read from {address}"))?;
    Ok(received)
}

/// Sends the token to every client. Returns only when accepting fails.
async fn serve_token(listener: &TcpListener, token: &[u8]) -> io::Error {
    loop {
        match listener.accept().await {
            Ok((mut stream, client)) => {
                tracing::debug!(%client, "Accepted");
                // The few bytes always fit; a client that closes earlier is not this program.
                let _ = stream.write_all(token).await;
            }
            Err(error) => return error,
        }
    }
}

fn token() -> io::Result<Vec<u8>> {
    use io::Read;
    let mut token = vec![0; TOKEN_LENGTH];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut token)?;
    Ok(token)
}
