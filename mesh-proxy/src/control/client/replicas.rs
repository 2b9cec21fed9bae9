//! The connections that are open to the replicas of a service, and whose turn it is.

use std::collections::HashMap;
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
use crate::telemetry::control::Call;

/// An answer that counts as an open stream of its connection until it is dropped.
#[derive(Debug)]
pub struct AnswerBody {
    body: Incoming,
    call: Call,
    _stream: Arc<()>,
}

#[derive(Default)]
pub(super) struct Replicas {
    /// As DNS said last.
    known: Vec<SocketAddr>,
    /// The last time that none could be reached, and why.
    failure: Option<(Instant, CallError)>,
    open: HashMap<SocketAddr, Vec<Connection>>,
    /// When to try a replica again that could not be reached.
    shunned: HashMap<SocketAddr, Instant>,
    /// Rotates over the replicas.
    turn: usize,
}

pub(super) struct Connection {
    sender: SendRequest<Body>,
    /// Held once more by each stream that is open on it.
    streams: Arc<()>,
    /// Of the credentials it was made with: 0 without a certificate of ours, `None` in plain text.
    generation: Option<u64>,
}

/// Streams on one connection; for more there is another connection. Servers announce limits of 100
/// (the least that HTTP/2 recommends) and more, beyond which calls would wait silently, and
/// discovery keeps up to three streams open for each destination in use.
pub(in crate::control) const STREAMS_PER_CONNECTION: usize = 100;

/// How long a replica that could not be reached is tried last.
const SHUN: Duration = Duration::from_secs(10);

impl Replicas {
    pub(super) fn failed(&mut self, error: CallError, now: Instant) {
        self.failure = Some((now, error));
    }

    /// Why none could be reached, if that was found out at `asked` or later.
    pub(super) fn failure_since(&self, asked: Instant) -> Option<CallError> {
        let (at, error) = self.failure.as_ref()?;
        (*at >= asked).then(|| error.clone())
    }

    /// Whether a call can be sent without anything new.
    pub(super) fn is_connected(&mut self, generation: u64) -> bool {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter()
            .any(|addr| self.usable(addr, generation).is_some())
    }

    pub(super) fn reached(&mut self, addr: SocketAddr, connection: Connection) {
        self.shunned.remove(&addr);
        self.open.entry(addr).or_default().push(connection);
    }

    pub(super) fn not_reached(&mut self, addr: SocketAddr, now: Instant) {
        self.shunned.insert(addr, now + SHUN);
    }

    /// Takes over what DNS says. Connections to replicas that are gone end when the calls on them
    /// end.
    pub(super) fn know(&mut self, known: Vec<SocketAddr>) {
        self.open.retain(|addr, _| known.contains(addr));
        self.shunned.retain(|addr, _| known.contains(addr));
        self.known = known;
    }

    /// All replicas, beginning with the one whose turn it is; those that could not be reached
    /// lately come last.
    pub(super) fn order(&mut self, now: Instant) -> Vec<SocketAddr> {
        self.turn = self.turn.wrapping_add(1);
        let mut order = self.known.clone();
        let first = self.turn % order.len().max(1);
        order.rotate_left(first);
        order.sort_by_key(|addr| self.shunned.get(addr).is_some_and(|until| *until > now));
        order
    }

    /// A connection that may take another stream. Those that are closed, or were made with other
    /// credentials, are forgotten.
    pub(super) fn usable(&mut self, addr: SocketAddr, generation: u64) -> Option<&Connection> {
        let connections = self.open.get_mut(&addr)?;
        connections.retain(|connection| {
            let outdated = connection.generation.is_some_and(|of| of != generation);
            !outdated && !connection.sender.is_closed()
        });
        connections.iter().find(|connection| connection.has_room())
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

    /// What a new stream needs. The second part is kept for as long as the stream is open.
    pub(super) fn stream(&self) -> (SendRequest<Body>, Arc<()>) {
        (self.sender.clone(), self.streams.clone())
    }

    fn has_room(&self) -> bool {
        Arc::strong_count(&self.streams) <= STREAMS_PER_CONNECTION
    }
}

impl AnswerBody {
    pub(super) fn new(body: Incoming, stream: Arc<()>, call: Call) -> Self {
        Self {
            body,
            call,
            _stream: stream,
        }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.end(Some(trailers));
                }
            }
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
    fn a_failure_is_shared_with_those_who_had_asked_by_then() {
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
        replicas.failed(error, now + Duration::from_secs(1));
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
    fn replicas_take_turns_and_those_out_of_reach_come_last() {
        let mut replicas = Replicas::default();
        let now = Instant::now();
        assert!(replicas.order(now).is_empty());
        let known = addrs(&[1, 2, 3]);
        replicas.know(known.clone());
        assert_eq!(replicas.order(now), addrs(&[3, 1, 2]));
        assert_eq!(replicas.order(now), addrs(&[1, 2, 3]));
        replicas.not_reached(known[0], now);
        assert_eq!(replicas.order(now), addrs(&[2, 3, 1]));
        assert_eq!(replicas.order(now), addrs(&[3, 2, 1]));
        assert_eq!(replicas.order(now + SHUN), addrs(&[1, 2, 3]));
        assert_eq!(replicas.order(now + SHUN), addrs(&[2, 3, 1]));
        replicas.know(known[1..].to_vec());
        assert!(replicas.shunned.is_empty());
    }
}
