//! The connections to one endpoint: an HTTP/1 pool and a shared HTTP/2 connection, each made when
//! first needed.
//!
//! A [`Client`] lives on one data thread and belongs to one endpoint: a balancer's member, a fixed
//! address, or the application behind the inbound side. How a connection is made (TCP, TLS,
//! transport header) is the business of its [`Dial`].

use std::future::Future;
use std::rc::Rc;

use http::{Method, Version};
use mesh_core::endpoint::Http2Params;

pub use self::http1::Spare;
use self::http1::{Loan, Pool};
use self::http2::{Multiplexed, Stream};
use super::{ErrorCode, Protocol, Request, Response, upgrade};
use crate::config::Http1Pool;
use crate::error::{DialError, Error, Kind as ErrorKind, chain};
use crate::telemetry::http::StreamError;
use crate::transport::Io;

mod http1;
mod http2;

/// Makes connections to one endpoint.
pub trait Dial {
    /// Connects completely: after TLS and any transport header.
    fn dial(&self, protocol: Protocol) -> impl Future<Output = Result<Io, DialError>>;
}

/// Learns when a server closes connections that it had kept open, which it does when it goes away.
pub trait WatchServer {
    /// The server has closed a connection, or has said that it will. The one that finds out what
    /// this means may have a connection to `spare`.
    fn connection_closed(self: Rc<Self>, spare: Option<Spare>);

    /// Whether the last idle connection is kept although no request will use it: its end shows that
    /// the server goes.
    fn keeps_last_idle(&self) -> bool;
}

/// Settings of the connections to endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub pool: Http1Pool,
    pub http2: Http2Params,
}

/// Sends requests to one endpoint.
pub struct Client<D> {
    dial: Rc<D>,
    http1: Rc<Pool>,
    http2: Multiplexed<D>,
}

/// What a response holds of the connection it arrives on, until it has been read.
pub enum Lease {
    Http1(Loan),
    Http2(Stream),
}

/// A connection that is ready for one request.
pub struct Connection {
    kind: Kind,
}

enum Kind {
    /// From the pool, or to go there.
    Http1 {
        conn: http1::Conn,
        pool: Rc<Pool>,
    },
    /// For this request only.
    Once(http1::Conn),
    Http2(http2::Slot),
}

