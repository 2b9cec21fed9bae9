//! A gRPC transport to one control-plane service: HTTP/2 over mutual TLS to its replicas, found by DNS.
//!
//! Runs on the control thread. Calls rotate over the replicas; connections are made when a call needs one. A replica that
//! cannot be reached is left alone for a while. Pings notice a connection that died silently; a new certificate or new
//! trust anchors make new connections, and what runs on the old ones may finish there.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mesh_core::endpoint::TlsPeer;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tower::Service;

use super::dns::{DnsError, Lookups, Resolver};
use crate::config::{Control, ControlAddr};
use crate::tls::{self, Credentials, CredentialsRx, TlsError, TrustAnchors};
use crate::transport::Io;
use crate::transport::connect::{ConnectError, ConnectOptions, dial};

/// Sends gRPC calls to one control-plane service. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// As whom the client connects and whom it trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// With this proxy's certificate; see [`Client::ready`].
    Certified(CredentialsRx),
    /// With the certificate if there is one: how the first one is asked for.
    Anonymous(CredentialsRx, watch::Receiver<TrustAnchors>),
}

/// Why a call could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{authority:?} cannot be used as an HTTP authority")]
    Authority {
        authority: String,
        source: http::uri::InvalidUri,
    },
    #[error("cannot find {authority}")]
    Resolve { authority: String, source: DnsError },
    #[error("no replica of {authority} can be reached; tried {tried} of {known}")]
    Unreachable {
        authority: String,
        tried: usize,
        known: usize,
        /// Of the last one that was tried.
        source: DialError,
    },
    #[error("call to {authority} failed")]
    Send {
        authority: String,
        source: hyper::Error,
    },
}

/// Why one replica could not be connected to.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{addr} is not the peer it should be")]
    Tls { addr: SocketAddr, source: TlsError },
    #[error("{addr} does not speak HTTP/2")]
    Http {
        addr: SocketAddr,
        source: hyper::Error,
    },
    #[error("{addr} did not complete the connection within {limit:?}")]
    TimedOut { addr: SocketAddr, limit: Duration },
    #[error("this proxy has no certificate")]
    NoCredentials,
    #[error("the service has no replicas")]
    NoReplicas,
}

/// An answer that counts as an open stream of its connection until it is dropped.
#[derive(Debug)]
pub struct AnswerBody {
    body: Incoming,
    _stream: Arc<()>,
}

struct Inner {
    addr: ControlAddr,
    authority: String,
    trust: Trust,
    resolver: Resolver,
    lookups: Lookups,
    options: ConnectOptions,
    /// Whether the service was out of reach when it was last needed, so that each change is reported once.
    out_of_reach: AtomicBool,
    // Held while a replica is dialled, so that calls that arrive meanwhile share the new connection.
    replicas: Mutex<Replicas>,
}

#[derive(Default)]
struct Replicas {
    open: HashMap<SocketAddr, Vec<Connection>>,
    /// When to try a replica again that could not be reached.
    shunned: HashMap<SocketAddr, Instant>,
    /// Rotates over the replicas.
    turn: usize,
}

struct Connection {
    sender: SendRequest<Body>,
    /// Held once more by each stream that is open on it.
    streams: Arc<()>,
    /// Of the credentials it was made with: 0 without a certificate of ours, `None` in plain text.
    generation: Option<u64>,
}

/// A dead peer is noticed within the sum of both. Linkerd's proxy sends no pings here and waits for the kernel to give up.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Streams on one connection; for more there is another connection. Servers announce limits of 100 (the least that HTTP/2 recommends) and more, beyond which
/// calls would wait silently, and discovery keeps up to three streams open for each destination in use.
pub(super) const STREAMS_PER_CONNECTION: usize = 100;

/// How long a replica that could not be reached is tried last.
const SHUN: Duration = Duration::from_secs(10);

