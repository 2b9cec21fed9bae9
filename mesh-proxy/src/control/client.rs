//! A gRPC transport to one control-plane service: HTTP/2 over mutual TLS to its replicas, found by
//! DNS.
//!
//! Runs on the control thread. Calls rotate over the replicas; connections are made when a call
//! needs one. A replica that cannot be reached is left alone for a while. Pings notice a connection
//! that died silently; a new certificate or new trust anchors make new connections, and what runs
//! on the old ones may finish there.
//!
//! When the control plane goes, every stream breaks at once. Calls that wait for a connection while
//! one of them finds that there is none share what it found, and names are looked up anew, because
//! the replicas that come back have other addresses.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::client::conn::http2::SendRequest;
use mesh_runtime::metrics::Registry;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tower::Service;

use self::dial::Dial;
use self::replicas::Replicas;
use super::dns::{DnsError, Lookups, Resolver};
use crate::config::{Control, ControlAddr};
use crate::telemetry::control::ControlCalls;
use crate::transport::connect::ConnectOptions;

mod dial;
mod replicas;

pub use self::dial::{DialError, Trust};
pub use self::replicas::AnswerBody;
#[cfg(test)]
pub(super) use self::replicas::STREAMS_PER_CONNECTION;

/// Sends gRPC calls to one control-plane service. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// Why a call could not be sent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    #[error("{authority:?} cannot be used as an HTTP authority")]
    Authority {
        authority: String,
        source: Arc<http::uri::InvalidUri>,
    },
    #[error("cannot find {authority}")]
    Resolve {
        authority: String,
        source: Arc<DnsError>,
    },
    #[error("no replica of {authority} can be reached; tried {tried} of {known}")]
    Unreachable {
        authority: String,
        tried: usize,
        known: usize,
        /// Of the last one that was tried.
        source: Arc<DialError>,
    },
    #[error("call to {authority} failed")]
    Send {
        authority: String,
        source: Arc<hyper::Error>,
    },
}

struct Inner {
    addr: ControlAddr,
    authority: String,
    resolver: Resolver,
    lookups: Lookups,
    calls: Arc<ControlCalls>,
    dial: Dial,
    /// Whether the service was out of reach when it was last needed, so that each change is
    /// reported once.
    out_of_reach: AtomicBool,
    // Held while replicas are looked up and dialled, so that calls that arrive meanwhile share the
    // new connection, or the failure.
    replicas: Mutex<Replicas>,
}

/// How long a call waits for names while there is a connection that it can use: a DNS server that
/// answers does so in a fraction of it.
const LOOK_UP_PATIENCE: Duration = Duration::from_millis(500);

impl Client {
    /// `name` says in metrics whose look-ups these are.
    pub fn new(
        name: &'static str,
        addr: &ControlAddr,
        control: &Control,
        trust: Trust,
        resolver: &Resolver,
        registry: &Registry,
    ) -> Self {
        let inner = Inner {
            authority: addr.authority(),
            addr: addr.clone(),
            lookups: resolver.lookups(name),
            calls: Arc::new(ControlCalls::new(registry, addr)),
            resolver: resolver.clone(),
            dial: Dial {
                identity: addr.identity.clone(),
                trust,
                options: ConnectOptions {
                    timeout: control.connect_timeout,
                    socket: control.connect,
                },
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
        self.inner.dial.ready().await;
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
        let mut call = self.calls.begin();
        let response = sender
            .send_request(request)
            .await
            .map_err(|source| CallError::Send {
                authority: self.authority.clone(),
                source: Arc::new(source),
            })?;
        call.head(response.status(), response.headers());
        Ok(response.map(|body| AnswerBody::new(body, stream, call)))
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
                source: Arc::new(source),
            }
        })?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(authority);
        parts.path_and_query = Some(path.unwrap_or(PathAndQuery::from_static("/")));
        // Only incomplete parts are refused, and these are complete.
        Ok(Uri::from_parts(parts).unwrap_or_default())
    }

    /// A connection, or what another call has found out while this one waited.
    async fn connection(&self) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let asked = Instant::now();
        let mut replicas = self.replicas.lock().await;
        if let Some(error) = replicas.failure_since(asked) {
            return Err(error);
        }
        let found = self.find(&mut replicas).await;
        if let Err(error) = &found {
            self.resolver.forget();
            replicas.failed(error.clone(), Instant::now());
        }
        found
    }

    /// A connection to the replica whose turn it is, or to the next one that can be reached.
    async fn find(
        &self,
        replicas: &mut Replicas,
    ) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let generation = self.dial.trust.generation();
        match self.look_up(replicas.is_connected(generation)).await {
            Ok(known) => replicas.know(known),
            // Names may be lost while the service is not.
            Err(_) if replicas.is_connected(generation) => {}
            Err(error) => return Err(error),
        }
        let order = replicas.order(Instant::now());
        let known = order.len();
        let mut last = DialError::NoReplicas;
        let mut tried = 0;
        for addr in order {
            if let Some(connection) = replicas.usable(addr, generation) {
                return Ok(connection.stream());
            }
            tried += 1;
            match self.dial.dial(addr).await {
                Ok(connection) => {
                    tracing::debug!(%addr, authority = self.authority, "Connected");
                    let stream = connection.stream();
                    replicas.reached(addr, connection);
                    return Ok(stream);
                }
                Err(error) => {
                    replicas.not_reached(addr, Instant::now());
                    last = error;
                }
            }
        }
        Err(CallError::Unreachable {
            authority: self.authority.clone(),
            tried,
            known,
            source: Arc::new(last),
        })
    }

    /// The replicas by name; for a moment only if the caller can do without.
    async fn look_up(&self, can_do_without: bool) -> Result<Vec<SocketAddr>, CallError> {
        let resolving = self.resolver.resolve(&self.addr, &self.lookups);
        let resolved = match can_do_without {
            false => resolving.await,
            true => match timeout(LOOK_UP_PATIENCE, resolving).await {
                Ok(resolved) => resolved,
                Err(_elapsed) => Err(DnsError::TimedOut {
                    name: self.addr.host.to_string(),
                    limit: LOOK_UP_PATIENCE,
                }),
            },
        };
        resolved.map_err(|source| CallError::Resolve {
            authority: self.authority.clone(),
            source: Arc::new(source),
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.authority)
    }
}
