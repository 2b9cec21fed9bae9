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

/// The handles of one route, of a policy or of a ServiceProfile. Families that Linkerd does not
/// export for the kind of route are absent.
#[derive(Debug)]
pub(crate) struct RetryMetrics {
    /// Requests that were sent again, each time.
    pub(crate) requests: Counter,
    /// Requests whose last retry had a response that is not retried.
    pub(crate) successes: Option<Counter>,
    /// Requests that failed after the most retries that their policy allows.
    pub(crate) limit_exceeded: Option<Counter>,
    /// Requests that were not retried because their body is not kept.
    pub(crate) overflow: Option<Counter>,
    /// Requests that were not retried because the budget of their ServiceProfile was used up.
    pub(crate) no_budget: Option<Counter>,
}

/// The family names of one protocol, each in full so that a search finds it.
struct Names {
    requests: &'static str,
    successes: &'static str,
    limit_exceeded: &'static str,
    overflow: &'static str,
}

const HTTP: Names = Names {
    requests: "outbound_http_route_retry_requests_total",
    successes: "outbound_http_route_retry_successes_total",
    limit_exceeded: "outbound_http_route_retry_limit_exceeded_total",
    overflow: "outbound_http_route_retry_overflow_total",
};

const GRPC: Names = Names {
    requests: "outbound_grpc_route_retry_requests_total",
    successes: "outbound_grpc_route_retry_successes_total",
    limit_exceeded: "outbound_grpc_route_retry_limit_exceeded_total",
    overflow: "outbound_grpc_route_retry_overflow_total",
};

impl RetryFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            http: ProtocolFamilies::new(registry, &HTTP),
            grpc: ProtocolFamilies::new(registry, &GRPC),
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
    fn new(registry: &Registry, names: &Names) -> Self {
        let family = |name, help| registry.counter_family(name, help);
        Self {
            requests: family(names.requests, "The number of retries"),
            successes: family(
                names.successes,
                "The number of requests that succeeded after retries",
            ),
            limit_exceeded: family(
                names.limit_exceeded,
                "The number of requests that failed after the maximum number of retries",
            ),
            overflow: family(
                names.overflow,
                "The number of requests that were not retried because their body was too large to keep",
            ),
        }
    }

    fn resolve(&self, labels: &Labels) -> RetryMetrics {
        RetryMetrics {
            requests: self.requests.with(labels),
            successes: Some(self.successes.with(labels)),
            limit_exceeded: Some(self.limit_exceeded.with(labels)),
            overflow: Some(self.overflow.with(labels)),
            no_budget: None,
        }
    }
}
