//! Measures the time until a program is ready, and until a new target has responded.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use super::Outcome;
use super::rate::exchange;

/// Istio's control plane takes more than ten seconds with 100,000 pods.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of readiness checks, well below a start's duration.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

#[derive(Debug, Args)]
pub(crate) struct ReadyOptions {
    /// Address that responds when the program is ready
    #[arg(long)]
    at: SocketAddr,
    /// Path that returns 200 when the program is ready; without it, an accepted connection suffices
    #[arg(long)]
    path: Option<String>,
    /// A program to start first and to kill afterwards
    #[arg(last = true)]
    program: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct FirstOptions {
    /// The first target; the others have the following addresses
    #[arg(long)]
    target: SocketAddrV4,
    #[arg(long)]
    targets: u32,
}

/// A child process; killed on drop.
struct ChildGuard(Child);

/// Waits until the address is ready and reports the time.
pub(super) fn ready(options: &ReadyOptions) -> anyhow::Result<()> {
    let begun = Instant::now();
    let started = match options.program.split_first() {
        Some((program, arguments)) => {
            // Keeps the program's log out of the report on standard output.
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
        if begun.elapsed() > START_TIMEOUT {
            bail!(
                "{} is not ready after {} s",
                options.at,
                START_TIMEOUT.as_secs()
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

/// Sends one request to each target on a new connection.
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
                tcp.set_read_timeout(Some(START_TIMEOUT))?;
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

/// Parses a line of /proc/PID/status, whose unit is KiB.
fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}
