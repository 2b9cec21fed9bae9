//! Messages of either protocol, and what responds to them.

use std::future::Future;

use mesh_http2::ErrorCode;

use super::body::Body;

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;

mesh_core::names! {
    /// The framing of messages on a connection. The version of a request (HTTP/1.0, 1.1 or 2) is
    /// its `version()`. The names are values of the metric label `protocol`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Protocol {
        Http1 = "http/1",
        Http2 = "http/2",
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
