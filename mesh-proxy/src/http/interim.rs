//! [`Interim`], the way of interim responses (1xx) to the client that a request came from: ahead of
//! the response, on the request's own connection or stream.

use http::{HeaderMap, StatusCode};

use super::{http1, http2};

/// Comes with the body of a request that was received, if its client understands interim responses.
#[derive(Clone, Debug)]
pub(super) enum Interim {
    Http1(http1::Interim),
    Http2(http2::Interim),
}

impl Interim {
    /// The server will say whether the client shall send its body.
    pub(super) fn leave_expectation_to_server(&self) {
        match self {
            Self::Http1(interim) => interim.leave_expectation_to_server(),
            // It is not ours in any case.
            Self::Http2(_) => {}
        }
    }

    /// Whether the client waits for the server's word.
    pub(super) fn is_awaited(&self) -> bool {
        match self {
            Self::Http1(interim) => interim.is_awaited(),
            Self::Http2(interim) => interim.is_awaited(),
        }
    }

    /// Passes one on. For the request's own task: what is sent here is written when it has run.
    pub(super) fn send(&self, status: StatusCode, headers: HeaderMap) {
        match self {
            Self::Http1(interim) => interim.send(status, &headers),
            Self::Http2(interim) => interim.send(status, headers),
        }
    }
}
