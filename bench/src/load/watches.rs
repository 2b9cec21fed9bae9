//! Many watches of Services, each client's on a connection of its own as proxies have them: of
//! endpoints or policies at any server of Linkerd's API, or of endpoints at any server of xDS with
//! Istio's names.
//!
//! Reports when all watches have `--endpoints` endpoints. Then commands on standard input, one per
//! line: `change` requests a change of the first Service and reports when each watch of it has
//! received it; `changes RATE SECONDS` requests changes of all Services in turn at a rate;
//! `reconnect` closes all connections, opens them again and reports as at first.

mod api;
mod connection;
mod post;
mod scan;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::connection::{Connection, Received};
use self::post::ChangeUrl;
use super::percentile::percentile;
use crate::print_event;

pub(super) use self::api::Api;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of a server, without TLS
    #[arg(long)]
    address: SocketAddr,
    /// Service and port, for example web.shop.svc.cluster.local:80; may be repeated
    #[arg(long, value_name = "NAME:PORT", required = true)]
    path: Vec<String>,
    /// Number of clients, each with a connection
    #[arg(long)]
    streams: usize,
    /// Services that each client watches, beginning with another one each
    #[arg(long, value_name = "N", default_value_t = 1)]
    each: usize,
    /// Number of endpoints that each Service has
    #[arg(long, default_value_t = 0)]
    endpoints: u64,
    /// URL without TLS; a POST to it changes a Service; {namespace} and {name} are replaced
    #[arg(long, value_name = "URL")]
    change: Option<ChangeUrl>,
}

/// The watches of all connections. Dropping it closes them.
struct Watches {
    tasks: JoinSet<anyhow::Result<()>>,
    received: UnboundedReceiver<Received>,
    /// The Service of each watch, as an index of the paths.
    services: Vec<usize>,
}

/// Enough for a thousand watches of ten thousand endpoints.
const TIMEOUT: Duration = Duration::from_secs(150);

pub(super) async fn run(api: Api, options: Options) -> anyhow::Result<()> {
    let (lines, mut commands) = mpsc::unbounded_channel();
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || {
        let all = std::io::stdin().lines().map_while(Result::ok);
        all.for_each(|line| drop(lines.send(line)));
    });
    let mut watches = Watches::open(api, &options).await?;
    while let Some(command) = commands.recv().await {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["change"] => watches.change(&options).await?,
            ["changes", rate, seconds] => {
                let (rate, seconds) = (rate.parse()?, seconds.parse()?);
                watches.changes(&options, rate, seconds).await?;
            }
            ["reconnect"] => {
                drop(watches);
                watches = Watches::open(api, &options).await?;
            }
            _ => bail!("expected `change`, `changes RATE SECONDS` or `reconnect`, got {command:?}"),
        }
    }
    Ok(())
}

impl Watches {
    /// Opens all watches, waits for their endpoints and reports the time.
    async fn open(api: Api, options: &Options) -> anyhow::Result<Self> {
        let names: Vec<String> = options
            .path
            .iter()
            .map(|path| api.resource(path))
            .collect::<Result<_, _>>()?;
        let begun = Instant::now();
        let (sender, received) = mpsc::unbounded_channel();
        let mut watches = Self {
            tasks: JoinSet::new(),
            received,
            services: Vec::new(),
        };
        for number in 0..options.streams {
            let first = number * options.each;
            let services = (first..first + options.each).map(|it| it % names.len());
            let of_connection = services.map(|service| {
                watches.services.push(service);
                (names[service].clone(), watches.services.len() - 1)
            });
            let connection = Connection {
                api,
                address: options.address,
                number,
                watches: of_connection.collect(),
                endpoints: options.endpoints,
                received: sender.clone(),
            };
            watches.tasks.spawn(connection.run());
        }
        let mut times = Vec::with_capacity(watches.services.len());
        while times.len() < watches.services.len() {
            let expected = watches.services.len();
            times.push(watches.next(times.len(), expected).await?.at);
        }
        let last = times.iter().max().map(|at| (*at - begun).as_secs_f64());
        print_event(&json!({ "watches": watches.services.len(), "synced": last }))?;
        Ok(watches)
    }

