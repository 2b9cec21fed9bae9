//! The tap service, on the control thread.
//!
//! Only the identity that the tap injector names (`LINKERD2_PROXY_TAP_SVC_NAME`) may subscribe.
//! Other clients get UNAUTHENTICATED with the reason, as from Linkerd's proxy. Their connections
//! are short, and do not count as the observer's. The HTTP/2 engine of the data threads serves
//! both, so that its limits apply: floods of frames and resets end the connection.

use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use http_body_util::{BodyExt as _, Full, Limited};
use mesh_api::grpc;
use mesh_api::proto::tap::tap_server::{Tap as TapService, TapServer as GrpcServer};
use mesh_api::proto::tap::{ObserveRequest, TapEvent};
use mesh_core::identity::Identity;
use mesh_runtime::drain::Watch;
use mesh_runtime::open_connections::OpenConnections;
use tokio::sync::{Semaphore, TryAcquireError};
use tonic::Status;
use tower::Service as _;

use crate::config::{ClientTrust, Http2KeepAlive};
use crate::http::server::Server;
use crate::http::{Body, HttpHandler, Protocol, Request, Reset, Response};
use crate::inbound::Inbound;
use crate::tap::{MAX_SUBSCRIPTIONS, Tap};
use crate::telemetry::labels::ServerTls;
use crate::transport::Io;
use crate::transport::listen::Acceptor;
use crate::transport::socket::Socket;

/// What the tap service needs.
pub(crate) struct TapServer {
    tap: Arc<Tap>,
    observer: Identity,
    inbound: Rc<Inbound>,
    server: Server,
    drain: Watch,
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

/// The bytes before a message of gRPC.
const MESSAGE_PREFIX: usize = 5;

const MAX_HEADER_LIST: u32 = 16 << 10;

/// The pause after an error that persists, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for the life of the process. Needs a `LocalSet`.
pub(crate) async fn serve(listener: Acceptor, server: Rc<TapServer>) {
    let mut unauthenticated = OpenConnections::new(MAX_DENIED_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok(tcp) => {
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
        let (server, drain) = inbound.http_server();
        let server = server.with_http2(|http2| {
            http2.max_concurrent_streams = Some(MAX_SUBSCRIPTIONS as u32);
            http2.max_header_list_size = MAX_HEADER_LIST;
            http2.keep_alive = Some(Http2KeepAlive {
                interval: KEEP_ALIVE_INTERVAL,
                timeout: KEEP_ALIVE_TIMEOUT,
            });
        });
        Self {
            tap,
            observer,
            inbound,
            server,
            drain,
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    /// Authenticates a client. The observer's connection becomes a task of its own.
    async fn accept(self: Rc<Self>, tcp: Socket) {
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
            let serving = self.serve(io, Some(reason.into()));
            let _elapsed = tokio::time::timeout(DENIED_TIMEOUT, serving).await;
            return;
        }
        match self.connections.clone().try_acquire_owned() {
            Ok(permit) => {
                tokio::task::spawn_local(async move {
                    self.serve(io, None).await;
                    drop(permit);
                });
            }
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                tracing::info!(%client, limit = MAX_CONNECTIONS, "Tap connection limit reached");
            }
        }
    }

    /// Serves the requests of one connection.
    async fn serve(&self, io: Io, denied: Option<Arc<str>>) {
        let client = match denied {
            None => ClientTrust::Known,
            Some(_) => ClientTrust::Unknown,
        };
        let tap = self.tap.clone();
        let handler = Rc::new(Observe { tap, denied });
        let drain = self.drain.clone();
        let serving = self
            .server
            .serve_client(io, Protocol::Http2, handler, client, drain);
        if let Err(error) = serving.await {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "Tap connection failed"
            );
        }
    }
}

impl HttpHandler for Observe {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        if let Some(reason) = &self.denied {
            // Without the request's body, which may never end.
            return Ok(Status::unauthenticated(&**reason).into_http());
        }
        let (head, body) = mem::take(request).into_parts();
        let Ok(body) = Limited::new(body, MESSAGE_PREFIX + MAX_REQUEST)
            .collect()
            .await
        else {
            return Ok(Status::resource_exhausted("incomplete or too large").into_http());
        };
        let request = http::Request::from_parts(head, Full::new(body.to_bytes()));
        let service = GrpcServer::new(self.clone());
        let mut service = service.max_decoding_message_size(MAX_REQUEST);
        match service.call(grpc::request(request)).await {
            Ok(response) => Ok(response.map(Body::local)),
            Err(never) => match never {},
        }
    }
}

#[tonic::async_trait]
impl TapService for Observe {
    type ObserveStream = Pin<Box<dyn Stream<Item = Result<TapEvent, Status>> + Send>>;

    async fn observe(
        &self,
        request: tonic::Request<ObserveRequest>,
    ) -> Result<tonic::Response<Self::ObserveStream>, Status> {
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
        Ok(tonic::Response::new(Box::pin(messages)))
    }
}
