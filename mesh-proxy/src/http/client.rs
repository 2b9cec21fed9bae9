//! The connections to one endpoint: an HTTP/1 pool and an HTTP/2 pool, whose connections are made
//! on demand.
//!
//! A [`Client`] lives on one data thread and belongs to one endpoint: an endpoint of a balancer, a
//! fixed address, or the application behind the inbound proxy. Its [`Dial`] makes connections (TCP,
//! TLS, transport header).

use std::future::Future;
use std::rc::Rc;

use http::{Method, Version};
use mesh_core::endpoint::Http2Params;

pub use self::http1::PoolHandle;
use self::http1::{Pool, PoolGuard};
use self::http2::{Http2Pool, StreamGuard};
use super::{ErrorCode, Protocol, Request, Response, upgrade};
use crate::config::Http1Pool;
use crate::error::{DialError, Error, Kind as ErrorKind, chain};
use crate::telemetry::http::StreamError;
use crate::transport::Io;

mod http1;
mod http2;

/// Connects to one endpoint.
pub trait Dial {
    /// Completes after TLS and any transport header.
    fn dial(&self, protocol: Protocol) -> impl Future<Output = Result<Io, DialError>>;
}

/// Is notified when a server closes idle connections, as servers do when they shut down.
pub trait ServerWatcher {
    /// The server has closed a connection, or has announced it. If the watcher connects to the
    /// server to find out whether it still listens, it can add the connection to `pool`.
    fn connection_closed(self: Rc<Self>, pool: Option<PoolHandle>);

    /// Whether the last idle connection is kept although no request will use it, because its end
    /// shows that the server shuts down.
    fn keeps_last_idle(&self) -> bool;
}

/// Settings of a [`Client`].
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    pub pool: Http1Pool,
    pub http2: Http2Params,
}

/// Sends requests to one endpoint.
pub struct Client<D> {
    dial: Rc<D>,
    http1: Rc<Pool>,
    http2: Http2Pool<D>,
}

/// Holds the connection or stream that a response arrives on until its body has been read.
pub enum ResponseGuard {
    Http1(PoolGuard),
    Http2(StreamGuard),
}

/// A connection, or a reserved stream, for one request.
pub struct Connection {
    kind: ConnectionKind,
}

enum ConnectionKind {
    /// Taken from the pool, or to be returned to it.
    Http1 {
        connection: http1::PooledConnection,
        pool: Rc<Pool>,
    },
    /// Used for this request only.
    Dedicated(http1::PooledConnection),
    Http2(http2::StreamReservation),
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made, or it ended before anything was written to it. The request is
    /// unchanged.
    #[error(transparent)]
    Dial(DialError),
    /// The connection failed after at least a part of the request had been sent.
    #[error("connection failed before the response")]
    Http1(#[from] super::http1::Error),
    /// The same for HTTP/2.
    #[error("connection failed before the response")]
    Http2(#[source] mesh_http2::Error),
}

/// How often a request is moved to another connection because its connection was dead, before the
/// endpoint counts as failed. Dead connections are removed when they are found, so a second attempt
/// that fails means that the endpoint closes connections as soon as they are made.
pub const MAX_DEAD_CONNECTIONS: usize = 3;

impl ClientConfig {
    pub fn new(pool: &Http1Pool, http2: Http2Params) -> Self {
        Self { pool: *pool, http2 }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        let kind = match (&error, error.reset()) {
            (_, Some(code)) => ErrorKind::Reset(code),
            (SendError::Dial(error), None) if error.is_timeout() => ErrorKind::ConnectTimeout,
            _ => ErrorKind::Io,
        };
        Self::new(kind, chain(&error))
    }
}

impl From<ErrorCode> for StreamError {
    /// How a stream reset by the peer is counted.
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::REFUSED_STREAM => Self::Refused,
            ErrorCode::ENHANCE_YOUR_CALM => Self::EnhanceYourCalm,
            ErrorCode::CANCEL => Self::Cancel,
            _ => Self::Reset,
        }
    }
}

impl From<&SendError> for StreamError {
    fn from(error: &SendError) -> Self {
        error.reset().map_or(Self::Io, Self::from)
    }
}

impl SendError {
    /// The error code, if the peer reset the stream.
    pub fn reset(&self) -> Option<ErrorCode> {
        match self {
            Self::Dial(_) | Self::Http1(_) => None,
            Self::Http2(mesh_http2::Error::Reset(code)) => Some(*code),
            Self::Http2(_) => None,
        }
    }