/// A request that got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made, or the connection ended before anything was written to it; the
    /// request is untouched.
    #[error("{0}")]
    Dial(#[source] DialError),
    /// The connection failed after the request, or part of it, had been sent.
    #[error("the connection failed before the response: {0}")]
    Http1(#[from] super::http1::Error),
    /// The same.
    #[error("the connection failed before the response: {0}")]
    Http2(#[source] mesh_http2::Error),
}

/// How often one request is given to another connection because the one before turned out to be
/// dead, before the endpoint counts as failed. Dead connections are dropped as they are found, so a
/// second round already means that the endpoint closes connections as soon as they are made.
pub const MAX_DEAD_CONNECTIONS: usize = 3;

impl Params {
    pub fn new(pool: &Http1Pool, http2: Http2Params) -> Self {
        Self { pool: *pool, http2 }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        let kind = match (&error, error.reset()) {
            (_, Some(reason)) => ErrorKind::Reset(reason),
            (SendError::Dial(error), None) if error.is_timeout() => ErrorKind::ConnectTimeout,
            _ => ErrorKind::Io,
        };
        Self::new(kind, chain(&error))
    }
}

impl From<ErrorCode> for StreamError {
    /// How a reset by the other side counts.
    fn from(reason: ErrorCode) -> Self {
        match reason {
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
    /// The reason when the other side reset the stream.
    pub fn reset(&self) -> Option<ErrorCode> {
        match self {
            Self::Dial(_) | Self::Http1(_) => None,
            Self::Http2(mesh_http2::Error::Reset(reason)) => Some(*reason),
            Self::Http2(_) => None,
        }
    }

    /// Whether the server goes or is gone, and has certainly not begun with the request: it no
    /// longer listens, or its GOAWAY excludes the stream.
    pub fn is_server_gone(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_refused(),
            Self::Http1(_) => false,
            Self::Http2(error) => matches!(error, mesh_http2::Error::Unprocessed(_)),
        }
    }

    /// Whether the connection ended before anything was said of the request, as all do of a server
    /// that is ended at once.
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

    /// Whether the other side said that it has not begun with the request, so that even a request
    /// with effects may be sent again.
    pub fn is_unprocessed(&self) -> bool {
        match self {
            Self::Dial(_) => true,
            Self::Http1(_) => false,
            // Streams above the last one that a GOAWAY names fail with it; those below go on.
            Self::Http2(error) => matches!(
                error,
                mesh_http2::Error::Reset(ErrorCode::REFUSED_STREAM)
                    | mesh_http2::Error::Unprocessed(_)
            ),
        }
    }
}

impl<D: Dial + 'static> Client<D> {
    pub fn new(dial: D, params: &Params) -> Self {
        Self::with(Rc::new(dial), params, None)
    }

    /// A client whose server is watched by what connects to it.
    pub fn watched(dial: D, params: &Params) -> Self
    where
        D: WatchServer,
    {
        let dial = Rc::new(dial);
        Self::with(dial.clone(), params, Some(dial))
    }

    fn with(dial: Rc<D>, params: &Params, watch: Option<Rc<dyn WatchServer>>) -> Self {
        Self {
            http1: Pool::new(params.pool, watch.clone()),
            http2: Multiplexed::new(dial.clone(), params, watch),
            dial,
        }
    }

    pub fn dial(&self) -> &Rc<D> {
        &self.dial
    }

    /// A connection for `request`, of the protocol that its version says.
    pub async fn connect(&self, request: &Request) -> Result<Connection, DialError> {
        let kind = if request.version() == Version::HTTP_2 {
            Kind::Http2(self.http2.slot().await?)
        } else if needs_own_connection(request) {
            Kind::Once(Box::pin(http1::connect(&*self.dial, self.http1.limits())).await?)
        } else if let Some(conn) = self.http1.take() {
            let pool = self.http1.clone();
            Kind::Http1 { conn, pool }
        } else {
            let conn = Box::pin(http1::connect(&*self.dial, self.http1.limits())).await?;
            let pool = self.http1.clone();
            Kind::Http1 { conn, pool }
        };
        Ok(Connection { kind })
    }

    /// Sends `request`. Connections that died while they were idle are replaced without anybody
    /// noticing, if the request was not written or can be written twice.
    pub async fn send(&self, request: &mut Request) -> Result<Response, SendError> {
        let mut dead = 0;
        loop {
            let connection = self.connect(request).await.map_err(SendError::Dial)?;
            let may_repeat = connection.is_reused() && is_replayable(request);
            match connection.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) if dead == MAX_DEAD_CONNECTIONS => return Err(error),
                Err(SendError::Dial(_)) => {}
                Err(SendError::Http1(_) | SendError::Http2(_)) if may_repeat => {}
                Err(error) => return Err(error),
            }
            dead += 1;
        }
    }
}

impl Connection {
    /// Whether other requests have used the connection, so that the server may have closed it while
    /// nobody looked.
    pub fn is_reused(&self) -> bool {
        matches!(&self.kind, Kind::Http1 { conn, .. } if conn.reused)
    }

    /// Sends `request`, whose URI is absolute; HTTP/1's form is made here. Takes the body, unless
    /// the request could not be written: [`SendError::Dial`].
    pub async fn send(self, request: &mut Request) -> Result<Response, SendError> {
        let (conn, pool) = match self.kind {
            Kind::Http2(slot) => return slot.send(request).await,
            Kind::Http1 { conn, pool } => (conn, Some(pool)),
            Kind::Once(conn) => (conn, None),
        };
        let mut response = conn.send(request, pool.as_ref()).await?;
        if !(request.method() == Method::CONNECT && response.status().is_success()) {
            let status = response.status();
            upgrade::clean_response(response.headers_mut(), status);
        }
        Ok(response)
    }
}

impl Lease {
    /// The response has been read to its end. A lease that is dropped instead says that nobody
    /// will.
    pub(super) fn give_back(self) {
        match self {
            Self::Http1(loan) => loan.give_back(),
            Self::Http2(stream) => stream.give_back(),
        }
    }
}

/// Whether a request gets a connection to itself: it takes the connection over, or is so
/// old-fashioned that nobody knows what follows it.
fn needs_own_connection(request: &Request) -> bool {
    request.version() == Version::HTTP_10
        || request.method() == Method::CONNECT
        || upgrade::is_requested(request)
        || !request.headers().contains_key(http::header::HOST)
}

/// Whether sending a request twice does no more than sending it once, by its method and because
/// there is no body to lose.
pub fn is_replayable(request: &Request) -> bool {
    request.method().is_idempotent() && request.body().is_empty() && !upgrade::is_requested(request)
}