impl Client {
    /// `name` says in metrics whose look-ups these are.
    pub fn new(
        name: &'static str,
        addr: &ControlAddr,
        control: &Control,
        trust: Trust,
        resolver: &Resolver,
    ) -> Self {
        let inner = Inner {
            authority: addr.authority(),
            addr: addr.clone(),
            trust,
            lookups: resolver.lookups(name),
            resolver: resolver.clone(),
            options: ConnectOptions {
                timeout: control.connect_timeout,
                socket: control.connect,
            },
            out_of_reach: AtomicBool::new(false),
            replicas: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Waits until a call has a chance: until there is a certificate, where one is needed.
    pub async fn ready(&self) {
        if let (Trust::Certified(credentials), Some(_)) =
            (&self.inner.trust, &self.inner.addr.identity)
        {
            // `Err` means that there will never be one; calls then fail and say so.
            let _ = credentials.clone().wait_for(Option::is_some).await;
        }
    }
}

impl Service<Request<Body>> for Client {
    type Response = Response<AnswerBody>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, CallError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        Box::pin(async move { inner.send(request).await })
    }
}

impl Inner {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<AnswerBody>, CallError> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = self.uri(path)?;
        let connection = self.connection().await;
        self.report(connection.as_ref().err());
        let (mut sender, stream) = connection?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|source| CallError::Send {
                authority: self.authority.clone(),
                source,
            })?;
        Ok(response.map(|body| AnswerBody {
            body,
            _stream: stream,
        }))
    }

    fn report(&self, error: Option<&CallError>) {
        let before = self.out_of_reach.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !before => {
                let error = mesh_runtime::log::chain(error);
                tracing::warn!(
                    error,
                    "Control plane out of reach; what is known stays in force"
                );
            }
            None if before => {
                tracing::info!(
                    authority = self.authority,
                    "Control plane within reach again"
                );
            }
            _ => {}
        }
    }

    /// gRPC wants the service's name as authority, whichever replica is called.
    fn uri(&self, path: Option<PathAndQuery>) -> Result<Uri, CallError> {
        let authority = Authority::try_from(self.authority.as_str()).map_err(|source| {
            CallError::Authority {
                authority: self.authority.clone(),
                source,
            }
        })?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(authority);
        parts.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
        // Only incomplete parts are refused, and these are complete.
        Ok(Uri::from_parts(parts).unwrap_or_default())
    }

    /// A connection to the replica whose turn it is, or to the next one that can be reached.
    async fn connection(&self) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let known = self
            .resolver
            .resolve(&self.addr, &self.lookups)
            .await
            .map_err(|source| CallError::Resolve {
                authority: self.authority.clone(),
                source,
            })?;
        let mut replicas = self.replicas.lock().await;
        replicas.forget_others(&known);
        let generation = self.trust.generation();
        let order = replicas.order(&known, Instant::now());
        let mut last = DialError::NoReplicas;
        let mut tried = 0;
        for addr in order {
            if let Some(connection) = replicas.usable(addr, generation) {
                return Ok(connection.stream());
            }
            tried += 1;
            match self.dial(addr).await {
                Ok(connection) => {
                    tracing::debug!(%addr, authority = self.authority, "Connected");
                    let stream = connection.stream();
                    replicas.shunned.remove(&addr);
                    replicas.open.entry(addr).or_default().push(connection);
                    return Ok(stream);
                }
                Err(error) => {
                    replicas.shunned.insert(addr, Instant::now() + SHUN);
                    last = error;
                }
            }
        }
        Err(CallError::Unreachable {
            authority: self.authority.clone(),
            tried,
            known: known.len(),
            source: last,
        })
    }

    async fn dial(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let limit = self.options.timeout;
        match timeout(limit, self.connect(addr)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(DialError::TimedOut { addr, limit }),
        }
    }

    async fn connect(&self, addr: SocketAddr) -> Result<Connection, DialError> {
        let io = dial(addr, &self.options).await?;
        let (io, generation) = match &self.addr.identity {
            None => (io, None),
            Some(id) => {
                let peer = TlsPeer {
                    id: id.clone(),
                    server_name: id.as_str().into(),
                };
                let (io, generation) = self.trust.secure(io, addr, &peer).await?;
                (io, Some(generation))
            }
        };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(io))
            .await
            .map_err(|source| DialError::Http { addr, source })?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%addr, %error, "Control-plane connection ended");
            }
        });
        Ok(Connection {
            sender,
            streams: Arc::default(),
            generation,
        })
    }
}

