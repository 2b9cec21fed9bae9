//! The metrics of a writer.

use mesh_runtime::metrics::{Counter, Histogram, Labels, Registry};

/// The names of a writer's metrics, with their help texts.
pub(crate) struct MetricNames {
    pub(crate) writes: Description,
    pub(crate) api_errors: Description,
    pub(crate) timeouts: Description,
    pub(crate) duration: Description,
    pub(crate) enqueues: Description,
    pub(crate) enqueue_overflows: Description,
    pub(crate) dequeues: Description,
    pub(crate) drops: Description,
}

/// The name of a metric, and its help text.
pub(crate) struct Description(pub(crate) &'static str, pub(crate) &'static str);

pub(super) struct WriterMetrics {
    pub(super) writes: Counter,
    /// Responses with an error, and failed connections.
    pub(super) api_errors: Counter,
    pub(super) timeouts: Counter,
    /// The time of successful writes.
    pub(super) duration: Histogram,
    pub(super) enqueues: Counter,
    pub(super) enqueue_overflows: Counter,
    pub(super) dequeues: Counter,
    drops: Counter,
}

/// Seconds. API servers respond to a write in milliseconds, and the default timeout is 5 s.
const BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

impl WriterMetrics {
    pub(super) fn new(registry: &Registry, names: MetricNames) -> Self {
        let counter =
            |Description(name, help)| registry.counter_family(name, help).with(&Labels::new());
        let Description(duration, help) = names.duration;
        let duration = registry.histogram_family(duration, help, BUCKETS);
        Self {
            writes: counter(names.writes),
            api_errors: counter(names.api_errors),
            timeouts: counter(names.timeouts),
            duration: duration.with(&Labels::new()),
            enqueues: counter(names.enqueues),
            enqueue_overflows: counter(names.enqueue_overflows),
            dequeues: counter(names.dequeues),
            drops: counter(names.drops),
        }
    }

    pub(super) fn dropped(&self, objects: usize) {
        self.drops.inc_by(objects as u64);
    }
}
