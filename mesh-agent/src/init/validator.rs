//! `linkerd2-network-validator`: is the pod redirected before anything of it starts? Listens where
//! the proxy will, connects to an address that nobody answers at, and expects to hear itself.
//!
//! For pods whose redirection is by packet filter (a foreign CNI plugin, or our own `nft` and
//! `iptables` tiers). The full eBPF tier redirects to the proxy and to nothing else that listens on
//! its port; there the proxy asks for itself (`mesh-proxy::redirection`).

use std::{io, net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context, ensure};
use clap::Parser;
use mesh_core::units::parse_duration;
use mesh_runtime::{log::Format, signal::Termination};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{VERSION, complain, start_log};

/// What repair controllers look for in the status of the pod; the number of EOPNOTSUPP.
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
    /// How long to wait for the connection to come back
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// Where connections are redirected to
    #[arg(long, default_value = "0.0.0.0:4140")]
    listen_addr: SocketAddr,
    /// Where to connect to; an address that nothing answers at
    #[arg(long, default_value = "192.0.2.2:1404")]
    connect_addr: SocketAddr,
}

pub(super) fn run(args: &Args) -> ExitCode {
    if let Err(error) = start_log(&args.log_level, args.log_format) {
        complain(&format!("{error:#}"));
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
        result = hear_oneself(args) => result,
        () = tokio::time::sleep(args.timeout) => anyhow::bail!(
            "a connection to {} was not redirected to {} within {:?}; is the CNI plugin of the mesh installed on this node?",
            args.connect_addr, args.listen_addr, args.timeout
        ),
        signal = termination.received() => anyhow::bail!("ended by {signal} before the connection came back"),
    }
}

async fn hear_oneself(args: &Args) -> anyhow::Result<()> {
    let token = token().context("cannot read random bytes")?;
    let listener = TcpListener::bind(args.listen_addr)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen_addr))?;
    let heard = tokio::select! {
        heard = listen_to(args.connect_addr) => heard?,
        error = speak(&listener, &token) => {
            return Err(error).with_context(|| format!("cannot accept on {}", args.listen_addr));
        }
    };
    ensure!(
        heard == token,
        "{} answers, and it is not this program: the pod's connections are not redirected",
        args.connect_addr
    );
    Ok(())
}

async fn listen_to(address: SocketAddr) -> anyhow::Result<Vec<u8>> {
    tracing::debug!(%address, "Connecting");
    let mut stream = TcpStream::connect(address).await.with_context(|| {
        format!("cannot connect to {address}: the pod's connections are not redirected")
    })?;
    let mut heard = vec![0; TOKEN_LENGTH];
    stream
        .read_exact(&mut heard)
        .await
        .with_context(|| format!("cannot read from {address}"))?;
    Ok(heard)
}

/// Says the token to everybody who connects. Returns only when no connection can be accepted any
/// more.
async fn speak(listener: &TcpListener, token: &[u8]) -> io::Error {
    loop {
        match listener.accept().await {
            Ok((mut stream, client)) => {
                tracing::debug!(%client, "Accepted");
                // So few bytes always fit; who hangs up before is not the one we wait for.
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
