//! Scrapes of a proxy's metrics over one connection, as Prometheus makes them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;

use super::rate::response_length;
use super::{OPERATION_TIMEOUT, Outcome};

/// Read size.
const PIECE: usize = 64 * 1024;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the admin server
    #[arg(long)]
    at: SocketAddr,
    /// Number of scrapes, one after the other
    #[arg(long)]
    scrapes: u32,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let mut tcp =
        TcpStream::connect(options.at).with_context(|| format!("connect to {}", options.at))?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(OPERATION_TIMEOUT))?;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nhost: {}\r\naccept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\naccept-encoding: gzip\r\n\r\n",
        options.at
    );
    let mut outcome = Outcome::default();
    let begun = Instant::now();
    for _ in 0..options.scrapes {
        let from = Instant::now();
        scrape(&mut tcp, request.as_bytes())?;
        outcome.operations += 1;
        outcome.latencies.push(from.elapsed());
    }
    outcome.print(begun.elapsed())
}

/// Sends a request and reads the whole response.
fn scrape(tcp: &mut TcpStream, request: &[u8]) -> anyhow::Result<()> {
    tcp.write_all(request)?;
    let mut response = Vec::new();
    let mut piece = vec![0; PIECE];
    let mut expected = None;
    while expected.is_none_or(|whole| response.len() < whole) {
        let length = tcp.read(&mut piece)?;
        if length == 0 {
            bail!("the connection was closed");
        }
        response.extend_from_slice(&piece[..length]);
        if expected.is_none() {
            expected = response_length(&response)?;
        }
    }
    Ok(())
}
