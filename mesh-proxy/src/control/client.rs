//! A gRPC transport to one control-plane service: HTTP/2 over mutual TLS to its replicas, which DNS
//! provides.
//!
//! Runs on the control thread. Calls rotate over the replicas, and connections are opened on
//! demand. A replica that cannot be reached is tried last for [`replicas::RETRY_AFTER`]. Keep-alive
//! pings detect dead connections. A new certificate or new trust anchors require new connections;
//! calls on old connections may complete.
//!
//! During an outage of the control plane all streams fail together. Calls that wait for a
//! connection share the failure of the one that tries to connect, and names are resolved again,
//! because restarted replicas have other addresses.

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
use mesh_api::grpc::{self, Sanitized};
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tokio::sync::Mutex;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};
use tonic::body::Body;
use tower::Service;

use self::dial::ReplicaDialer;
use self::replicas::Replicas;
use super::dns::{DnsError, Lookups, Resolver};
use crate::config::{Control, ControlAddr};
use crate::telemetry::control::ControlCalls;
use crate::transport::connect::{ConnectOptions, Origin};

mod dial;
mod replicas;

pub(crate) use self::dial::{DialError, Trust};
pub(crate) use self::replicas::ResponseBody;
#[cfg(test)]
pub(super) use self::replicas::STREAMS_PER_CONNECTION;

/// Sends gRPC calls to one control-plane service. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Client {
    inner: Arc<Inner>,
    outage_log: OutageLog,
}

/// The reason why a call could not be sent.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{authority:?} is not a valid HTTP authority")]
    Authority {
        authority: String,
        source: Arc<http::uri::InvalidUri>,
    },
    #[error("cannot resolve {authority}")]
    Resolve {
        authority: String,
        source: Arc<DnsError>,
    },
    #[error("no replica of {authority} can be reached; tried {tried} of {known}")]
    Unreachable {
        authority: String,
        tried: usize,
        known: usize,
        /// The error of the last replica tried.
        source: Arc<DialError>,
    },
    #[error("connecting to {authority} ended early")]
    Interrupted {
        authority: String,
        source: Arc<JoinError>,
    },
    #[error("call to {authority} failed")]
    Send {
        authority: String,
        source: Arc<hyper::Error>,
    },
}

/// Which component logs that the service cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageLog {
    Client,
    Caller,
}

struct Inner {
    addr: ControlAddr,
    authority: String,
    resolver: Resolver,
    lookups: Lookups,
    calls: Arc<ControlCalls>,
    dial: ReplicaDialer,
    /// Whether the last attempt to reach the service failed. Only changes are logged.
    is_unreachable: AtomicBool,
    unreachable: Gauge,
    // Locked while replicas are looked up and dialled, so that concurrent calls share the new
    // connection or the failure.
    replicas: Mutex<Replicas>,
}

/// How long a call waits for DNS if a connection is open already. A working DNS server responds in
/// a fraction of this.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(500);

impl Client {
    /// `name` is the `client` label of the metrics of the service.
    pub(crate) fn new(
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
            calls: Arc::new(ControlCalls::new(
                registry,
                &addr.authority(),
                addr.identity.clone(),
            )),
            resolver: resolver.clone(),
            dial: ReplicaDialer {
                identity: addr.identity.clone(),
                trust,
                options: ConnectOptions {
                    timeout: control.connect_timeout,
                    socket: control.connect,
                },
                origin: Origin::current(),
            },
            is_unreachable: AtomicBool::new(false),
            unreachable: registry
                .gauge_family(
                    "mesh_proxy_control_unreachable",
                    "1 while a service of the control plane cannot be reached, so that its last responses stay in effect, else 0",
                )
                .with(&Labels::new().with("client", name)),
            replicas: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            outage_log: OutageLog::Client,
        }
    }

    /// Leaves it to the caller to log that the service cannot be reached, which is not of the
    /// control plane.
    pub(crate) fn with_outages_logged_by_caller(self) -> Self {
        Self {
            outage_log: OutageLog::Caller,
            ..self
        }
    }

    /// Waits until there is a certificate, if the service requires one.
    pub(crate) async fn ready(&self) {
        self.inner.dial.ready().await;
    }
}

