//! The HTTP engine behind one seam, on the data threads: our own HTTP/1, and HTTP/2 by the package
//! `mesh-http2`.
//!
//! `inbound` and `outbound` implement [`Handle`]; [`server::serve`] calls them once per request of
//! a connection. They answer by sending the request through a [`client::Client`], which owns the
//! connections to one endpoint. Nothing outside this module names a codec, so they can be changed
//! here.
//!
//! What a client may cost is bounded by [`http1`] and [`http2`]; the numbers are
//! [`crate::config::HttpLimits`].
//!
//! Everything runs on the thread of its connection: one local task per connection, and one per
//! accepted HTTP/2 stream. Requests are sent on in the task that they arrived in.

use std::future::Future;

pub mod admitted;
pub mod body;
mod buffers;
pub mod client;
pub mod filter;
pub mod grpc;
pub mod headers;
mod http1;
mod http2;
mod idle;
mod interim;
mod measure;
pub mod orig_proto;
mod patience;
pub mod respond;
pub mod server;
pub mod undelivered;
pub mod upgrade;
pub mod uri;

pub use mesh_http2::ErrorCode;

pub use self::body::{Body, BodyError};

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;

/// How messages are framed on a connection. What a request *is* (HTTP/1.0, 1.1 or 2) stays in its
/// `version()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Answers the requests of one accepted connection.
pub trait Handle {
    /// Every failure is an answer, except that a stream which the other side reset is reset towards
    /// the client too.
    ///
    /// The request stays where it was read, and its body is taken out of it: it passes through a
    /// dozen functions that wait, each of which would have room for it twice. What is left can be
    /// sent once more.
    fn handle(&self, request: &mut Request) -> impl Future<Output = Result<Response, Reset>>;
}

/// The stream is reset instead of answered. HTTP/1 connections are closed.
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
