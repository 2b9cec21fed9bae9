//! A new connection for each byte: connect, send it, receive its echo, close.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use socket2::SockRef;

use super::{OPERATION_TIMEOUT, Outcome};

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long)]
    target: SocketAddr,
    /// Concurrent connections
    #[arg(long, default_value_t = 1)]
    parallel: u32,
    #[arg(long)]
    seconds: f64,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let end = start + Duration::from_secs_f64(options.seconds);
    let target = options.target;
    let threads: Vec<_> = (0..options.parallel)
        .map(|_| thread::spawn(move || connections(target, end)))
        .collect();
    let mut outcome = Outcome::default();
    for thread in threads {
        match thread.join() {
            Ok(part) => outcome.add(part),
            Err(_panic) => bail!("a thread panicked"),
        }
    }
    outcome.print(start.elapsed())
}

fn connections(target: SocketAddr, end: Instant) -> Outcome {
    let mut outcome = Outcome::default();
    loop {
        let begun = Instant::now();
        if begun >= end {
            return outcome;
        }
        match connection(target) {
            Ok(()) => {
                outcome.operations += 1;
                outcome.latencies.push(begun.elapsed());
            }
            Err(error) => outcome.fail(error),
        }
    }
}

fn connection(target: SocketAddr) -> std::io::Result<()> {
    let mut tcp = TcpStream::connect_timeout(&target, OPERATION_TIMEOUT)?;
    tcp.set_read_timeout(Some(OPERATION_TIMEOUT))?;
    tcp.write_all(b"x")?;
    tcp.read_exact(&mut [0])?;
    // Closed with a reset, which avoids TIME_WAIT: tens of thousands of such sockets slow down
    // every later connect().
    SockRef::from(&tcp).set_linger(Some(Duration::ZERO))
}
