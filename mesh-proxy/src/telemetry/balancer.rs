//! The metrics of balancers: endpoints by state, changes of the endpoint set, and queued requests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_runtime::metrics::{
    Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily, Labels, Registry,
};

/// The balancer families of one kind of traffic.
#[derive(Clone, Debug)]
pub(crate) struct BalancerFamilies {
    endpoints: GaugeFamily,
    p2c_endpoints: GaugeFamily,
    p2c_updates: CounterFamily,
    queue: QueueFamilies,
}

#[derive(Clone, Debug)]
struct QueueFamilies {
    length: GaugeFamily,
    requests: CounterFamily,
    latency: HistogramFamily,
    opened: CounterFamily,
    shut: CounterFamily,
    open_time: GaugeFamily,
    shut_time: GaugeFamily,
    timeout: GaugeFamily,
}

/// The handles of one balancer. Each data thread has its own balancer for the same backend; all add
/// to the same gauges, so a gauge is the sum over the threads.
#[derive(Debug)]
pub(crate) struct BalancerMetrics {
    pub(crate) ready: Gauge,
    pub(crate) pending: Gauge,
    pub(crate) p2c_endpoints: Gauge,
    pub(crate) reset: Counter,
    pub(crate) added: Counter,
    pub(crate) removed: Counter,
    pub(crate) queue: QueueMetrics,
}

/// The handles of a balancer's queue and fail-fast gate. Requests that find an endpoint count with
/// a wait of zero, as in Linkerd's queue when it is empty.
#[derive(Clone, Debug)]
pub(crate) struct QueueMetrics {
    pub(crate) length: Gauge,
    pub(crate) requests: Counter,
    pub(crate) latency: Histogram,
    opened: Counter,
    shut: Counter,
    open_time: Gauge,
    shut_time: Gauge,
    timeout: Gauge,
}

/// Linkerd's buckets, in seconds.
const QUEUE_LATENCY: &[f64] = &[0.0005, 0.005, 0.05, 0.5, 1.0, 3.0];

/// The family names of one kind of traffic, each in full so that a search finds it.
struct Names {
    endpoints: &'static str,
    p2c_endpoints: &'static str,
    p2c_updates: &'static str,
    length: &'static str,
    requests: &'static str,
    latency: &'static str,
    opened: &'static str,
    shut: &'static str,
    open_time: &'static str,
    shut_time: &'static str,
    timeout: &'static str,
}

const HTTP: Names = Names {
    endpoints: "outbound_http_balancer_endpoints",
    p2c_endpoints: "outbound_http_balancer_p2c_endpoints",
    p2c_updates: "outbound_http_balancer_p2c_updates_total",
    length: "outbound_http_balancer_queue_length",
    requests: "outbound_http_balancer_queue_requests_total",
    latency: "outbound_http_balancer_queue_latency_seconds",
    opened: "outbound_http_balancer_queue_gate_open_total",
    shut: "outbound_http_balancer_queue_gate_shut_total",
    open_time: "outbound_http_balancer_queue_gate_open_time_seconds",
    shut_time: "outbound_http_balancer_queue_gate_shut_time_seconds",
    timeout: "outbound_http_balancer_queue_gate_timeout_seconds",
};

const TCP: Names = Names {
    endpoints: "outbound_tcp_balancer_endpoints",
    p2c_endpoints: "outbound_tcp_balancer_p2c_endpoints",
    p2c_updates: "outbound_tcp_balancer_p2c_updates_total",
    length: "outbound_tcp_balancer_queue_length",
    requests: "outbound_tcp_balancer_queue_requests_total",
    latency: "outbound_tcp_balancer_queue_latency_seconds",
    opened: "outbound_tcp_balancer_queue_gate_open_total",
    shut: "outbound_tcp_balancer_queue_gate_shut_total",
    open_time: "outbound_tcp_balancer_queue_gate_open_time_seconds",
    shut_time: "outbound_tcp_balancer_queue_gate_shut_time_seconds",
    timeout: "outbound_tcp_balancer_queue_gate_timeout_seconds",
};

