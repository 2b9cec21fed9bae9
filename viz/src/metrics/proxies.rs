//! The metrics of proxies, scraped by this process, where there is no Prometheus.
//!
//! Every proxy is scraped each [`INTERVAL`]. The samples of the last [`RETENTION`] of the metrics
//! that queries are about are kept. Prometheus computes the same results from the same samples.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use http::header::ACCEPT;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use mesh_cluster::prometheus::Sample;
use mesh_objects::inventory::Inventory;
use mesh_objects::model::Name;
use mesh_runtime::log::chain;
use mesh_runtime::metrics::{Counter, Labels, Registry};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use self::store::Store;
use self::target::Target;
use super::query::{Query, TimeWindow};

mod functions;
mod select;
mod store;
mod target;

/// The samples of the proxies. Clones share them.
#[derive(Clone, Debug)]
pub struct ProxyMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Locked while the result of one scrape is added, and while a query is evaluated.
    store: Mutex<Store>,
    /// Why proxies could not be scraped completely last time.
    failures: Mutex<BTreeMap<Name, String>>,
    http: Client<HttpConnector, Empty<Bytes>>,
    clock: Clock,
    succeeded: Counter,
    failed: Counter,
    dropped: Counter,
}

/// Seconds since 1970 that do not jump when the clock of the machine is set.
#[derive(Debug)]
struct Clock {
    start: Instant,
    unix: Duration,
}

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Window(RangeError),
    #[error("cannot select series: {0}")]
    Selector(regex::Error),
}

/// Why there are no samples for a time window.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error(
        "invalid time window: time window ({window}) must be at least as long as two scrape intervals of the proxies ({} s)",
        2 * INTERVAL.as_secs()
    )]
    Short { window: TimeWindow },
    #[error(
        "invalid time window: samples of the proxies are kept for {} min, which is less than the time window ({window})",
        RETENTION.as_secs() / 60
    )]
    Long { window: TimeWindow },
}

#[derive(Debug, thiserror::Error)]
enum ScrapeError {
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Connection(String),
    #[error("it responded with {0}")]
    Status(StatusCode),
    #[error("the response is larger than {} MiB", MAX_BODY >> 20)]
    LargeBody,
    #[error("the response is not text")]
    NotText,
    #[error("{0} of its series exceed the limit, and are left out")]
    ManySeries(usize),
}

/// The time between two scrapes of a proxy. A window needs two samples, and the command line allows
/// windows of 15 s.
const INTERVAL: Duration = Duration::from_secs(5);

/// How long samples are kept, which is the longest window.
const RETENTION: Duration = Duration::from_secs(300);

/// The deadline of a scrape. A proxy responds within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(3);

/// How long a connection waits for the next scrape. A proxy has one scrape at a time. After this
/// time, the connection to a pod that has gone is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Proxies that are scraped at the same time.
const CONCURRENT: usize = 16;

/// Proxies that are scraped. A local node has addresses for the same number of pods.
const MAX_PROXIES: usize = 256;

/// The size of a response. A proxy with 10,000 series sends 4 MiB.
const MAX_BODY: usize = 16 << 20;

/// Series of one proxy that are kept.
const MAX_PROXY_SERIES: usize = 10_000;

/// Series of all proxies that are kept. With its samples, one usually has 2 KiB, and at most 5 KiB,
/// so that all take at most 250 MiB.
const MAX_SERIES: usize = 50_000;

/// The text of the name and labels of a series, which usually has 500 bytes.
const MAX_SERIES_TEXT: usize = 2 << 10;

/// The failures that [`ProxyMetrics::check`] describes.
const MAX_SHOWN: usize = 3;