    /// Changes the first Service, and reports when its watches have received it.
    async fn change(&mut self, options: &Options) -> anyhow::Result<()> {
        self.discard();
        let change = options.change.as_ref();
        let change = change.context("changes need the option --change")?;
        let expected = self.services.iter().filter(|it| **it == 0).count();
        let begun = Instant::now();
        let posted = async { change.post(&options.path[0]).await };
        let all = async {
            let mut times = Vec::with_capacity(expected);
            let mut has = vec![false; self.services.len()];
            while times.len() < expected {
                let Received { watch, at } = self.next(times.len(), expected).await?;
                if self.services[watch] == 0 && !std::mem::replace(&mut has[watch], true) {
                    times.push(at - begun);
                }
            }
            anyhow::Ok(times)
        };
        let ((), mut times) = tokio::try_join!(posted, all)?;
        times.sort_unstable();
        let seconds = |share| percentile(&times, share).map(|time| time.as_secs_f64());
        print_event(&json!({
            "first": seconds(0.0), "median": seconds(0.5), "last": seconds(1.0),
        }))
    }

    /// Changes the Services in turn, `rate` a second, and reports the times until all watches of
    /// each have received its change. A Service must not change again before that.
    async fn changes(&mut self, options: &Options, rate: u32, seconds: u32) -> anyhow::Result<()> {
        self.discard();
        let change = options.change.as_ref();
        let change = change.context("changes need the option --change")?;
        let count = (rate * seconds) as usize;
        let mut watchers = vec![0; options.path.len()];
        self.services.iter().for_each(|it| watchers[*it] += 1);
        let expected: usize = (0..count).map(|it| watchers[it % watchers.len()]).sum();
        let mut begun: Vec<Vec<Instant>> = vec![Vec::new(); watchers.len()];
        let mut seen = vec![0; self.services.len()];
        let mut times = Vec::with_capacity(expected);
        let mut posts = JoinSet::new();
        let mut due = interval(Duration::from_secs(1) / rate.max(1));
        due.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut sent = 0;
        while sent < count || times.len() < expected {
            tokio::select! {
                // Changes are due at their rate, however many messages wait.
                biased;
                _ = due.tick(), if sent < count => {
                    let service = sent % watchers.len();
                    begun[service].push(Instant::now());
                    let (change, path) = (change.clone(), options.path[service].clone());
                    posts.spawn(async move { change.post(&path).await });
                    sent += 1;
                }
                Some(posted) = posts.join_next() => posted.context("a request panicked")??,
                received = self.next(times.len(), expected) => {
                    let Received { watch, at } = received?;
                    let begun = &begun[self.services[watch]];
                    // Messages after the last change's are updates of another kind.
                    if let Some(begun) = begun.get(seen[watch]) {
                        seen[watch] += 1;
                        times.push(at - *begun);
                    }
                }
            }
        }
        times.sort_unstable();
        let seconds = |share| percentile(&times, share).map(|time| time.as_secs_f64());
        print_event(&json!({
            "first": seconds(0.0), "median": seconds(0.5),
            "p99": seconds(0.99), "last": seconds(1.0),
            "changes": count, "received": times.len(),
        }))
    }

    /// Waits for the next that a watch has received.
    async fn next(&mut self, so_far: usize, expected: usize) -> anyhow::Result<Received> {
        let next = async {
            tokio::select! {
                received = self.received.recv() => received.context("no watch is open"),
                Some(ended) = self.tasks.join_next() => {
                    ended.context("a watch panicked")??;
                    bail!("the server ended a watch")
                }
            }
        };
        let next = timeout(TIMEOUT, next).await;
        next.with_context(|| format!("{so_far} of {expected} watches received it"))?
    }

    /// Forgets all messages from before a change.
    fn discard(&mut self) {
        while self.received.try_recv().is_ok() {}
    }
}
