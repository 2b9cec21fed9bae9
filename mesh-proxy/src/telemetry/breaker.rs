//! The metric of circuit breakers, which Linkerd does not have: how often they open, and why.

use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};

#[derive(Clone, Debug)]
pub(crate) struct BreakerFamily(CounterFamily);

/// The handles of one balancer.
#[derive(Debug)]
pub(crate) struct BreakerMetrics {
    consecutive_failures: Counter,
    success_rate: Counter,
    failed_probe: Counter,
}

/// Why an endpoint was taken out of rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    ConsecutiveFailures,
    SuccessRate,
    FailedProbe,
}

impl BreakerFamily {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(registry.counter_family(
            "mesh_proxy_breaker_opened_total",
            "The total number of times that an endpoint was taken out of rotation because of its responses",
        ))
    }

    /// `labels` are the balancer's.
    pub(crate) fn balancer(&self, labels: &Labels) -> BreakerMetrics {
        let cause = |cause| self.0.with(&labels.clone().with("cause", cause));
        BreakerMetrics {
            consecutive_failures: cause("consecutive_failures"),
            success_rate: cause("success_rate"),
            failed_probe: cause("failed_probe"),
        }
    }
}

impl BreakerMetrics {
    pub(crate) fn opened(&self, cause: Cause) {
        match cause {
            Cause::ConsecutiveFailures => self.consecutive_failures.inc(),
            Cause::SuccessRate => self.success_rate.inc(),
            Cause::FailedProbe => self.failed_probe.inc(),
        }
    }
}
