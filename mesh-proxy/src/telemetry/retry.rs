//! `outbound_http_route_retry_*_total` and their gRPC variants.

use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};

/// The families for HTTP and for gRPC routes.
#[derive(Debug)]
pub(crate) struct RetryFamilies {
    http: ProtocolFamilies,
    grpc: ProtocolFamilies,
}

#[derive(Debug)]
struct ProtocolFamilies {
    requests: CounterFamily,
    successes: CounterFamily,
    limit_exceeded: CounterFamily,
    overflow: CounterFamily,
}

/// The handles of one route.
#[derive(Debug)]
pub(crate) struct RetryMetrics {
    /// Requests that were sent again, each time.
    pub(crate) requests: Counter,
    /// Requests whose last retry had a response that is not retried.
    pub(crate) successes: Counter,
    /// Requests that failed after the most retries that their policy allows.
    pub(crate) limit_exceeded: Counter,
    /// Requests that were not retried because their body is not kept.
    pub(crate) overflow: Counter,
}

macro_rules! families {
    ($registry:expr, $protocol:literal) => {{
        let family = |name, help| $registry.counter_family(name, help);
        ProtocolFamilies {
            requests: family(
                concat!("outbound_", $protocol, "_route_retry_requests_total"),
                "The number of retries",
            ),
            successes: family(
                concat!("outbound_", $protocol, "_route_retry_successes_total"),
                "The number of requests that succeeded after retries",
            ),
            limit_exceeded: family(
                concat!("outbound_", $protocol, "_route_retry_limit_exceeded_total"),
                "The number of requests that failed after the maximum number of retries",
            ),
            overflow: family(
                concat!("outbound_", $protocol, "_route_retry_overflow_total"),
                "The number of requests that were not retried because their body was too large to keep",
            ),
        }
    }};
}

impl RetryFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            http: families!(registry, "http"),
            grpc: families!(registry, "grpc"),
        }
    }

    /// Resolves the handles of an HTTP route.
    pub(crate) fn http(&self, labels: &Labels) -> RetryMetrics {
        self.http.resolve(labels)
    }

    /// Resolves the handles of a gRPC route.
    pub(crate) fn grpc(&self, labels: &Labels) -> RetryMetrics {
        self.grpc.resolve(labels)
    }
}

impl ProtocolFamilies {
    fn resolve(&self, labels: &Labels) -> RetryMetrics {
        RetryMetrics {
            requests: self.requests.with(labels),
            successes: self.successes.with(labels),
            limit_exceeded: self.limit_exceeded.with(labels),
            overflow: self.overflow.with(labels),
        }
    }
}
