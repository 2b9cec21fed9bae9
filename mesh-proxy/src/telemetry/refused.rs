//! `mesh_proxy_refused_total`: requests and connections that the proxy refuses itself. Not a metric
//! of Linkerd's proxy.

use mesh_runtime::metrics::{CounterFamily, Labels, Registry};

use super::labels::Direction;

/// Counts refusals. Looks up the series each time, because refusals are rare.
#[derive(Clone, Debug)]
pub(crate) struct RefusedFamily(CounterFamily);

impl RefusedFamily {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(registry.counter_family(
            "mesh_proxy_refused_total",
            "Requests and connections of clients that were refused because they violate HTTP or exceed a limit of this proxy, by reason",
        ))
    }

    /// Counts a request or an HTTP connection of `protocol` (`http/1`, `http/2`).
    /// docs/reference/proxy-metrics.md lists the values of `reason`.
    pub(crate) fn http(&self, direction: Direction, protocol: &'static str, reason: &'static str) {
        self.count(direction, protocol, reason);
    }

    /// Counts a connection whose protocol is not detected yet.
    pub(crate) fn connection(&self, direction: Direction, reason: &'static str) {
        self.count(direction, "tcp", reason);
    }

    fn count(&self, direction: Direction, protocol: &'static str, reason: &'static str) {
        let labels = Labels::new()
            .with("direction", direction.as_str())
            .with("protocol", protocol)
            .with("reason", reason);
        self.0.with(&labels).inc();
    }
}
