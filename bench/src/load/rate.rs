//! HTTP/1.1 requests at a fixed rate over a fixed number of connections.
//!
//! A request is timed from when it was due, even if the connection was still busy, so that queueing
//! counts as latency. If the connection was idle, the wake-up latency of this program is excluded.
//! A request that a stalled CPU delayed has no latency ([`stalls`](super::stalls)), nor has the
//! first request of a connection. Each connection has a thread of its own, because timers of an
//! asynchronous runtime are too coarse.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;

use super::stalls::StallWatch;
use super::{OPERATION_TIMEOUT, Outcome, wait_for};
use crate::turn::{self, Turn};

/// Larger than a response's header section and its body of 100 bytes.
const BUFFER: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct Options {
    #[arg(long)]
    target: SocketAddr,
    /// Requests a second, over all connections
    #[arg(long)]
    rate: u32,
    #[arg(long)]
    connections: u32,
    #[arg(long)]
    seconds: f64,
    /// CPUs of clients, servers and proxies. Requests that were delayed because one of them stood
    /// still have no latency
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Begin with an even second of the clock, and report each second apart
    #[arg(long)]
    by_second: bool,
}

/// The requests of each second, or all requests as one second.
type Requests = Vec<Requested>;

#[derive(Debug, Clone, Default)]
struct Requested {
    outcome: Outcome,
    /// When those with a latency began and ended.
    times: Vec<(Instant, Instant)>,
}

/// The time of the load.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: Instant,
    end: Instant,
    /// The seconds that are told apart.
    seconds: usize,
}

pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let duration = Duration::from_secs_f64(options.seconds);
    let interval =
        Duration::from_secs_f64(f64::from(options.connections) / f64::from(options.rate));
    let connect = |_| {
        let tcp = TcpStream::connect(options.target)
            .with_context(|| format!("connect to {}", options.target))?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(OPERATION_TIMEOUT))?;
        Ok(tcp)
    };
    let connections: Vec<TcpStream> = (0..options.connections)
        .map(connect)
        .collect::<anyhow::Result<_>>()?;
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", options.target);
    let watch = StallWatch::start(&options.cpus)?;
    let mut start = Instant::now();
    let mut seconds = 1;
    if options.by_second {
        start += Turn::Even.until(turn::now());
        seconds = options.seconds.ceil() as usize;
    }
    let span = Span {
        start,
        end: start + duration,
        seconds,
    };
    let threads: Vec<_> = (0..)
        .zip(connections)
        .map(|(number, tcp)| {
            // Staggers the connections, so that requests are evenly spaced.
            let first = start + interval * number / options.connections;
            let request = request.clone();
            thread::spawn(move || requests(tcp, request.as_bytes(), first, interval, span))
        })
        .collect();
    let mut all = vec![Requested::default(); seconds];
    for thread in threads {
        let Ok(requests) = thread.join() else {
            bail!("a connection's thread panicked");
        };
        for (all, requested) in all.iter_mut().zip(requests) {
            all.outcome.add(requested.outcome);
            all.times.extend(requested.times);
        }
    }
    let elapsed = start.elapsed();
    let stalls = watch.finish()?;
    for Requested { mut outcome, times } in all {
        for (from, to) in times {
            if stalls.delayed(from, to) {
                outcome.stalled += 1;
            } else {
                outcome.latencies.push(to - from);
            }
        }
        outcome.print(elapsed / seconds as u32)?;
    }
    Ok(())
}

/// The requests of one connection.
fn requests(
    mut tcp: TcpStream,
    request: &[u8],
    first: Instant,
    interval: Duration,
    span: Span,
) -> Requests {
    let mut requests = vec![Requested::default(); span.seconds];
    let mut due = first;
    while due < span.end {
        let from = match due.checked_duration_since(Instant::now()) {
            Some(wait) => {
                wait_for(wait);
                Instant::now()
            }
            None => due,
        };
        let second = (from - span.start).as_secs() as usize;
        let requested = &mut requests[second.min(span.seconds - 1)];
        if let Err(error) = exchange(&mut tcp, request) {
            requested.outcome.fail(error);
            return requests;
        }
        // The first one also waits until the proxies have accepted the connection.
        if due > first {
            requested.times.push((from, Instant::now()));
        }
        requested.outcome.operations += 1;
        due += interval;
    }
    requests
}

/// Sends a request and reads the whole response.
pub(super) fn exchange(tcp: &mut TcpStream, request: &[u8]) -> anyhow::Result<()> {
    tcp.write_all(request)?;
    let mut buffer = [0; BUFFER];
    let mut filled = 0;
    loop {
        let length = tcp.read(&mut buffer[filled..])?;
        if length == 0 {
            bail!("the connection was closed");
        }
        filled += length;
        if response_length(&buffer[..filled])?.is_some_and(|whole| filled >= whole) {
            return Ok(());
        }
    }
}

/// Returns the length of a response with `content-length` once its header section is complete. Any
/// status other than 200 is an error.
pub(super) fn response_length(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let headers = std::str::from_utf8(&bytes[..end]).context("the header section is not UTF-8")?;
    if !headers.starts_with("HTTP/1.1 200") {
        bail!("{}", headers.lines().next().unwrap_or_default());
    }
    let length = headers.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    let length: usize = length.context("the response has no content-length")?;
    Ok(Some(end + 4 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_length_is_taken_from_content_length() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(response_length(whole).unwrap(), Some(whole.len()));
        assert_eq!(response_length(&whole[..30]).unwrap(), None);
        assert!(response_length(b"HTTP/1.1 502 Bad\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(response_length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
