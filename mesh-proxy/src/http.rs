//! The HTTP engine of the data threads: an in-house HTTP/1 codec, and HTTP/2 by the crate
//! `mesh-http2`.
//!
//! `inbound` and `outbound` implement [`HttpHandler`], which [`server::Server::serve`] calls
//! once per request of a connection. They respond by sending the request through a
//! [`client::Client`], which owns the connections to one endpoint. No code outside this module
//! depends on a codec.
//!
//! [`http1`] and [`http2`] bound what a client can consume; the limits are
//! [`crate::config::HttpLimits`].
//!
//! Everything runs on the thread of its connection: one local task per connection, and one per
//! accepted HTTP/2 stream. A request is forwarded by the task that received it.

use std::future::Future;

pub(crate) mod body;
mod body_metrics;
mod body_timeout;
mod buffers;
pub(crate) mod client;
mod client_close;
pub(crate) mod delivery_failure;
pub(crate) mod filter;
pub(crate) mod grpc;
pub(crate) mod headers;
mod http1;
mod http2;
mod idle;
mod interim;
pub(crate) mod message_context;
pub mod orig_proto;
mod output;
mod raw_target;
mod refusal_counter;
pub(crate) mod retry;
pub(crate) mod revocable;
pub(crate) mod server;
pub mod synthetic_response;
pub(crate) mod upgrade;
mod upload;
pub mod uri;

pub(crate) use mesh_http2::ErrorCode;

pub use self::body::Body;

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;

/// The framing of messages on a connection. The version of a request (HTTP/1.0, 1.1 or 2) is its
/// `version()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    /// The value of the metric label `protocol`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Http1 => "http/1",
            Self::Http2 => "http/2",
        }
    }
}

/// Responds to the requests of one accepted connection.
pub trait HttpHandler {
    /// Handles one request. Every failure becomes a response, except that a stream reset by the
    /// server is also reset towards the client.
    ///
    /// The request is passed by reference, because it passes through a dozen async functions, and
    /// each would reserve memory for it twice. The handler takes the body out of it; the rest can
    /// be sent again.
    fn handle(&self, request: &mut Request) -> impl Future<Output = Result<Response, Reset>>;
}

/// The stream is reset instead of answered with a response. An HTTP/1 connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset(pub ErrorCode);

impl std::fmt::Display for Reset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the stream was reset: {}", self.0)
    }
}

impl std::error::Error for Reset {}

#[cfg(test)]
mod tests;
