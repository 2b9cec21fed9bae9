//! The tap service, on the control thread.
//!
//! Only the identity that the tap injector names (`LINKERD2_PROXY_TAP_SVC_NAME`) may subscribe.
//! Other clients get UNAUTHENTICATED with the reason, as from Linkerd's proxy. Their connections
//! are short, and do not count as the observer's.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_api::grpc;
use mesh_api::proto::tap::tap_server::{Tap as TapService, TapServer as GrpcServer};
use mesh_api::proto::tap::{ObserveRequest, TapEvent};
use mesh_core::identity::Identity;
use mesh_runtime::open_connections::OpenConnections;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, TryAcquireError};
use tonic::{Request, Response, Status};
use tower::Service as _;

use crate::inbound::Inbound;
use crate::tap::{MAX_SUBSCRIPTIONS, Tap};
use crate::telemetry::labels::ServerTls;
use crate::transport::Io;

/// What the tap service needs.
pub(crate) struct TapServer {
    tap: Arc<Tap>,
    observer: Identity,
    inbound: Rc<Inbound>,
    /// One permit for each connection of the observer.
    connections: Arc<Semaphore>,
}

/// The gRPC service of one connection.
#[derive(Clone)]
struct Observe {
    tap: Arc<Tap>,
    /// The reason why the client may not subscribe.
    denied: Option<Arc<str>>,
}

/// The most connections of the observer. Each replica of the tap controller has one or two.
const MAX_CONNECTIONS: usize = 32;

/// The most connections of clients whose identity is unknown or wrong.
const MAX_DENIED_CONNECTIONS: usize = 32;

/// A denied client has this long to send a request and read the response.
const DENIED_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection whose observer is gone ends within the sum of both.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest subscription. A filter of 1,000 conditions fits.
const MAX_REQUEST: usize = 256 << 10;

const MAX_HEADER_LIST: u32 = 16 << 10;

/// The pause after an error that persists, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for the life of the process. Needs a `LocalSet`.
pub(crate) async fn serve(listener: TcpListener, server: Rc<TapServer>) {
    let mut unauthenticated = OpenConnections::new(MAX_DENIED_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((tcp, _peer)) => {
                unauthenticated.spawn_local(server.clone().accept(tcp));
            }
            Err(error) => {
                tracing::warn!(%error, "Tap server failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl TapServer {
    /// `observer` may subscribe. `inbound` belongs to the control thread.
    pub(crate) fn new(tap: Arc<Tap>, observer: Identity, inbound: Rc<Inbound>) -> Self {
        Self {
            tap,
            observer,
            inbound,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    /// Authenticates a client. The observer's connection becomes a task of its own.
    async fn accept(self: Rc<Self>, tcp: TcpStream) {
        let Ok(client) = tcp.peer_addr() else {
            // The client has closed the connection already.
            return;
        };
        let (io, tls) = match self.inbound.terminate_tls(Io::plain(tcp)).await {
            Ok(Some(terminated)) => terminated,
            Ok(None) => return,
            Err(error) => {
                tracing::info!(%client, error = &error as &dyn std::error::Error, "Tap connection closed");
                return;
            }
        };
        let denied = match &tls {
            ServerTls::Established { client: Some(id) } if *id == self.observer => None,
            ServerTls::Established { client: Some(id) } => Some(format!(
                "Unauthorized client: {id} is not {}",
                self.observer
            )),
            ServerTls::Established { client: None } => {
                Some("Unauthorized client: no client certificate".to_owned())
            }
            // The bytes are another server's TLS. No response could be sent in it.
            ServerTls::Opaque { .. } => return,
            ServerTls::None(_) => {
                Some("Unauthorized client: the connection has no mTLS".to_owned())
            }
        };
        if let Some(reason) = denied {
            tracing::info!(%client, reason, "Tap denied");
            let serving = serve_grpc(io, self.tap.clone(), Some(reason.into()));
            let _elapsed = tokio::time::timeout(DENIED_TIMEOUT, serving).await;
            return;
        }
        match self.connections.clone().try_acquire_owned() {
            Ok(permit) => {
                let serving = serve_grpc(io, self.tap.clone(), None);
                tokio::task::spawn_local(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                tracing::info!(%client, limit = MAX_CONNECTIONS, "Tap connection limit reached");
            }
        }
    }
}

/// Serves the requests of one connection.
async fn serve_grpc(io: Io, tap: Arc<Tap>, denied: Option<Arc<str>>) {
    let service = GrpcServer::new(Observe { tap, denied }).max_decoding_message_size(MAX_REQUEST);
    let respond = service_fn(move |request: http::Request<Incoming>| {
        service.clone().call(grpc::request(request))
    });
    let served = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_concurrent_streams(MAX_SUBSCRIPTIONS as u32)
        .serve_connection(TokioIo::new(io), respond)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "Tap connection failed");
    }
}

/// Runs the requests of a connection on the control thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output = ()> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, request: F) {
        tokio::task::spawn_local(request);
    }
}

#[tonic::async_trait]
impl TapService for Observe {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<TapEvent, Status>> + Send>>;

    async fn observe(
        &self,
        request: Request<ObserveRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        if let Some(reason) = &self.denied {
            return Err(Status::unauthenticated(&**reason));
        }
        let request = mesh_api::tap::request(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let events = self
            .tap
            .subscribe(request)
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let messages = unfold(events, async |mut events| {
            let event = events.next().await?;
            Some((Ok(mesh_api::tap::event_to_proto(&event)), events))
        });
        Ok(Response::new(Box::pin(messages)))
    }
}
