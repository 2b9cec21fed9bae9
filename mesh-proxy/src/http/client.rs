//! The connections to one endpoint: an HTTP/1 pool and an HTTP/2 pool, whose connections are made
//! on demand.
//!
//! A [`Client`] lives on one data thread and belongs to one endpoint: an endpoint of a balancer, a
//! fixed address, or the application behind the inbound proxy. Its [`Dial`] makes connections (TCP,
//! TLS, transport header). It sends a request once; [`crate::retry`] decides what follows.

use std::future::{Future, ready};
use std::io;
use std::rc::Rc;

use http::{Method, Version};
use mesh_core::endpoint::Http2Params;

use self::http2::Http2Pool;
use super::body::TimeoutError;
use super::http1::pool::Pool;
pub(crate) use super::http1::pool::{PoolHandle, ServerWatcher};
use super::message_context::MessageContext;
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

    /// Whether the endpoint has stopped listening, after it has reset a connection. `false` if that
    /// is not known.
    fn has_stopped(&self) -> impl Future<Output = bool> {
        ready(false)
    }
}

/// Settings of a [`Client`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientConfig {
    pub(crate) pool: Http1Pool,
    pub(crate) http2: Http2Params,
}

/// Sends requests to one endpoint.
pub struct Client<D> {
    dial: Rc<D>,
    http1: Rc<Pool>,
    http2: Http2Pool<D>,
}

/// A connection, or a reserved stream, for one request.
pub(crate) struct Connection(ConnectionKind);

enum ConnectionKind {
    Http1 {
        connection: http1::PooledConnection,
        /// Where the connection is put after the response; `None`: it is used only once.
        pool: Option<Rc<Pool>>,
    },
    Http2(http2::StreamReservation),
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made, or it ended before anything was written to it. The request is
    /// unchanged.
    #[error(transparent)]
    Dial(DialError),
    /// The connection ended after at least a part of the request had been sent, and before anything
    /// of a response arrived.
    #[error("connection failed before the response")]
    Lost {
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
        /// The server may have closed the connection before it could receive the request.
        may_be_unreceived: bool,
    },
    /// The exchange failed otherwise before the response headers were complete: the response broke
    /// off or was invalid.
    #[error("connection failed before the response")]
    Http1(#[from] super::http1::Error),
    /// The same for HTTP/2, and a stream that the server has reset.
    #[error("connection failed before the response")]
    Http2(#[source] mesh_http2::Error),
    /// The caller's time limit of the attempt expired.
    #[error("timed out waiting for response headers: {0}")]
    TimedOut(TimeoutError),
}

impl ClientConfig {
    pub(crate) fn new(pool: &Http1Pool, http2: Http2Params) -> Self {
        Self { pool: *pool, http2 }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        let kind = match (&error, error.reset()) {
            (_, Some(code)) => ErrorKind::Reset(code),
            (SendError::Dial(error), None) if error.is_timeout() => ErrorKind::ConnectTimeout,
            (SendError::TimedOut(_), None) => ErrorKind::ResponseTimeout,
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
        match error {
            SendError::TimedOut(_) => Self::ResponseHeadersTimeout,
            error => error.reset().map_or(Self::Io, Self::from),
        }
    }
}

impl SendError {
    /// Whether the server has reset a new connection before anything of a response. It may not have
    /// accepted it: the kernel resets the connections in the backlog of a listener that closes.
    pub(crate) fn is_reset_of_new_connection(&self) -> bool {
        let Self::Lost {
            cause,
            may_be_unreceived: false,
        } = self
        else {
            return false;
        };
        let io: Option<&io::Error> = cause.source().and_then(|source| source.downcast_ref());
        io.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
    }

    /// The error code, if the peer reset the stream. A GOAWAY that excludes the stream says the
    /// same as REFUSED_STREAM, which an HTTP/2 client understands on its own connection.
    pub(crate) fn reset(&self) -> Option<ErrorCode> {
        match self {
            Self::Dial(_) | Self::Lost { .. } | Self::Http1(_) | Self::TimedOut(_) => None,
            Self::Http2(mesh_http2::Error::Reset(code)) => Some(*code),
            Self::Http2(mesh_http2::Error::Unprocessed(_)) => Some(ErrorCode::REFUSED_STREAM),
            Self::Http2(_) => None,
        }
    }
}

impl<D: Dial + 'static> Client<D> {
    pub(crate) fn new(dial: D, config: &ClientConfig) -> Self {
        Self::with(Rc::new(dial), config, None)
    }

    /// Returns a client whose `dial` is notified when the server closes connections.
    pub(crate) fn with_watcher(dial: D, config: &ClientConfig) -> Self
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

    pub(crate) fn dial(&self) -> &Rc<D> {
        &self.dial
    }

    /// Returns a connection for `request`, of the protocol of its version.
    pub(crate) async fn connect(&self, request: &Request) -> Result<Connection, DialError> {
        if request.version() == Version::HTTP_2 {
            let reservation = self.http2.reserve().await?;
            return Ok(Connection(ConnectionKind::Http2(reservation)));
        }
        let pool = (!needs_dedicated_connection(request)).then(|| self.http1.clone());
        // An upgrade cannot be sent again if an idle connection turns out to be closed.
        let is_upgrade = MessageContext::of(request.extensions()).requests_upgrade;
        let idle = match &pool {
            Some(pool) if !is_upgrade => pool.take(),
            _ => None,
        };
        let connection = match idle {
            Some(idle) => http1::PooledConnection::reused(idle),
            None => Box::pin(http1::connect(&*self.dial, self.http1.limits())).await?,
        };
        Ok(Connection(ConnectionKind::Http1 { connection, pool }))
    }
}

impl Connection {
    /// Sends `request`, whose URI must be absolute, and converts it to the form that HTTP/1 needs.
    /// Takes the body, unless it fails before anything was read of it.
    pub(crate) async fn send(self, request: &mut Request) -> Result<Response, SendError> {
        let (connection, pool) = match self.0 {
            ConnectionKind::Http2(reservation) => return reservation.send(request).await,
            ConnectionKind::Http1 { connection, pool } => (connection, pool),
        };
        let mut response = connection.send(request, pool.as_ref()).await?;
        if !(request.method() == Method::CONNECT && response.status().is_success()) {
            let status = response.status();
            upgrade::strip_response_headers(response.headers_mut(), status);
        }
        Ok(response)
    }
}

/// Whether the connection of a request is not used for others: it becomes a tunnel, or does not
/// support reuse. The connection of an upgrade is used again if the server does not upgrade it.
fn needs_dedicated_connection(request: &Request) -> bool {
    request.version() == Version::HTTP_10
        || request.method() == Method::CONNECT
        || !request.headers().contains_key(http::header::HOST)
}
