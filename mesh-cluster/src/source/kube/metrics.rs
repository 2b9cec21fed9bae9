//! The metrics of watches.

use mesh_objects::model::Kind;
use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};

/// The metric families of all kinds.
pub(super) struct Metrics {
    served: GaugeFamily,
    synced: GaugeFamily,
    objects: GaugeFamily,
    invalid: GaugeFamily,
    restarts: CounterFamily,
    errors: CounterFamily,
}

/// The metrics of one kind.
pub(super) struct KindMetrics {
    /// 1 while the API server serves the kind.
    pub(super) served: Gauge,
    /// 1 while it is watched; 0 while the API server is unreachable.
    pub(super) synced: Gauge,
    pub(super) objects: Gauge,
    pub(super) invalid: Gauge,
    /// Lists after the first.
    pub(super) restarts: Counter,
    pub(super) errors: Counter,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            served: registry.gauge_family(
                "source_kind_served",
                "Whether the API server serves this kind (1); otherwise (0) known objects stay in effect",
            ),
            synced: registry.gauge_family(
                "source_kind_synced",
                "Whether this kind is watched (1) or the last known objects stay in effect (0)",
            ),
            objects: registry.gauge_family("source_kind_objects", "Known objects of this kind"),
            invalid: registry.gauge_family(
                "source_broken_objects",
                "Invalid objects, files and directories of the source; the log lists each",
            ),
            restarts: registry.counter_family(
                "source_kind_restarts_total",
                "Repeated lists of all objects of this kind",
            ),
            errors: registry.counter_family(
                "source_kind_errors_total",
                "Failed or interrupted requests for this kind",
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
            invalid: self.invalid.with(&labels),
            restarts: self.restarts.with(&labels),
            errors: self.errors.with(&labels),
        }
    }
}