const TLS: Names = Names {
    endpoints: "outbound_tls_balancer_endpoints",
    p2c_endpoints: "outbound_tls_balancer_p2c_endpoints",
    p2c_updates: "outbound_tls_balancer_p2c_updates_total",
    length: "outbound_tls_balancer_queue_length",
    requests: "outbound_tls_balancer_queue_requests_total",
    latency: "outbound_tls_balancer_queue_latency_seconds",
    opened: "outbound_tls_balancer_queue_gate_open_total",
    shut: "outbound_tls_balancer_queue_gate_shut_total",
    open_time: "outbound_tls_balancer_queue_gate_open_time_seconds",
    shut_time: "outbound_tls_balancer_queue_gate_shut_time_seconds",
    timeout: "outbound_tls_balancer_queue_gate_timeout_seconds",
};

impl BalancerFamilies {
    pub(super) fn http(registry: &Registry) -> Self {
        Self::named(registry, &HTTP)
    }

    pub(super) fn tcp(registry: &Registry) -> Self {
        Self::named(registry, &TCP)
    }

    pub(super) fn tls(registry: &Registry) -> Self {
        Self::named(registry, &TLS)
    }

    fn named(registry: &Registry, names: &Names) -> Self {
        let gauge = |name, help| registry.gauge_family(name, help);
        let counter = |name, help| registry.counter_family(name, help);
        Self {
            endpoints: gauge(
                names.endpoints,
                "The number of endpoints in a balancer, by state",
            ),
            p2c_endpoints: gauge(names.p2c_endpoints, "The number of endpoints in a balancer"),
            p2c_updates: counter(
                names.p2c_updates,
                "The total number of changes to the endpoints of a balancer",
            ),
            queue: QueueFamilies {
                length: gauge(
                    names.length,
                    "The number of requests or connections that wait for an endpoint",
                ),
                requests: counter(
                    names.requests,
                    "The total number of requests or connections that requested an endpoint from a balancer",
                ),
                latency: registry.histogram_family(
                    names.latency,
                    "Time that requests or connections waited for an endpoint, in seconds",
                    QUEUE_LATENCY,
                ),
                opened: counter(
                    names.opened,
                    "The total number of times that a balancer began to accept requests",
                ),
                shut: counter(
                    names.shut,
                    "The total number of times that a balancer entered fail-fast because no endpoint could be reached in time",
                ),
                open_time: gauge(
                    names.open_time,
                    "When a balancer began to accept requests (in seconds since the UNIX epoch); 0 while it is in fail-fast",
                ),
                shut_time: gauge(
                    names.shut_time,
                    "When a balancer entered fail-fast (in seconds since the UNIX epoch); 0 while it accepts requests",
                ),
                timeout: gauge(
                    names.timeout,
                    "Time that a request waits for an endpoint before it fails, in seconds",
                ),
            },
        }
    }

    pub(crate) fn balancer(&self, labels: &Labels) -> BalancerMetrics {
        let state = |state| {
            self.endpoints
                .with(&labels.clone().with("endpoint_state", state))
        };
        let op = |op| self.p2c_updates.with(&labels.clone().with("op", op));
        BalancerMetrics {
            ready: state("ready"),
            pending: state("pending"),
            p2c_endpoints: self.p2c_endpoints.with(labels),
            reset: op("Reset"),
            added: op("Add"),
            removed: op("Remove"),
            queue: self.queue.queue(labels),
        }
    }
}

impl QueueFamilies {
    fn queue(&self, labels: &Labels) -> QueueMetrics {
        QueueMetrics {
            length: self.length.with(labels),
            requests: self.requests.with(labels),
            latency: self.latency.with(labels),
            opened: self.opened.with(labels),
            shut: self.shut.with(labels),
            open_time: self.open_time.with(labels),
            shut_time: self.shut_time.with(labels),
            timeout: self.timeout.with(labels),
        }
    }
}

impl QueueMetrics {
    /// Sets the timeout, and counts the gate's initial opening.
    pub(crate) fn init(&self, timeout: Duration) {
        self.timeout
            .set(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX));
        self.gate_opened();
    }

    pub(crate) fn gate_opened(&self) {
        self.opened.inc();
        self.open_time.set(unix_now());
        self.shut_time.set(0);
    }

    pub(crate) fn gate_shut(&self) {
        self.shut.inc();
        self.shut_time.set(unix_now());
        self.open_time.set(0);
    }
}

fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}
