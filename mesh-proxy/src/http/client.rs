//! The connections to one endpoint: an HTTP/1 pool and one HTTP/2 connection, each made when first needed.
//!
//! A [`Client`] lives on one data thread and belongs to one endpoint: a balancer's member, a fixed address, or the application behind the inbound side.
//! How a connection is made (TCP, TLS, transport header) is the business of its [`Dial`].

use std::future::Future;
use std::rc::Rc;

use http::{Method, Version};
use mesh_core::endpoint::Http2Params;

pub use self::http1::Lease;
use self::http1::Pool;
use self::http2::Multiplexed;
use super::{Body, Protocol, Request, Response, upgrade, uri};
use crate::config::Http1Pool;
use crate::error::DialError;
use crate::transport::Io;

mod http1;
mod http2;

/// Makes connections to one endpoint.
pub trait Dial {
    /// Connects completely: after TLS and any transport header.
    fn dial(&self, protocol: Protocol) -> impl Future<Output = Result<Io, DialError>>;
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
    http2: Multiplexed,
}

/// A request that got no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// No connection could be made; the request is untouched.
    #[error("{error}")]
    Dial {
        #[source]
        error: DialError,
        request: Box<Request>,
    },
    /// The connection failed after the request, or part of it, had been sent.
    #[error("the connection failed before the response: {0}")]
    Exchange(#[source] hyper::Error),
}

/// How often a request that was handed back unsent by a dying connection is given to another one, before the endpoint counts as failed. Connections
/// found dead are dropped, so more than one round means that the endpoint closes connections as soon as they are made.
const MAX_UNSENT: usize = 3;

impl SendError {
    /// The reason when the other side reset the stream.
    pub fn reset(&self) -> Option<h2::Reason> {
        match self {
            Self::Dial { .. } => None,
            Self::Exchange(error) => super::body::h2_error(error)
                .filter(|error| error.is_reset() && error.is_remote())?
                .reason(),
        }
    }

    /// Whether the other side said that it has not begun with the request, so that even a request with effects may be sent again.
    pub fn is_unprocessed(&self) -> bool {
        let Self::Exchange(error) = self else {
            return true;
        };
        let Some(error) = super::body::h2_error(error) else {
            return false;
        };
        let refused = error.is_remote()
            && error.is_reset()
            && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        // Streams above the last one that a GOAWAY names fail with it; those below go on.
        refused || (error.is_remote() && error.is_go_away())
    }
}

impl<D: Dial + 'static> Client<D> {
    pub fn new(dial: D, params: &Params) -> Self {
        Self {
            dial: Rc::new(dial),
            http1: Pool::new(params.pool),
            http2: Multiplexed::new(params.http2),
        }
    }

    pub fn dial(&self) -> &D {
        &self.dial
    }

    /// Sends `request` as its version says. Its URI is absolute; it is brought into HTTP/1's form here.
    pub async fn send(&self, request: Request) -> Result<Response, SendError> {
        if request.version() == Version::HTTP_2 {
            self.http2.send(&self.dial, request).await
        } else {
            self.send_http1(request).await
        }
    }

    async fn send_http1(&self, mut request: Request) -> Result<Response, SendError> {
        let once = needs_own_connection(&request);
        uri::restore_http1_form(&mut request);
        let method = request.method().clone();
        let mut response = if once {
            http1::send_once(&*self.dial, request).await?
        } else {
            self.http1.send(&*self.dial, request).await?
        };
        if !(method == Method::CONNECT && response.status().is_success()) {
            let status = response.status();
            upgrade::clean_response(response.headers_mut(), status);
        }
        Ok(response)
    }
}

/// Whether a request gets a connection to itself: it takes the connection over, or is so old-fashioned that nobody knows what follows it.
fn needs_own_connection(request: &Request) -> bool {
    request.version() == Version::HTTP_10
        || request.method() == Method::CONNECT
        || upgrade::is_requested(request)
        || !request.headers().contains_key(http::header::HOST)
}

/// Whether sending a request twice does no more than sending it once, by its method and because there is no body to lose.
pub fn is_replayable(request: &Request) -> bool {
    request.method().is_idempotent() && request.body().is_empty() && !upgrade::is_requested(request)
}

/// The same request again. Its extensions come along except hyper's own.
pub fn replay(request: &Request) -> Request {
    let mut again = Request::new(Body::empty());
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    again
}
