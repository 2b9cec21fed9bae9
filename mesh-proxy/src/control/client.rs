//! A gRPC transport to one control-plane service: HTTP/2 over mutual TLS to its replicas, found by DNS.
//!
//! Runs on the control thread. Calls rotate over the replicas; connections are made when a call needs one. A replica that
//! cannot be reached is left alone for a while. Pings notice a connection that died silently; a new certificate or new
//! trust anchors make new connections, and what runs on the old ones may finish there.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::client::conn::http2::SendRequest;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::body::Body;
use tower::Service;

use self::dial::Dial;
use self::replicas::Replicas;
use super::dns::{DnsError, Lookups, Resolver};
use crate::config::{Control, ControlAddr};
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

struct Inner {
    addr: ControlAddr,
    authority: String,
    resolver: Resolver,
    lookups: Lookups,
    dial: Dial,
    /// Whether the service was out of reach when it was last needed, so that each change is reported once.
    out_of_reach: AtomicBool,
    // Held while a replica is dialled, so that calls that arrive meanwhile share the new connection.
    replicas: Mutex<Replicas>,
}

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
            lookups: resolver.lookups(name),
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
        let response = sender
            .send_request(request)
            .await
            .map_err(|source| CallError::Send {
                authority: self.authority.clone(),
                source,
            })?;
        Ok(response.map(|body| AnswerBody::new(body, stream)))
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
        let generation = self.dial.trust.generation();
        let order = replicas.order(&known, Instant::now());
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
            known: known.len(),
            source: last,
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.authority)
    }
}
