//! The families of balancers: how many endpoints there are, in which state, and how the set changes.

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};

/// The balancer families of one kind of traffic.
#[derive(Clone, Debug)]
pub struct BalancerFamilies {
    endpoints: GaugeFamily,
    p2c_endpoints: GaugeFamily,
    p2c_updates: CounterFamily,
}

/// The handles of one balancer. Every data thread has a balancer of its own for the same backend; as each adds to the gauges what it has, a gauge is the sum
/// over the threads.
#[derive(Debug)]
pub struct Balancer {
    pub ready: Gauge,
    pub pending: Gauge,
    pub p2c_endpoints: Gauge,
    pub reset: Counter,
    pub added: Counter,
    pub removed: Counter,
}

impl BalancerFamilies {
    pub(super) fn http(registry: &Registry) -> Self {
        Self::named(
            registry,
            "outbound_http_balancer_endpoints",
            "outbound_http_balancer_p2c_endpoints",
            "outbound_http_balancer_p2c_updates_total",
        )
    }

    pub(super) fn tcp(registry: &Registry) -> Self {
        Self::named(
            registry,
            "outbound_tcp_balancer_endpoints",
            "outbound_tcp_balancer_p2c_endpoints",
            "outbound_tcp_balancer_p2c_updates_total",
        )
    }

    pub(super) fn tls(registry: &Registry) -> Self {
        Self::named(
            registry,
            "outbound_tls_balancer_endpoints",
            "outbound_tls_balancer_p2c_endpoints",
            "outbound_tls_balancer_p2c_updates_total",
        )
    }

    fn named(
        registry: &Registry,
        endpoints: &'static str,
        p2c_endpoints: &'static str,
        p2c_updates: &'static str,
    ) -> Self {
        Self {
            endpoints: registry
                .gauge_family(endpoints, "The number of endpoints in a balancer, by state"),
            p2c_endpoints: registry
                .gauge_family(p2c_endpoints, "The number of endpoints in a balancer"),
            p2c_updates: registry.counter_family(
                p2c_updates,
                "The total number of changes to the endpoints of a balancer",
            ),
        }
    }

    pub fn balancer(&self, labels: &Labels) -> Balancer {
        let state = |state| {
            self.endpoints
                .with(&labels.clone().with("endpoint_state", state))
        };
        let op = |op| self.p2c_updates.with(&labels.clone().with("op", op));
        Balancer {
            ready: state("ready"),
            pending: state("pending"),
            p2c_endpoints: self.p2c_endpoints.with(labels),
            reset: op("Reset"),
            added: op("Add"),
            removed: op("Remove"),
        }
    }
}
