//! Metrics of gRPC calls, with the names of Linkerd's controllers, and the limit of open streams.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::metrics::{
    Counter, CounterFamily, Gauge, GaugeFamily, Histogram, HistogramFamily, Labels, Registry,
};
use parking_lot::Mutex;
use tonic::{Code, Request, Status};

use crate::config::DEFAULT_MAX_STREAMS;

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

/// Buckets of the lag of updates: from what a batch collects to what proxies notice.
const LAG_SECONDS: &[f64] = &[
    0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// The limit of open streams of all services. It bounds the values in the index, which are only
/// kept while a stream watches them.
#[derive(Debug)]
struct StreamLimit {
    limit: usize,
    // Locked while a number is changed.
    open: Mutex<OpenCounts>,
}

#[derive(Debug, Default)]
struct OpenCounts {
    all: usize,
    by_client: HashMap<Arc<str>, usize>,
}

/// A permit for an open stream.
#[derive(Debug)]
struct StreamPermit {
    streams: Arc<StreamLimit>,
    client: Arc<str>,
}

/// The metrics of a method.
#[derive(Clone, Debug)]
pub(super) struct Method {
    calls: Calls,
    labels: Labels,
    started: Counter,
    sent: Counter,
    lag: Histogram,
}

/// An open stream, counted until it is dropped.
pub(super) struct OpenStream {
    sent: Counter,
    lag: Histogram,
    open: Gauge,
    _permit: StreamPermit,
}

/// The authenticated identity of the client. The proxy of the pod sets it and removes it from
/// requests of clients.
const CLIENT_ID: &str = "l5d-client-id";

impl Calls {
    pub fn new(registry: &Registry) -> Self {
        Self {
            streams: StreamLimit::with_limit(DEFAULT_MAX_STREAMS),
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

    /// Limits the open streams to `max_streams`, and to half of them for each client identity; all
    /// clients without identity count as one.
    pub fn limited(self, max_streams: usize) -> Self {
        Self {
            streams: StreamLimit::with_limit(max_streams),
            ..self
        }
    }

    pub(super) fn method(&self, service: &'static str, method: &'static str) -> Method {
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
    pub(super) fn count<T>(&self, result: Result<T, Status>) -> Result<T, Status> {
        self.started.inc();
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let labels = self.labels.clone().with("grpc_code", format!("{code:?}"));
        self.calls.handled.with(&labels).inc();
        result
    }

    /// Returns the counter of messages that streams share.
    pub(super) fn encoded(&self) -> Counter {
        self.calls.encoded.with(&self.labels)
    }

    /// Opens a stream for the client of a request. Must be called before any lookup for the client.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<OpenStream, Status> {
        let client = request
            .metadata()
            .get(CLIENT_ID)
            .and_then(|id| id.to_str().ok())
            .unwrap_or_default();
        let permit = self.calls.streams.acquire(client)?;
        let open = self.calls.open.with(&self.labels);
        open.add(1);
        Ok(OpenStream {
            sent: self.sent.clone(),
            lag: self.lag.clone(),
            open,
            _permit: permit,
        })
    }
}

impl StreamLimit {
    fn with_limit(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            open: Mutex::default(),
        })
    }

    fn acquire(self: &Arc<Self>, client: &str) -> Result<StreamPermit, Status> {
        let limit = self.limit;
        let client_limit = limit.div_ceil(2);
        let mut open = self.open.lock();
        let exhausted = |whose: &str, limit: usize| {
            Status::resource_exhausted(format!(
                "{whose} has {limit} open streams, which is the limit (--max-streams, or half of it for each client)"
            ))
        };
        if open.all >= limit {
            return Err(exhausted("all clients together", limit));
        }
        let open_of_client = open.by_client.get(client).copied().unwrap_or_default();
        if open_of_client >= client_limit {
            let whose = if client.is_empty() {
                "clients without an identity"
            } else {
                client
            };
            return Err(exhausted(whose, client_limit));
        }
        let client: Arc<str> = match open.by_client.get_key_value(client) {
            Some((known, _)) => known.clone(),
            None => client.into(),
        };
        open.all += 1;
        open.by_client.insert(client.clone(), open_of_client + 1);
        Ok(StreamPermit {
            streams: self.clone(),
            client,
        })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.all -= 1;
        if let Some(open_of_client) = open.by_client.get_mut(&self.client) {
            *open_of_client -= 1;
            if *open_of_client == 0 {
                open.by_client.remove(&self.client);
            }
        }
    }
}

impl OpenStream {
    pub(super) fn sent(&self) {
        self.sent.inc();
    }

    /// Records how long the last message for a change was sent after the change.
    pub(super) fn sent_change(&self, lag: Duration) {
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
    fn streams_are_limited_for_each_client_and_in_total() {
        let calls = Calls::new(&Registry::new()).limited(10);
        let methods = ["Get", "GetProfile"].map(|name| calls.method("service", name));
        let open = |client| {
            methods
                .each_ref()
                .map(|method| method.open(&request(client)))
        };
        let mut held: Vec<_> = (0..2).flat_map(|_| open(Some("greedy"))).collect();
        held.push(methods[0].open(&request(Some("greedy"))));
        assert!(held.iter().all(Result::is_ok));
        let rejected = methods[1].open(&request(Some("greedy"))).err().unwrap();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
        assert!(rejected.message().starts_with("greedy has 5"), "{rejected}");

        // The other clients get the rest, those without identity together.
        held.extend((0..2).flat_map(|_| open(None)));
        held.push(methods[0].open(&request(Some("other"))));
        assert!(held.iter().all(Result::is_ok));
        let rejected = methods[0].open(&request(Some("third"))).err().unwrap();
        assert!(
            rejected.message().contains("all clients together has 10"),
            "{rejected}"
        );

        held.clear();
        assert!(calls.streams.open.lock().by_client.is_empty());
        assert!(open(Some("greedy")).iter().all(Result::is_ok));
    }
}
