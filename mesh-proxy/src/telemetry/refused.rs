//! `mesh_proxy_refused_total`: what the proxy refuses before anybody else sees it. Ours: Linkerd's
//! proxy has no such limits, or does not say so.

use mesh_runtime::metrics::{CounterFamily, Labels, Registry};

use super::labels::Direction;
use crate::http::Protocol;

/// Counts refusals. Rare enough to look the series up each time.
#[derive(Clone, Debug)]
pub struct RefusedFamily(CounterFamily);

impl RefusedFamily {
    pub(super) fn new(registry: &Registry) -> Self {
        Self(registry.counter_family(
            "mesh_proxy_refused_total",
            "Requests and connections of clients that were refused because they break HTTP's rules or exceed a limit of this proxy, by what was wrong",
        ))
    }

    /// A request or an HTTP connection. `reason` is one of few: docs/reference/proxy-metrics.md
    /// lists them.
    pub fn http(&self, direction: Direction, protocol: Protocol, reason: &'static str) {
        let protocol = match protocol {
            Protocol::Http1 => "http/1",
            Protocol::Http2 => "http/2",
        };
        self.count(direction, protocol, reason);
    }

    /// A connection, before anything is known of it.
    pub fn connection(&self, direction: Direction, reason: &'static str) {
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
