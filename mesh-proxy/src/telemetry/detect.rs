//! The metrics of protocol detection, of the protocols of outbound connections, and of transport
//! headers.

use std::time::Duration;

use mesh_runtime::metrics::{CounterFamily, HistogramFamily, Labels, Registry};

use crate::telemetry::labels::Direction;

/// The families of protocol detection.
#[derive(Clone, Debug)]
pub(crate) struct DetectFamilies {
    inbound: HttpFamilies,
    outbound: HttpFamilies,
    outbound_protocol: CounterFamily,
    transport_headers: CounterFamily,
}

#[derive(Clone, Debug)]
struct HttpFamilies {
    duration: HistogramFamily,
    results: CounterFamily,
}

/// Linkerd's buckets. Detection takes less than a millisecond if the client sends data immediately.
const DURATION_SECONDS: &[f64] = &[0.001, 0.1];

impl DetectFamilies {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            inbound: HttpFamilies {
                duration: registry.histogram_family(
                    "inbound_tcp_detect_http_duration_seconds",
                    "Time taken to detect whether an inbound connection is HTTP, in seconds",
                    DURATION_SECONDS,
                ),
                results: registry.counter_family(
                    "inbound_tcp_detect_http_results_total",
                    "Inbound connections by the result of HTTP detection",
                ),
            },
            outbound: HttpFamilies {
                duration: registry.histogram_family(
                    "outbound_tcp_detect_http_duration_seconds",
                    "Time taken to detect whether an outbound connection is HTTP, in seconds",
                    DURATION_SECONDS,
                ),
                results: registry.counter_family(
                    "outbound_tcp_detect_http_results_total",
                    "Outbound connections by the result of HTTP detection",
                ),
            },
            outbound_protocol: registry.counter_family(
                "outbound_tcp_protocol_connections_total",
                "Outbound connections by the protocol of their policy",
            ),
            transport_headers: registry.counter_family(
                "inbound_tcp_transport_header_connections_total",
                "Connections accepted with a transport header",
            ),
        }
    }

    pub(crate) fn detected(
        &self,
        direction: Direction,
        labels: &Labels,
        result: &'static str,
        took: Duration,
    ) {
        let families = match direction {
            Direction::Inbound => &self.inbound,
            Direction::Outbound => &self.outbound,
        };
        families.duration.with(labels).observe(took.as_secs_f64());
        families
            .results
            .with(&labels.clone().with("result", result))
            .inc();
    }

    /// Counts an outbound connection by the protocol of its policy.
    pub(crate) fn outbound_connection(&self, parent: &Labels, protocol: &'static str) {
        let labels = Labels::new().with("protocol", protocol);
        let labels = parent.iter().fold(labels, |labels, (name, value)| {
            labels.with(name.to_owned(), value)
        });
        self.outbound_protocol.with(&labels).inc();
    }

    pub(crate) fn transport_header(
        &self,
        session: &'static str,
        port: u16,
        name: &str,
        client: &str,
    ) {
        let mut labels = Labels::new().with("session_protocol", session);
        labels.push_outside("target_port", port.to_string());
        labels.push_outside("target_name", name);
        labels.push_identity("client_id", client);
        self.transport_headers.with(&labels).inc();
    }
}
