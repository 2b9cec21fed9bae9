//! Probes the gateway of the target cluster, through the proxy of this pod: the Service for probes
//! has the gateway's addresses and identity.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mesh_k8s::crd::link::Probe;
use mesh_runtime::metrics::{
    Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily, LATENCY_MS, Labels,
    Registry,
};
use rand::RngExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::gateway::{Resolve, ResolveError};
use super::publisher::Publisher;
use super::target::Target;

/// Probes the gateway.
pub(crate) struct ProbeTask<R> {
    targets: watch::Receiver<Option<Arc<Target>>>,
    publisher: Publisher,
    resolver: R,
    /// The Service for probes.
    service: Option<Arc<str>>,
    families: Families,
}

/// Linkerd's metrics, which `linkerd multicluster gateways` shows.
struct Families {
    alive: GaugeFamily,
    enabled: GaugeFamily,
    latency: GaugeFamily,
    latencies: HistogramFamily,
    probes: CounterFamily,
}

/// The metrics of a cluster, which end with its probes.
struct ProbeMetrics {
    alive: Gauge,
    latency: Gauge,
    latencies: Histogram,
    succeeded: Counter,
    failed: Counter,
}

/// Why a probe has failed.
#[derive(Debug, thiserror::Error)]
enum ProbeError {
    #[error("the Service for probes")]
    Resolve(#[source] ResolveError),
    #[error("the Service for probes has no address")]
    NoAddress,
    #[error("cannot connect to it")]
    Connect(#[source] io::Error),
    #[error("invalid request")]
    Request(#[source] http::Error),
    #[error("the connection failed")]
    Http(#[source] hyper::Error),
    #[error("it responded with {0}")]
    Status(StatusCode),
    #[error("no response within {0:?}")]
    TimedOut(Duration),
}

/// The size of the response's header section. The body is not read.
const MAX_HEADERS: usize = 16 << 10;

/// The part of a period that probes are late at most.
const JITTER: f64 = 0.1;

impl<R: Resolve> ProbeTask<R> {
    pub(crate) fn new(
        targets: watch::Receiver<Option<Arc<Target>>>,
        publisher: Publisher,
        resolver: R,
        service: Option<Arc<str>>,
        registry: &Registry,
    ) -> Self {
        Self {
            targets,
            publisher,
            resolver,
            service,
            families: Families {
                alive: registry.gauge_family(
                    "gateway_alive",
                    "Whether the gateway of the target cluster responds to probes (1) or not (0)",
                ),
                enabled: registry.gauge_family(
                    "gateway_enabled",
                    "Whether the gateway of the target cluster is probed (1) or not (0)",
                ),
                latency: registry.gauge_family(
                    "gateway_latency",
                    "Milliseconds of the last successful probe of the gateway",
                ),
                latencies: registry.histogram_family(
                    "gateway_probe_latency_ms",
                    "Milliseconds of successful probes of the gateway",
                    LATENCY_MS,
                ),
                probes: registry.counter_family(
                    "gateway_probes",
                    "Probes of the gateway, by whether they succeeded",
                ),
            },
        }
    }

    /// Runs until the sender of targets is dropped.
    pub(crate) async fn run(self) {
        let mut targets = self.targets.clone();
        loop {
            let target = targets.borrow_and_update().clone();
            // A changed gateway counts as alive until its probes have failed.
            self.publish(true);
            let labels = labels(target.as_deref());
            let enabled = target.as_ref().map(|_| self.families.enabled.with(&labels));
            let probed = target.as_deref().and_then(|target| self.probed(target));
            if let Some(enabled) = &enabled {
                enabled.set(i64::from(probed.is_some()));
            }
            let probe = async {
                match probed {
                    Some((service, probe)) => self.probe(&service, &probe, &labels).await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                while targets.changed().await.is_ok() {
                    let next = targets.borrow_and_update().clone();
                    let gateway = |it: &Option<Arc<Target>>| {
                        let target = it.as_deref()?;
                        Some((target.cluster.clone(), target.gateway.clone()))
                    };
                    if gateway(&next) != gateway(&target) {
                        return true;
                    }
                }
                false
            };
            tokio::select! {
                goes_on = changed => if !goes_on {
                    return;
                },
                () = probe => {}
            }
        }
    }

    /// Returns the Service and the way to probe a target's gateway by, if it is probed.
    fn probed(&self, target: &Target) -> Option<(Arc<str>, Probe)> {
        let probe = target.gateway.as_ref()?.probe.clone()?;
        let cluster = target.cluster.as_deref();
        let Some(service) = &self.service else {
            tracing::warn!(
                cluster,
                "The gateway of the Link is not probed, and counts as alive: --probe-service is not set"
            );
            return None;
        };
        Some((service.clone(), probe))
    }

    /// Probes without end.
    async fn probe(&self, service: &str, probe: &Probe, labels: &Labels) {
        let metrics = self.families.of(labels);
        metrics.alive.set(1);
        let (mut failures, mut alive) = (0, true);
        let mut sent = Instant::now();
        let mut answered = sent;
        loop {
            // Between the beginnings of two probes: a gateway that is gone would otherwise be
            // noticed late by the time that each probe waits for a connection.
            sleep_until(sent + jittered(probe.period)).await;
            sent = Instant::now();
            let mut probing = pin!(self.send(service, probe));
            let silent = answered + probe.period * (probe.failure_threshold + 1);
            let result = match timeout_at(silent, &mut probing).await {
                Ok(result) => result,
                // By default the timeout of a probe is ten periods. If the gateway is lost after a
                // probe was sent, this one would hide it for as long.
                Err(_elapsed) => {
                    if std::mem::replace(&mut alive, false) {
                        let silent = answered.elapsed();
                        tracing::warn!(
                            ?silent,
                            "The gateway does not respond to probes; endpoints of mirrors are not ready"
                        );
                        self.report(&metrics, false);
                    }
                    probing.await
                }
            };
            match result {
                Ok(()) => {
                    answered = sent;
                    let millis = sent.elapsed().as_millis();
                    metrics
                        .latency
                        .set(i64::try_from(millis).unwrap_or(i64::MAX));
                    metrics.latencies.observe(millis as f64);
                    metrics.succeeded.inc();
                    failures = 0;
                    if !std::mem::replace(&mut alive, true) {
                        tracing::info!("The gateway responds to probes again");
                    }
                }
                Err(error) => {
                    metrics.failed.inc();
                    failures += 1;
                    let error = &error as &dyn std::error::Error;
                    if failures < probe.failure_threshold {
                        tracing::debug!(failures, error, "A probe of the gateway failed");
                    } else if std::mem::replace(&mut alive, false) {
                        tracing::warn!(
                            failures,
                            error,
                            "The gateway does not respond to probes; endpoints of mirrors are not ready"
                        );
                    }
                    failures = failures.min(probe.failure_threshold);
                }
            }
            self.report(&metrics, alive);
        }
    }

    fn report(&self, metrics: &ProbeMetrics, alive: bool) {
        metrics.alive.set(i64::from(alive));
        self.publish(alive);
    }

    async fn send(&self, service: &str, probe: &Probe) -> Result<(), ProbeError> {
        let exchange = timeout(probe.timeout, self.exchange(service, probe)).await;
        exchange.unwrap_or(Err(ProbeError::TimedOut(probe.timeout)))
    }

    async fn exchange(&self, service: &str, probe: &Probe) -> Result<(), ProbeError> {
        let addresses = self.resolver.resolve(service).await;
        let addresses = addresses.map_err(ProbeError::Resolve)?;
        let address = addresses.first().ok_or(ProbeError::NoAddress)?;
        let address = SocketAddr::new(*address, probe.port);
        let request = Request::get(&probe.path)
            .header(HOST, format!("{service}:{}", probe.port))
            .body(Empty::<Bytes>::new())
            .map_err(ProbeError::Request)?;
        let stream = TcpStream::connect(address).await;
        let stream = TokioIo::new(stream.map_err(ProbeError::Connect)?);
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEADERS)
            .handshake(stream)
            .await
            .map_err(ProbeError::Http)?;
        // The set ends the task when it is dropped.
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let response = sender.send_request(request).await;
        match response.map_err(ProbeError::Http)?.status() {
            StatusCode::OK => Ok(()),
            status => Err(ProbeError::Status(status)),
        }
    }

    fn publish(&self, alive: bool) {
        self.publisher
            .change(|mirrors| std::mem::replace(&mut mirrors.gateway.alive, alive) != alive);
    }
}

impl Families {
    fn of(&self, labels: &Labels) -> ProbeMetrics {
        let probes = |successful: &'static str| {
            let labels = labels.clone().with("probe_successful", successful);
            self.probes.with(&labels)
        };
        ProbeMetrics {
            alive: self.alive.with(labels),
            latency: self.latency.with(labels),
            latencies: self.latencies.with(labels),
            succeeded: probes("true"),
            failed: probes("false"),
        }
    }
}

fn labels(target: Option<&Target>) -> Labels {
    let cluster = target.and_then(|target| target.cluster.clone());
    Labels::new().with("target_cluster_name", cluster.unwrap_or_default())
}

/// Replicas and clusters do not probe at the same time.
fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + rand::rng().random_range(0.0..=JITTER))
}
