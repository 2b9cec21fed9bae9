//! The metric of mirrored requests, which Linkerd does not have: how they ended.

use mesh_runtime::metrics::{Counter, CounterFamily, Labels, Registry};

#[derive(Clone, Debug)]
pub(crate) struct MirrorFamily(CounterFamily);

/// The handles of one backend of a route.
#[derive(Debug)]
pub(crate) struct MirrorMetrics {
    completed: Counter,
    failed: Counter,
    timed_out: Counter,
    cancelled: Counter,
    too_slow: Counter,
    too_many: Counter,
}

/// How a mirrored request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MirrorResult {
    /// With a complete response of any status.
    Completed,
    /// Without a complete response.
    Failed,
    TimedOut,
    /// The client did not send its request completely, or it was answered before.
    Cancelled,
    /// It was given up, because it fell back behind the request.
    TooSlow,
    /// It was not sent, because too many were in flight.
    TooMany,
}

impl MirrorFamily {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(registry.counter_family(
            "mesh_proxy_mirrored_requests_total",
            "The total number of copies of requests for RequestMirror filters, by how they ended",
        ))
    }

    /// `labels` are the backend's.
    pub(crate) fn backend(&self, labels: &Labels) -> MirrorMetrics {
        let result = |result| self.0.with(&labels.clone().with("result", result));
        MirrorMetrics {
            completed: result("completed"),
            failed: result("failed"),
            timed_out: result("timed_out"),
            cancelled: result("cancelled"),
            too_slow: result("too_slow"),
            too_many: result("too_many"),
        }
    }
}

impl MirrorMetrics {
    pub(crate) fn count(&self, result: MirrorResult) {
        match result {
            MirrorResult::Completed => self.completed.inc(),
            MirrorResult::Failed => self.failed.inc(),
            MirrorResult::TimedOut => self.timed_out.inc(),
            MirrorResult::Cancelled => self.cancelled.inc(),
            MirrorResult::TooSlow => self.too_slow.inc(),
            MirrorResult::TooMany => self.too_many.inc(),
        }
    }
}
