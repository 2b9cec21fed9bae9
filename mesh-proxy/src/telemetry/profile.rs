//! The families of ServiceProfiles: `route_request_total` and the related ones, with requests as
//! the client sees them, and `route_actual_*`, with each attempt of a retried request.

use mesh_core::profile::ResponseClass;
use mesh_runtime::metrics::{CounterFamily, Exemplars, Labels, Registry};

use super::http::{EndpointFamilies, EndpointMetrics, ResponseDurations};
use super::retry::RetryMetrics;

/// The families of both directions.
#[derive(Debug)]
pub(crate) struct ProfileFamilies {
    effective: EndpointFamilies,
    actual: EndpointFamilies,
    retryable: CounterFamily,
}

impl ProfileFamilies {
    pub(super) fn new(
        registry: &Registry,
        exemplars: Exemplars,
        durations: ResponseDurations,
    ) -> Self {
        let effective =
            EndpointFamilies::named(registry, "route_request_total", "route_response_total")
                .with_latency(registry, "route_response_latency_ms", exemplars)
                .with_duration(registry, "route_response_duration_ms", exemplars, durations);
        Self {
            effective,
            actual: EndpointFamilies::named(
                registry,
                "route_actual_request_total",
                "route_actual_response_total",
            ),
            retryable: registry.counter_family(
                "route_retryable_total",
                "Total count of retryable HTTP responses",
            ),
        }
    }

    /// Resolves the handles of a route, whose responses are classified by `classes`.
    pub(crate) fn route(&self, labels: Labels, classes: &[ResponseClass]) -> EndpointMetrics {
        self.effective.classified(labels, classes)
    }

    /// Resolves the handles of the attempts of a route's requests.
    pub(crate) fn attempts(&self, labels: Labels, classes: &[ResponseClass]) -> EndpointMetrics {
        self.actual.classified(labels, classes)
    }

    /// Resolves the handles of a route's retries.
    pub(crate) fn retries(&self, labels: &Labels) -> RetryMetrics {
        let skipped = labels.clone().with("skipped", "no_budget");
        RetryMetrics {
            requests: self.retryable.with(labels),
            no_budget: Some(self.retryable.with(&skipped)),
            successes: None,
            limit_exceeded: None,
            overflow: None,
        }
    }
}
