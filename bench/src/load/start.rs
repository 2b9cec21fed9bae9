//! How long it takes until a program is ready, and until a target that nobody asked for before has
//! answered.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::{OPERATION_TIMEOUT, Outcome, rate::exchange};

/// Between two looks whether it is ready: well below what a start takes.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

#[derive(Debug, Args)]
pub(crate) struct ReadyOptions {
    /// What answers when the program is ready
    #[arg(long)]
    at: SocketAddr,
    /// Ready is what answers 200 to this path; without one, what accepts connections
    #[arg(long)]
    path: Option<String>,
    /// A program to start first, and to end afterwards
    #[arg(last = true)]
    program: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct FirstOptions {
    /// The first of the targets; the next ones have the next addresses
    #[arg(long)]
    target: SocketAddrV4,
    #[arg(long)]
    targets: u32,
}

/// A child that ends with this value.
struct ChildGuard(Child);

/// Waits until something is ready.
pub(super) fn ready(options: &ReadyOptions) -> anyhow::Result<()> {
    let begun = Instant::now();
    let started = match options.program.split_first() {
        Some((program, arguments)) => {
            // Its log is none of what this program says.
            let child = Command::new(program)
                .args(arguments)
                .stdout(io::stderr())
                .spawn();
            Some(ChildGuard(
                child.with_context(|| format!("start {program}"))?,
            ))
        }
        None => None,
    };
    while !is_ready(options) {
        if begun.elapsed() > OPERATION_TIMEOUT {
            bail!(
                "{} is not ready after {} s",
                options.at,
                OPERATION_TIMEOUT.as_secs()
            );
        }
        thread::park_timeout(POLL_INTERVAL);
    }
    let elapsed = begun.elapsed();
    let mut event = json!({ "seconds": elapsed.as_secs_f64() });
    if let Some(ChildGuard(child)) = &started {
        let path = format!("/proc/{}/status", child.id());
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        event["resident"] = json!(bytes(&status, "VmRSS:"));
        event["anonymous"] = json!(bytes(&status, "RssAnon:"));
    }
    drop(started);
    crate::print_event(&event)
}

/// One request to each target, on a connection of its own.
pub(super) fn first(options: &FirstOptions) -> anyhow::Result<()> {
    let mut outcome = Outcome::default();
    let begun = Instant::now();
    for number in 0..options.targets {
        let ip = Ipv4Addr::from(u32::from(*options.target.ip()) + number);
        let target = SocketAddrV4::new(ip, options.target.port());
        let request = format!("GET / HTTP/1.1\r\nhost: {target}\r\n\r\n");
        let due = Instant::now();
        let answered = TcpStream::connect(target)
            .map_err(anyhow::Error::from)
            .and_then(|mut tcp| {
                tcp.set_read_timeout(Some(OPERATION_TIMEOUT))?;
                exchange(&mut tcp, request.as_bytes())
            });
        match answered {
            Ok(()) => {
                outcome.operations += 1;
                outcome.latencies.push(due.elapsed());
            }
            Err(error) => outcome.fail(error),
        }
    }
    outcome.print(begun.elapsed())
}

fn is_ready(options: &ReadyOptions) -> bool {
    let Ok(mut tcp) = TcpStream::connect(options.at) else {
        return false;
    };
    let Some(path) = &options.path else {
        return true;
    };
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        options.at
    );
    let mut status = [0; 12];
    let asked = tcp
        .write_all(request.as_bytes())
        .and_then(|()| tcp.read_exact(&mut status));
    asked.is_ok() && status == *b"HTTP/1.1 200"
}

/// A line of /proc/PID/status, which counts in KiB.
fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // The only error is that it has ended already.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