    /// Whether the server is shutting down or has exited, and has certainly not processed the
    /// request: it no longer listens, or its GOAWAY excludes the stream.
    pub fn is_server_gone(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_refused(),
            Self::Http1(_) => false,
            Self::Http2(error) => matches!(error, mesh_http2::Error::Unprocessed(_)),
        }
    }

    /// Whether the connection ended before the server responded in any way, as all connections of a
    /// killed server do.
    pub fn is_connection_lost(&self) -> bool {
        use super::http1::Error;
        match self {
            Self::Dial(_) => false,
            Self::Http1(error) => {
                matches!(error, Error::NoResponse | Error::Read(_) | Error::Write(_))
            }
            Self::Http2(error) => error.is_connection_lost(),
        }
    }

    /// Whether the peer reported that it has not processed the request, so that even a request that
    /// is not idempotent can be retried.
    pub fn is_unprocessed(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Http1(_) => false,
            // A GOAWAY fails only streams above its last stream id; the others continue.
            Self::Http2(error) => matches!(
                error,
                mesh_http2::Error::Reset(ErrorCode::REFUSED_STREAM)
                    | mesh_http2::Error::Unprocessed(_)
            ),
        }
    }
}

impl<D: Dial + 'static> Client<D> {
    pub fn new(dial: D, config: &ClientConfig) -> Self {
        Self::with(Rc::new(dial), config, None)
    }

    /// Returns a client whose `dial` is notified when the server closes connections.
    pub fn with_watcher(dial: D, config: &ClientConfig) -> Self
    where
        D: ServerWatcher,
    {
        let dial = Rc::new(dial);
        Self::with(dial.clone(), config, Some(dial))
    }

    fn with(dial: Rc<D>, config: &ClientConfig, watcher: Option<Rc<dyn ServerWatcher>>) -> Self {
        Self {
            http1: Pool::new(config.pool, watcher.clone()),
            http2: Http2Pool::new(dial.clone(), config, watcher),
            dial,
        }
    }

    pub fn dial(&self) -> &Rc<D> {
        &self.dial
    }

    /// Returns a connection for `request`, of the protocol of its version.
    pub async fn connect(&self, request: &Request) -> Result<Connection, DialError> {
        let kind = if request.version() == Version::HTTP_2 {
            ConnectionKind::Http2(self.http2.reserve().await?)
        } else if needs_dedicated_connection(request) {
            ConnectionKind::Dedicated(
                Box::pin(http1::connect(&*self.dial, self.http1.limits())).await?,
            )
        } else if let Some(connection) = self.http1.take() {
            let pool = self.http1.clone();
            ConnectionKind::Http1 { connection, pool }
        } else {
            let connection = Box::pin(http1::connect(&*self.dial, self.http1.limits())).await?;
            let pool = self.http1.clone();
            ConnectionKind::Http1 { connection, pool }
        };
        Ok(Connection { kind })
    }

    /// Sends `request`. If an idle connection turns out to be dead, retries on another one,
    /// provided that the request was not written or is replayable.
    pub async fn send(&self, request: &mut Request) -> Result<Response, SendError> {
        let mut dead = 0;
        loop {
            let connection = self.connect(request).await.map_err(SendError::Dial)?;
            let is_retryable = connection.is_reused() && is_replayable(request);
            match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) if dead == MAX_DEAD_CONNECTIONS => return Err(error),
                Err(SendError::Dial(_)) => {}
                Err(SendError::Http1(_) | SendError::Http2(_)) if is_retryable => {}
                Err(error) => return Err(error),
            }
            dead += 1;
        }
    }
}

impl Connection {
    /// Whether earlier requests have used the connection. The server may have closed it since.
    pub fn is_reused(&self) -> bool {
        matches!(&self.kind, ConnectionKind::Http1 { connection, .. } if connection.reused)
    }

    /// Sends `request`, whose URI must be absolute, and converts it to the form that HTTP/1 needs.
    /// Takes the body, unless the request could not be written ([`SendError::Dial`]).
    pub async fn send(self, request: &mut Request) -> Result<Response, SendError> {
        let (connection, pool) = match self.kind {
            ConnectionKind::Http2(reservation) => return reservation.send(request).await,
            ConnectionKind::Http1 { connection, pool } => (connection, Some(pool)),
            ConnectionKind::Dedicated(connection) => (connection, None),
        };
        let mut response = connection.send(request, pool.as_ref()).await?;
        if !(request.method() == Method::CONNECT && response.status().is_success()) {
            let status = response.status();
            upgrade::strip_response_headers(response.headers_mut(), status);
        }
        Ok(response)
    }
}

impl ResponseGuard {
    /// Releases the connection after the response has been read completely. Dropping the guard
    /// instead closes the connection or resets the stream.
    pub(super) fn release(self) {
        match self {
            Self::Http1(guard) => guard.release(),
            Self::Http2(stream) => stream.release(),
        }
    }
}

/// Whether a request needs its own connection: it becomes a tunnel, or it does not support reuse.
fn needs_dedicated_connection(request: &Request) -> bool {
    request.version() == Version::HTTP_10
        || request.method() == Method::CONNECT
        || upgrade::is_requested(request)
        || !request.headers().contains_key(http::header::HOST)
}

/// Whether sending a request twice has the same effect as sending it once: the method is
/// idempotent, and there is no body to lose.
pub fn is_replayable(request: &Request) -> bool {
    request.method().is_idempotent() && request.body().is_empty() && !upgrade::is_requested(request)
}