impl Replicas {
    /// Connections to replicas that are gone end when the calls on them end.
    fn forget_others(&mut self, known: &[SocketAddr]) {
        self.open.retain(|addr, _| known.contains(addr));
        self.shunned.retain(|addr, _| known.contains(addr));
    }

    /// All replicas, beginning with the one whose turn it is; those that could not be reached lately come last.
    fn order(&mut self, known: &[SocketAddr], now: Instant) -> Vec<SocketAddr> {
        self.turn = self.turn.wrapping_add(1);
        let mut order = known.to_vec();
        order.rotate_left(self.turn % known.len().max(1));
        order.sort_by_key(|addr| self.shunned.get(addr).is_some_and(|until| *until > now));
        order
    }

    /// A connection that may take another stream. Those that are closed, or were made with other credentials, are forgotten.
    fn usable(&mut self, addr: SocketAddr, generation: u64) -> Option<&Connection> {
        let connections = self.open.get_mut(&addr)?;
        connections.retain(|connection| {
            let outdated = connection.generation.is_some_and(|of| of != generation);
            !outdated && !connection.sender.is_closed()
        });
        connections.iter().find(|connection| connection.has_room())
    }
}

impl Connection {
    /// What a new stream needs. The second part is kept for as long as the stream is open.
    fn stream(&self) -> (SendRequest<Body>, Arc<()>) {
        (self.sender.clone(), self.streams.clone())
    }

    fn has_room(&self) -> bool {
        Arc::strong_count(&self.streams) <= STREAMS_PER_CONNECTION
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Trust {
    fn credentials(&self) -> Option<Arc<Credentials>> {
        match self {
            Self::Certified(credentials) | Self::Anonymous(credentials, _) => {
                credentials.borrow().clone()
            }
        }
    }

    fn generation(&self) -> u64 {
        self.credentials().map_or(0, |own| own.generation())
    }

    async fn secure(
        &self,
        io: Io,
        addr: SocketAddr,
        peer: &TlsPeer,
    ) -> Result<(Io, u64), DialError> {
        let refused = |source| DialError::Tls { addr, source };
        match (self.credentials(), self) {
            (Some(own), _) => {
                let (stream, _alpn) = tls::client::connect(io, &own, peer, false)
                    .await
                    .map_err(refused)?;
                Ok((Io::tls(stream), own.generation()))
            }
            (None, Self::Anonymous(_, anchors)) => {
                let anchors = anchors.borrow().clone();
                let stream = tls::client::connect_anonymously(io, &anchors, peer)
                    .await
                    .map_err(refused)?;
                Ok((Io::tls(stream), 0))
            }
            (None, Self::Certified(_)) => Err(DialError::NoCredentials),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addrs(ports: &[u16]) -> Vec<SocketAddr> {
        ports
            .iter()
            .map(|port| SocketAddr::from(([10, 0, 0, 1], *port)))
            .collect()
    }

    #[test]
    fn replicas_take_turns_and_those_out_of_reach_come_last() {
        let mut replicas = Replicas::default();
        let known = addrs(&[1, 2, 3]);
        let now = Instant::now();
        assert_eq!(replicas.order(&known, now), addrs(&[2, 3, 1]));
        assert_eq!(replicas.order(&known, now), addrs(&[3, 1, 2]));
        replicas.shunned.insert(known[0], now + SHUN);
        assert_eq!(replicas.order(&known, now), addrs(&[2, 3, 1]));
        assert_eq!(replicas.order(&known, now), addrs(&[2, 3, 1]));
        assert_eq!(replicas.order(&known, now + SHUN), addrs(&[3, 1, 2]));
        assert_eq!(replicas.order(&known, now + SHUN), addrs(&[1, 2, 3]));
        assert!(replicas.order(&[], now).is_empty());
        replicas.forget_others(&known[1..]);
        assert!(replicas.shunned.is_empty());
    }
}
