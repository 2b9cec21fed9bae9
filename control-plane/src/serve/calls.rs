//! Metrics of gRPC calls, under the names that Linkerd's controllers export, and how many streams
//! may be open.

use std::{collections::HashMap, sync::Arc};

use mesh_runtime::metrics::{Counter, CounterFamily, Gauge, GaugeFamily, Labels, Registry};
use parking_lot::Mutex;
use tonic::{Code, Request, Status};

use crate::config::DEFAULT_MAX_STREAMS;

/// The families of all services of a process.
#[derive(Clone, Debug)]
pub struct Calls {
    started: CounterFamily,
    handled: CounterFamily,
    sent: CounterFamily,
    open: GaugeFamily,
    streams: Arc<Streams>,
}

/// The open streams of all services. What a controller keeps for its clients lives no longer than
/// the streams that watch it, so this bounds it.
#[derive(Debug)]
struct Streams {
    limit: usize,
    // Held while a number is changed.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_client: HashMap<Arc<str>, usize>,
}

/// A place among the open streams.
#[derive(Debug)]
struct Place {
    streams: Arc<Streams>,
    client: Arc<str>,
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
    _place: Place,
}

/// Set by the proxy in front of this process, which lets no client say it: the identity that the
/// client has proved.
const CLIENT_ID: &str = "l5d-client-id";

impl Calls {
    pub fn new(registry: &Registry) -> Self {
        Self {
            streams: Streams::with_limit(DEFAULT_MAX_STREAMS),
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

    /// At most `max_streams` are open, at most half of them for one client identity; all clients
    /// without one count as one.
    pub fn limited(self, max_streams: usize) -> Self {
        Self {
            streams: Streams::with_limit(max_streams),
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

    /// A place for a stream of the client that asks. To be taken before anything is looked up for
    /// it.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<Stream, Status> {
        let client = request
            .metadata()
            .get(CLIENT_ID)
            .and_then(|id| id.to_str().ok())
            .unwrap_or_default();
        let place = self.calls.streams.place(client)?;
        let open = self.calls.open.with(&self.labels);
        open.add(1);
        Ok(Stream {
            sent: self.sent.clone(),
            open,
            _place: place,
        })
    }
}

impl Streams {
    fn with_limit(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            open: Mutex::default(),
        })
    }

    fn place(self: &Arc<Self>, client: &str) -> Result<Place, Status> {
        let limit = self.limit;
        let of_one = limit.div_ceil(2);
        let mut open = self.open.lock();
        let exhausted = |whose: &str, limit: usize| {
            Status::resource_exhausted(format!(
                "{whose} has {limit} streams open here, and may have no more; --max-streams is the limit, half of it that of one client"
            ))
        };
        if open.all >= limit {
            return Err(exhausted("every client together", limit));
        }
        let mine = open.by_client.get(client).copied().unwrap_or_default();
        if mine >= of_one {
            let whose = if client.is_empty() {
                "clients without an identity"
            } else {
                client
            };
            return Err(exhausted(whose, of_one));
        }
        let client: Arc<str> = match open.by_client.get_key_value(client) {
            Some((known, _)) => known.clone(),
            None => client.into(),
        };
        open.all += 1;
        open.by_client.insert(client.clone(), mine + 1);
        Ok(Place {
            streams: self.clone(),
            client,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.all -= 1;
        if let Some(mine) = open.by_client.get_mut(&self.client) {
            *mine -= 1;
            if *mine == 0 {
                open.by_client.remove(&self.client);
            }
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
    fn streams_are_limited_for_one_client_and_for_all() {
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
        let refused = methods[1].open(&request(Some("greedy"))).err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().starts_with("greedy has 5"), "{refused}");

        // The others have what is left, those without an identity together.
        held.extend((0..2).flat_map(|_| open(None)));
        held.push(methods[0].open(&request(Some("other"))));
        assert!(held.iter().all(Result::is_ok));
        let refused = methods[0].open(&request(Some("third"))).err().unwrap();
        assert!(
            refused.message().contains("every client together has 10"),
            "{refused}"
        );

        held.clear();
        assert!(calls.streams.open.lock().by_client.is_empty());
        assert!(open(Some("greedy")).iter().all(Result::is_ok));
    }
}
