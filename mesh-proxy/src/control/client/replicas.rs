//! The open connections to the replicas of a service, and the rotation over the replicas.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use tokio::time::Instant;
use tonic::body::Body;

use super::CallError;
use crate::random::Map;
use crate::telemetry::control::ControlCall;

/// A response body. Counts as an open stream of its connection until it is dropped.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Incoming,
    call: ControlCall,
    _stream: Arc<()>,
}

#[derive(Default)]
pub(super) struct Replicas {
    /// The replicas' addresses by the last DNS response.
    addrs: Vec<SocketAddr>,
    /// When no replica could be reached last, and the error.
    failure: Option<(Instant, CallError)>,
    open: Map<SocketAddr, Vec<Connection>>,
    /// Unreachable replicas, which are tried last until this time.
    unreachable: Map<SocketAddr, Instant>,
    /// Counts the calls, for the rotation over the replicas.
    rotation: usize,
}

pub(super) struct Connection {
    sender: SendRequest<Body>,
    /// Each open stream holds a clone.
    streams: Arc<()>,
    /// Generation of the credentials used: 0 without a client certificate, `None` in plaintext.
    generation: Option<u64>,
}

/// Maximum number of streams per connection; further streams use another connection. Servers
/// announce limits of at least 100, the minimum that RFC 9113 recommends. Calls beyond the limit
/// would wait silently. Discovery keeps up to three streams open for each destination in use.
pub(in crate::control) const STREAMS_PER_CONNECTION: usize = 100;

/// How long an unreachable replica is tried last.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

impl Replicas {
    pub(super) fn record_failure(&mut self, error: CallError, now: Instant) {
        self.failure = Some((now, error));
    }

    /// Returns the last failure if it occurred at `requested` or later.
    pub(super) fn failure_since(&self, requested: Instant) -> Option<CallError> {
        let (at, error) = self.failure.as_ref()?;
        (*at >= requested).then(|| error.clone())
    }

    /// Whether a call can be sent on an open connection.
    pub(super) fn is_connected(&mut self, generation: u64) -> bool {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter()
            .any(|addr| self.find_usable(addr, generation).is_some())
    }

    pub(super) fn add_connection(&mut self, addr: SocketAddr, connection: Connection) {
        self.unreachable.remove(&addr);
        self.open.entry(addr).or_default().push(connection);
    }

    pub(super) fn mark_unreachable(&mut self, addr: SocketAddr, now: Instant) {
        self.unreachable.insert(addr, now + RETRY_AFTER);
    }

    /// Replaces the addresses. Connections to removed replicas close when their calls end.
    pub(super) fn set_addrs(&mut self, addrs: Vec<SocketAddr>) {
        self.open.retain(|addr, _| addrs.contains(addr));
        self.unreachable.retain(|addr, _| addrs.contains(addr));
        self.addrs = addrs;
    }

    /// Returns all replicas in rotation; those that were recently unreachable come last.
    pub(super) fn order(&mut self, now: Instant) -> Vec<SocketAddr> {
        self.rotation = self.rotation.wrapping_add(1);
        let mut order = self.addrs.clone();
        let first = self.rotation % order.len().max(1);
        order.rotate_left(first);
        order.sort_by_key(|addr| self.unreachable.get(addr).is_some_and(|until| *until > now));
        order
    }

    /// Returns a connection with capacity for another stream. Drops connections that are closed or
    /// use other credentials.
    pub(super) fn find_usable(&mut self, addr: SocketAddr, generation: u64) -> Option<&Connection> {
        let connections = self.open.get_mut(&addr)?;
        connections.retain(|connection| {
            let is_outdated = connection.generation.is_some_and(|used| used != generation);
            !is_outdated && !connection.sender.is_closed()
        });
        connections
            .iter()
            .find(|connection| connection.has_capacity())
    }
}

impl Connection {
    pub(super) fn new(sender: SendRequest<Body>, generation: Option<u64>) -> Self {
        Self {
            sender,
            streams: Arc::default(),
            generation,
        }
    }

    /// Returns the sender of a new stream, and a token that counts the stream as open.
    pub(super) fn stream(&self) -> (SendRequest<Body>, Arc<()>) {
        (self.sender.clone(), self.streams.clone())
    }

    fn has_capacity(&self) -> bool {
        Arc::strong_count(&self.streams) <= STREAMS_PER_CONNECTION
    }
}

impl ResponseBody {
    pub(super) fn new(body: Incoming, stream: Arc<()>, call: ControlCall) -> Self {
        Self {
            body,
            call,
            _stream: stream,
        }
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => match frame.trailers_ref() {
                Some(trailers) => self.call.end(Some(trailers)),
                None => self.call.response_frame(),
            },
            Some(Err(_)) => self.call.fail(),
            None => self.call.end(None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_shared_with_earlier_requests() {
        let mut replicas = Replicas::default();
        let now = Instant::now();
        assert!(replicas.failure_since(now).is_none());
        let source = Arc::new(super::super::DialError::NoReplicas);
        let authority = "a:1".to_owned();
        let error = CallError::Unreachable {
            authority,
            tried: 0,
            known: 0,
            source,
        };
        replicas.record_failure(error, now + Duration::from_secs(1));
        assert!(replicas.failure_since(now).is_some());
        assert!(
            replicas
                .failure_since(now + Duration::from_secs(2))
                .is_none()
        );
    }

    fn addrs(ports: &[u16]) -> Vec<SocketAddr> {
        ports
            .iter()
            .map(|port| SocketAddr::from(([10, 0, 0, 1], *port)))
            .collect()
    }

    #[test]
    fn replicas_rotate_and_unreachable_ones_come_last() {
        let mut replicas = Replicas::default();
        let now = Instant::now();
        assert!(replicas.order(now).is_empty());
        let all = addrs(&[1, 2, 3]);
        replicas.set_addrs(all.clone());
        assert_eq!(replicas.order(now), addrs(&[3, 1, 2]));
        assert_eq!(replicas.order(now), addrs(&[1, 2, 3]));
        replicas.mark_unreachable(all[0], now);
        assert_eq!(replicas.order(now), addrs(&[2, 3, 1]));
        assert_eq!(replicas.order(now), addrs(&[3, 2, 1]));
        assert_eq!(replicas.order(now + RETRY_AFTER), addrs(&[1, 2, 3]));
        assert_eq!(replicas.order(now + RETRY_AFTER), addrs(&[2, 3, 1]));
        replicas.set_addrs(all[1..].to_vec());
        assert!(replicas.unreachable.is_empty());
    }
}
