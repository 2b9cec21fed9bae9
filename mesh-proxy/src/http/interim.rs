//! [`InterimSender`] sends interim responses (1xx) to the client of a request, before the response
//! and on the request's own connection or stream.

use http::{HeaderMap, StatusCode};

use super::http1;
use super::http2::shared_connection::InterimSender as Http2InterimSender;

/// Carried by the body of a received request whose client understands interim responses.
#[derive(Clone, Debug)]
pub(super) enum InterimSender {
    Http1(http1::InterimSender),
    Http2(Http2InterimSender),
}

impl InterimSender {
    /// Leaves the 100 to the server instead of sending it when the body is first polled.
    pub(super) fn forward_expectation(&self) {
        match self {
            Self::Http1(interim) => interim.forward_expectation(),
            // Over HTTP/2 the proxy never sends a 100 itself.
            Self::Http2(_) => {}
        }
    }

    /// Whether the client waits for the server's 100.
    pub(super) fn is_continue_awaited(&self) -> bool {
        match self {
            Self::Http1(interim) => interim.is_continue_awaited(),
            Self::Http2(interim) => interim.is_continue_awaited(),
        }
    }

    /// Sends an interim response. To be called from the request's own task, which writes it.
    pub(super) fn send(&self, status: StatusCode, headers: HeaderMap) {
        match self {
            Self::Http1(interim) => interim.send(status, &headers),
            Self::Http2(interim) => interim.send(status, headers),
        }
    }
}
