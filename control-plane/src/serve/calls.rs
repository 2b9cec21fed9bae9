//! Metrics of gRPC calls, under the names that Linkerd's controllers export.

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};
use tonic::{Code, Status};

/// The families of all services of a process.
#[derive(Clone, Debug)]
pub struct Calls {
    started: CounterFamily,
    handled: CounterFamily,
    sent: CounterFamily,
    open: GaugeFamily,
}

/// One method.
#[derive(Clone, Debug)]
pub(super) struct Method {
    calls: Calls,
    labels: Labels,
    started: Counter,
    sent: Counter,
}

/// An open stream; it counts as long as it lives.
pub(super) struct Stream {
    sent: Counter,
    open: Gauge,
}

impl Calls {
    pub fn new(registry: &Registry) -> Self {
        Self {
            started: registry.counter_family(
                "grpc_server_started_total",
                "Calls that arrived, by service and method",
            ),
            handled: registry.counter_family(
                "grpc_server_handled_total",
                "Calls that were answered or whose stream was opened, by service, method and status code",
            ),
            sent: registry.counter_family(
                "grpc_server_msg_sent_total",
                "Messages sent on streams, by service and method",
            ),
            open: registry.gauge_family(
                "grpc_server_open_streams",
                "Streams that are open now, by service and method",
            ),
        }
    }

    pub(super) fn method(&self, service: &'static str, method: &'static str) -> Method {
        let labels = Labels::new()
            .with("grpc_service", service)
            .with("grpc_method", method);
        Method {
            started: self.started.with(&labels),
            sent: self.sent.with(&labels),
            calls: self.clone(),
            labels,
        }
    }
}

impl Method {
    /// Counts a call and how it was answered.
    pub(super) fn count<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        self.started.inc();
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let labels = self.labels.clone().with("grpc_code", format!("{code:?}"));
        self.calls.handled.with(&labels).inc();
        result
    }

    pub(super) fn open(&self) -> Stream {
        let open = self.calls.open.with(&self.labels);
        open.add(1);
        Stream {
            sent: self.sent.clone(),
            open,
        }
    }
}

impl Stream {
    pub(super) fn sent(&self) {
        self.sent.inc();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.open.sub(1);
    }
}