impl ProxyMetrics {
    pub fn new(registry: &Registry) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(TIMEOUT));
        let http = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(1)
            .build(connector);
        let scrapes = registry.counter_family(
            "mesh_metrics_api_scrapes_total",
            "Scrapes of proxies by the metrics API, by whether they succeeded",
        );
        let result = |result: &'static str| scrapes.with(&Labels::new().with("result", result));
        let dropped = registry.counter_family(
            "mesh_metrics_api_dropped_samples_total",
            "Samples of proxies whose series exceeded a limit of the metrics API",
        );
        let metrics = Self(Arc::new(Inner {
            store: Mutex::default(),
            failures: Mutex::default(),
            http,
            clock: Clock::new(),
            succeeded: result("success"),
            failed: result("failure"),
            dropped: dropped.with(&Labels::new()),
        }));
        let exported = metrics.clone();
        registry.on_scrape(move |scrape| {
            scrape.gauge(
                "mesh_metrics_api_series",
                "Series of proxies that the metrics API keeps",
                &Labels::new(),
                exported.0.store.lock().len() as f64,
            );
        });
        metrics
    }

    /// Scrapes the proxies of a control plane until the task is dropped.
    pub async fn run(self, inventory: Arc<Mutex<Inventory>>, control_namespace: String) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let targets = Target::all(&inventory.lock(), &control_namespace);
            self.scrape_all(targets).await;
        }
    }

    /// Evaluates an instant query.
    pub fn query(&self, query: &Query) -> Result<Vec<Sample>, QueryError> {
        if let Some(window) = query.window() {
            check_window(window).map_err(QueryError::Window)?;
        }
        let now = self.0.clock.now();
        let samples = self.0.store.lock().query(query, now);
        samples.map_err(QueryError::Selector)
    }

    /// Returns why proxies could not be scraped completely, if there are such.
    pub fn check(&self) -> Result<(), String> {
        let failures = self.0.failures.lock();
        if failures.is_empty() {
            return Ok(());
        }
        let shown = failures.iter().take(MAX_SHOWN);
        let shown: Vec<String> = shown
            .map(|(pod, error)| format!("{pod}: {error}"))
            .collect();
        Err(format!(
            "{} proxies cannot be scraped completely: {}",
            failures.len(),
            shown.join("; ")
        ))
    }

    async fn scrape_all(&self, mut targets: Vec<Target>) {
        let beyond = targets.split_off(targets.len().min(MAX_PROXIES));
        let listed: BTreeSet<Name> = targets.iter().map(|target| target.pod.clone()).collect();
        let scrapes = targets.into_iter().map(|target| async move {
            let result = self.scrape(&target).await;
            result.err().map(|error| (target.pod, error.to_string()))
        });
        let failed: Vec<_> = futures_util::stream::iter(scrapes)
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        let beyond = beyond.into_iter().map(|target| {
            let error = format!("{MAX_PROXIES} other proxies are scraped, which is the limit");
            (target.pod, error)
        });
        *self.0.failures.lock() = failed.into_iter().flatten().chain(beyond).collect();
        let now = self.0.clock.now();
        let mut store = self.0.store.lock();
        store.expire(now, |pod| listed.contains(pod));
    }

    async fn scrape(&self, target: &Target) -> Result<(), ScrapeError> {
        // As in Prometheus, a sample has the time of the request.
        let time = self.0.clock.now();
        let result = timeout(TIMEOUT, self.fetch(target)).await;
        let result = result.unwrap_or(Err(ScrapeError::Timeout));
        match result {
            Ok(text) => {
                self.0.succeeded.inc();
                match self.0.store.lock().record(target, time, &text) {
                    0 => Ok(()),
                    dropped => {
                        self.0.dropped.inc_by(dropped as u64);
                        Err(ScrapeError::ManySeries(dropped))
                    }
                }
            }
            Err(error) => {
                self.0.failed.inc();
                tracing::debug!(pod = %target.pod, %error, "Cannot scrape a proxy");
                self.0.store.lock().record_failure(&target.pod);
                Err(error)
            }
        }
    }

    async fn fetch(&self, target: &Target) -> Result<String, ScrapeError> {
        let request = Request::get(format!("http://{}/metrics", target.addr))
            .header(ACCEPT, "text/plain; version=0.0.4")
            .body(Empty::new())
            .map_err(|error| ScrapeError::Connection(error.to_string()))?;
        let response = self.0.http.request(request).await;
        let response = response.map_err(|error| ScrapeError::Connection(chain(&error)))?;
        if response.status() != StatusCode::OK {
            return Err(ScrapeError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                ScrapeError::LargeBody
            } else {
                ScrapeError::Connection(chain(&*error))
            }
        })?;
        String::from_utf8(body.to_bytes().into()).map_err(|_invalid| ScrapeError::NotText)
    }
}

impl Clock {
    fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            start: Instant::now(),
            unix: since.unwrap_or_default(),
        }
    }

    fn now(&self) -> f64 {
        (self.unix + self.start.elapsed()).as_secs_f64()
    }
}

/// Checks that there are samples for a time window.
pub(super) fn check_window(window: &TimeWindow) -> Result<(), RangeError> {
    let duration = window.duration();
    if duration > RETENTION {
        return Err(RangeError::Long {
            window: window.clone(),
        });
    }
    if duration < 2 * INTERVAL {
        return Err(RangeError::Short {
            window: window.clone(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
