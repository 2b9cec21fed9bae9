//! `mesh-bench load`: clients that no distribution packages. Each reports the number of operations,
//! their duration, and the number of failures.

mod certify;
mod connect;
mod grpc;
mod hold;
mod percentile;
mod rate;
mod reviews;
mod scrape;
mod stalls;
mod start;
mod stat;
mod streams;
mod tap;
mod watches;

use std::future::poll_fn;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use clap::Subcommand;
use h2::SendStream;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::percentile::percentile;
use self::watches::Api;

/// Timeout of an operation, which normally takes milliseconds.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
pub(crate) enum Load {
    /// HTTP/1.1 requests at a fixed rate, each timed from the moment it was due
    Rate(rate::Options),
    /// Messages on gRPC streams, each sent after the previous one was echoed
    Streams(streams::Options),
    /// A new connection for each byte
    Connect(connect::Options),
    /// Many idle connections
    Hold(hold::Options),
    /// Wait until a program is ready, and report how long that took
    Ready(start::ReadyOptions),
    /// The first request to each of many targets
    First(start::FirstOptions),
    /// Scrapes of a proxy's metrics
    Scrape(scrape::Options),
    /// Requests to the metrics API
    Stat(stat::Options),
    /// Watches of a Service's endpoints at a server of Linkerd's destination API
    Destinations(watches::Options),
    /// Watches of the policies of a Service's clients at a server of Linkerd's outbound policy API
    Policies(watches::Options),
    /// Watches of a Service's endpoints by incremental xDS, with the names of Istio
    Endpoints(watches::Options),
    /// Requests for certificates at an identity service
    Certify(certify::Options),
    /// Reviews of new pods at the injector's webhook
    Reviews(reviews::Options),
    /// A tap of a proxy, until standard input is closed
    Tap(tap::Options),
}

/// The report of a client.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// Latencies of operations, for clients that measure them.
    latencies: Vec<Duration>,
    /// Operations without a latency, since the machine stood still.
    stalled: u64,
    operations: u64,
    failed: u64,
    /// Error of the first failure.
    failure: Option<String>,
}

impl Load {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Rate(options) => rate::run(&options),
            Self::Streams(options) => streams::run(options).await,
            Self::Connect(options) => connect::run(&options),
            Self::Hold(options) => hold::run(options).await,
            Self::Ready(options) => start::ready(&options),
            Self::First(options) => start::first(&options),
            Self::Scrape(options) => scrape::run(&options),
            Self::Stat(options) => stat::run(options).await,
            Self::Destinations(options) => watches::run(Api::Destinations, options).await,
            Self::Policies(options) => watches::run(Api::Policies, options).await,
            Self::Endpoints(options) => watches::run(Api::Endpoints, options).await,
            Self::Certify(options) => certify::run(options).await,
            Self::Reviews(options) => reviews::run(options).await,
            Self::Tap(options) => tap::run(options).await,
        }
    }
}

impl Outcome {
    /// Adds the operations of another client.
    fn add(&mut self, mut other: Self) {
        self.latencies.append(&mut other.latencies);
        self.stalled += other.stalled;
        self.operations += other.operations;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn fail(&mut self, error: impl Into<anyhow::Error>) {
        self.failed += 1;
        self.failure
            .get_or_insert_with(|| format!("{:#}", error.into()));
    }

    fn print(mut self, elapsed: Duration) -> anyhow::Result<()> {
        self.latencies.sort_unstable();
        let micros = |share: f64| percentile(&self.latencies, share).map(|t| t.as_secs_f64() * 1e6);
        crate::print_event(&json!({
            "operations": self.operations,
            "failed": self.failed,
            "failure": self.failure,
            "stalled": self.stalled,
            "seconds": elapsed.as_secs_f64(),
            "p50": micros(0.5),
            "p99": micros(0.99),
            "p999": micros(0.999),
        }))
    }
}

/// Runs clients in a closed loop and prints the outcome. Each client sends the next item when it
/// has the response to the last, and begins with another item.
async fn closed_loops<C, T, F>(
    clients: Vec<C>,
    items: &'static [T],
    seconds: f64,
    send: impl Fn(C, &'static T) -> F + Copy + Send + 'static,
) -> anyhow::Result<()>
where
    C: Clone + Send + 'static,
    T: Sync,
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(seconds);
    let count = clients.len();
    let mut running = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let first = number * items.len() / count;
        running.spawn(async move {
            let mut outcome = Outcome::default();
            for item in items.iter().cycle().skip(first) {
                let begun = Instant::now();
                if begun >= end {
                    break;
                }
                match timeout(OPERATION_TIMEOUT, send(client.clone(), item)).await {
                    Ok(Ok(())) => {
                        outcome.operations += 1;
                        outcome.latencies.push(begun.elapsed());
                    }
                    Ok(Err(error)) => outcome.fail(error),
                    Err(elapsed) => outcome.fail(elapsed),
                }
            }
            outcome
        });
    }
    let mut outcome = Outcome::default();
    while let Some(client) = running.join_next().await {
        outcome.add(client.context("a client panicked")?);
    }
    outcome.print(begun.elapsed())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a request is sent at its due time, and a CPU is looked at in intervals"
)]
fn wait_for(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until the stream has capacity for `length` bytes.
pub(crate) async fn wait_for_capacity(
    stream: &mut SendStream<Bytes>,
    length: usize,
) -> anyhow::Result<()> {
    stream.reserve_capacity(length);
    while stream.capacity() < length {
        poll_fn(|cx| stream.poll_capacity(cx))
            .await
            .context("the stream was closed")??;
    }
    Ok(())
}
