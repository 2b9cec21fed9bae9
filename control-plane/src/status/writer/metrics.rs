//! Linkerd's metrics of its status controller.

use mesh_runtime::metrics::{Counter, Histogram, Labels, Registry};

pub(super) struct WriterMetrics {
    pub(super) patches: Counter,
    /// Responses with an error, and failed connections.
    pub(super) api_errors: Counter,
    pub(super) timeouts: Counter,
    /// The time of successful patches.
    pub(super) duration: Histogram,
    pub(super) enqueues: Counter,
    pub(super) enqueue_overflows: Counter,
    pub(super) dequeues: Counter,
    drops: Counter,
}

/// Seconds. API servers respond to a patch in milliseconds, and the default timeout is 5 s.
const BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

impl WriterMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| registry.counter_family(name, help).with(&Labels::new());
        Self {
            patches: counter(
                "resource_status_patches_total",
                "Successful patches of statuses",
            ),
            api_errors: counter(
                "resource_status_patch_api_errors_total",
                "Patches of statuses that failed with an error of the API server",
            ),
            timeouts: counter(
                "resource_status_patch_timeouts_total",
                "Patches of statuses without a response in time",
            ),
            duration: registry
                .histogram_family(
                    "resource_status_patch_duration_seconds",
                    "Time of successful patches of statuses",
                    BUCKETS,
                )
                .with(&Labels::new()),
            enqueues: counter(
                "resource_status_patch_enqueues_total",
                "Objects that were added to the queue because their status differs",
            ),
            enqueue_overflows: counter(
                "resource_status_patch_enqueue_overflows_total",
                "Objects that were not added because the queue was full",
            ),
            dequeues: counter(
                "resource_status_patch_dequeues_total",
                "Objects that were taken from the queue",
            ),
            drops: counter(
                "resource_status_patch_drops_total",
                "Objects that were removed from the queue when this replica lost the Lease",
            ),
        }
    }

    pub(super) fn dropped(&self, objects: usize) {
        self.drops.inc_by(objects as u64);
    }
}
