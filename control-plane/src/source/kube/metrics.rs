//! What the watches tell of themselves.

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};

use crate::model::Kind;

/// The families of all kinds.
pub(super) struct Metrics {
    served: GaugeFamily,
    synced: GaugeFamily,
    objects: GaugeFamily,
    broken: GaugeFamily,
    restarts: CounterFamily,
    errors: CounterFamily,
}

/// Those of one kind.
pub(super) struct KindMetrics {
    /// 1 while the API server serves the kind.
    pub(super) served: Gauge,
    /// 1 while a watch follows it; 0 while the API server is away.
    pub(super) synced: Gauge,
    pub(super) objects: Gauge,
    pub(super) broken: Gauge,
    /// Lists after the first.
    pub(super) restarts: Counter,
    pub(super) errors: Counter,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            served: registry.gauge_family(
                "source_kind_served",
                "Whether the API server serves this kind (1) or such objects are ignored (0)",
            ),
            synced: registry.gauge_family(
                "source_kind_synced",
                "Whether changes of this kind arrive (1) or what was known stays in force (0)",
            ),
            objects: registry
                .gauge_family("source_kind_objects", "Objects of this kind that are known"),
            broken: registry.gauge_family(
                "source_broken_objects",
                "Objects, files and folders of the source that cannot be read now; the log names each",
            ),
            restarts: registry.counter_family(
                "source_kind_restarts_total",
                "How often all objects of this kind had to be listed again",
            ),
            errors: registry.counter_family(
                "source_kind_errors_total",
                "Requests about this kind that failed or were cut off",
            ),
        }
    }

    pub(super) fn of(&self, kind: Kind) -> KindMetrics {
        let labels = Labels::new()
            .with("group", kind.group())
            .with("kind", kind.as_str());
        KindMetrics {
            served: self.served.with(&labels),
            synced: self.synced.with(&labels),
            objects: self.objects.with(&labels),
            broken: self.broken.with(&labels),
            restarts: self.restarts.with(&labels),
            errors: self.errors.with(&labels),
        }
    }
}