impl Service<Request<Body>> for Client {
    type Response = Response<Sanitized<ResponseBody>>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, CallError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, outage_log) = (self.inner.clone(), self.outage_log);
        Box::pin(inner.send(request, outage_log))
    }
}

impl Inner {
    async fn send(
        self: Arc<Self>,
        mut request: Request<Body>,
        outage_log: OutageLog,
    ) -> Result<Response<Sanitized<ResponseBody>>, CallError> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = self.uri(path)?;
        // A task, because a call may end before every replica has been dialled: whether the service
        // can be reached is reported all the same, and the next call gets the connection.
        let connecting = tokio::spawn(self.clone().connect(outage_log)).await;
        let (mut sender, stream) = connecting.map_err(|source| CallError::Interrupted {
            authority: self.authority.clone(),
            source: Arc::new(source),
        })??;
        let mut call = self.calls.begin();
        let response = sender
            .send_request(request)
            .await
            .map_err(|source| CallError::Send {
                authority: self.authority.clone(),
                source: Arc::new(source),
            })?;
        call.response_headers(response.status(), response.headers());
        let response = response.map(|body| ResponseBody::new(body, stream, call));
        Ok(grpc::response(response))
    }

    /// Returns a connection, and reports whether there is one.
    async fn connect(
        self: Arc<Self>,
        outage_log: OutageLog,
    ) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let connection = self.connection().await;
        if outage_log == OutageLog::Client {
            self.report(connection.as_ref().err());
        }
        connection
    }

    fn report(&self, error: Option<&CallError>) {
        self.unreachable.set(i64::from(error.is_some()));
        let before = self.is_unreachable.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !before => {
                let error = mesh_runtime::log::chain(error);
                tracing::warn!(
                    error,
                    "Control plane unreachable; the last configuration stays in force"
                );
            }
            None if before => {
                tracing::info!(authority = self.authority, "Control plane reachable again");
            }
            _ => {}
        }
    }

    /// Returns the URI of a call. gRPC requires the service's name as authority, for all replicas.
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

    /// Returns a connection, or the failure of another call that tried to connect while this one
    /// waited.
    async fn connection(&self) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let requested = Instant::now();
        let mut replicas = self.replicas.lock().await;
        if let Some(error) = replicas.failure_since(requested) {
            return Err(error);
        }
        let connected = self.connect_any(&mut replicas).await;
        if let Err(error) = &connected {
            self.resolver.clear_cache();
            replicas.record_failure(error.clone(), Instant::now());
        }
        connected
    }

    /// Returns a connection to the next replica in rotation that can be reached.
    async fn connect_any(
        &self,
        replicas: &mut Replicas,
    ) -> Result<(SendRequest<Body>, Arc<()>), CallError> {
        let generation = self.dial.trust.generation();
        match self.look_up(replicas.is_connected(generation)).await {
            Ok(addrs) => replicas.set_addrs(addrs),
            // DNS may fail while the service is reachable.
            Err(_) if replicas.is_connected(generation) => {}
            Err(error) => return Err(error),
        }
        let order = replicas.order(Instant::now());
        let known = order.len();
        let mut last = DialError::NoReplicas;
        let mut tried = 0;
        for addr in order {
            if let Some(connection) = replicas.find_usable(addr, generation) {
                return Ok(connection.stream());
            }
            tried += 1;
            match self.dial.dial(addr).await {
                Ok(connection) => {
                    tracing::debug!(%addr, authority = self.authority, "Connected");
                    let stream = connection.stream();
                    replicas.add_connection(addr, connection);
                    return Ok(stream);
                }
                Err(error) => {
                    replicas.mark_unreachable(addr, Instant::now());
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

    /// Resolves the replicas' addresses, within [`REFRESH_TIMEOUT`] if a connection is open.
    async fn look_up(&self, is_connected: bool) -> Result<Vec<SocketAddr>, CallError> {
        let resolving = self.resolver.resolve(&self.addr, &self.lookups);
        let resolved = if is_connected {
            timeout(REFRESH_TIMEOUT, resolving)
                .await
                .unwrap_or_else(|_elapsed| {
                    Err(DnsError::TimedOut {
                        name: self.addr.host.to_string(),
                        limit: REFRESH_TIMEOUT,
                    })
                })
        } else {
            resolving.await
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
