//! Metrics of gRPC calls, with the names of Linkerd's controllers, and the limit of open streams.

use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::metrics::{
    Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily, Labels, Registry,
};
use tonic::{Code, Request, Status};

use self::stream_limit::{StreamLimit, StreamPermit};

mod stream_limit;

/// The metrics and the stream limit of all services of a process.
#[derive(Clone, Debug)]
pub struct Calls {
    started: CounterFamily,
    handled: CounterFamily,
    sent: CounterFamily,
    encoded: CounterFamily,
    lag: HistogramFamily,
    open: GaugeFamily,
    streams: Arc<StreamLimit>,
}

/// Buckets of the lag of updates, from the duration of a batch to a delay that proxies notice.
const LAG_SECONDS: &[f64] = &[
    0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The metrics of a method.
#[derive(Clone, Debug)]
pub struct Method {
    calls: Calls,
    labels: Labels,
    started: Counter,
    sent: Counter,
    lag: Histogram,
}

/// An open stream, counted until it is dropped.
pub struct OpenStream {
    sent: Counter,
    lag: Histogram,
    open: Gauge,
    permit: StreamPermit,
}

/// The authenticated identity of the client. The proxy of the pod sets it and removes it from
/// requests of clients.
const CLIENT_ID: &str = "l5d-client-id";

impl Calls {
    pub fn new(registry: &Registry) -> Self {
        Self {
            streams: StreamLimit::new(stream_limit::default_limit()),
            started: registry.counter_family(
                "grpc_server_started_total",
                "Received calls, by service and method",
            ),
            handled: registry.counter_family(
                "grpc_server_handled_total",
                "Calls that were completed or whose stream was opened, by service, method and status code",
            ),
            sent: registry.counter_family(
                "grpc_server_msg_sent_total",
                "Messages sent on streams, by service and method",
            ),
            encoded: registry.counter_family(
                "mesh_grpc_messages_encoded_total",
                "Messages encoded for streams, which each of them may send, by service and method",
            ),
            lag: registry.histogram_family(
                "mesh_grpc_update_lag_seconds",
                "Time from the report of a change to the last message for it on a stream, by service and method",
                LAG_SECONDS,
            ),
            open: registry.gauge_family(
                "grpc_server_open_streams",
                "Open streams, by service and method",
            ),
        }
    }

    /// Limits the open streams to `max_streams`, or by the memory limit of the process. Clients
    /// share them.
    pub fn limited(self, max_streams: Option<usize>) -> Self {
        let limit = max_streams.unwrap_or_else(stream_limit::default_limit);
        Self {
            streams: StreamLimit::new(limit),
            ..self
        }
    }

    pub fn method(&self, service: &'static str, method: &'static str) -> Method {
        let labels = Labels::new()
            .with("grpc_service", service)
            .with("grpc_method", method);
        Method {
            started: self.started.with(&labels),
            sent: self.sent.with(&labels),
            lag: self.lag.with(&labels),
            calls: self.clone(),
            labels,
        }
    }
}

impl Method {
    /// Counts a call and its result.
    pub fn count<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        self.started.inc();
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let labels = self.labels.clone().with("grpc_code", format!("{code:?}"));
        self.calls.handled.with(&labels).inc();
        result
    }

    /// Returns the counter of messages that streams share.
    pub fn encoded(&self) -> Counter {
        self.calls.encoded.with(&self.labels)
    }

    /// Opens a stream for the client of a request, whose pod says that this is its name. Must be
    /// called before any lookup for the client.
    pub fn open<T>(&self, request: &Request<T>, pod: &str) -> Result<OpenStream, Status> {
        let client = request
            .metadata()
            .get(CLIENT_ID)
            .and_then(|id| id.to_str().ok())
            .unwrap_or_default();
        let permit = self.calls.streams.acquire(client, pod)?;
        let open = self.calls.open.with(&self.labels);
        open.add(1);
        Ok(OpenStream {
            sent: self.sent.clone(),
            lag: self.lag.clone(),
            open,
            permit,
        })
    }
}

impl OpenStream {
    /// Waits until another client takes the place of this stream.
    pub async fn taken(&self) {
        self.permit.taken().await;
    }

    pub fn sent(&self) {
        self.sent.inc();
    }

    /// Records how long the last message for a change was sent after the change.
    pub fn sent_change(&self, lag: Duration) {
        self.lag.observe(lag.as_secs_f64());
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.open.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(client: Option<&str>) -> Request<()> {
        let mut request = Request::new(());
        if let Some(client) = client {
            let client = client.parse().unwrap();
            request.metadata_mut().insert(CLIENT_ID, client);
        }
        request
    }

    #[test]
    fn streams_are_shared_by_clients_and_their_pods() {
        let calls = Calls::new(&Registry::new()).limited(Some(4));
        let methods = ["Get", "GetProfile"].map(|name| calls.method("service", name));
        let open = |client, pod| {
            methods
                .each_ref()
                .map(|method| method.open(&request(client), pod))
        };
        let greedy = [open(Some("greedy"), "a"), open(Some("greedy"), "a")];
        assert!(greedy.iter().flatten().all(Result::is_ok));
        let refused = methods[1].open(&request(Some("greedy")), "b").err();
        assert!(refused.is_none(), "another pod of the identity");
        let other = open(Some("other"), "a");
        assert!(other.iter().all(Result::is_ok));
        let refused = methods[0].open(&request(Some("other")), "a").err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(methods[0].open(&request(None), "").is_ok());
    }
}
