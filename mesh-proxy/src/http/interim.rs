//! [`InterimSender`] is the handle of a request's client for the sender of the request. It sends
//! interim responses (1xx), before the response and on the request's own connection or stream, and
//! tells when the client closes.

use http::{HeaderMap, StatusCode};

use super::client_close::UpstreamStream;
use super::http1;
use super::http2::shared_connection::InterimSender as Http2InterimSender;

/// Carried by the body of a received request.
#[derive(Clone, Debug)]
pub(super) enum InterimSender {
    Http1(http1::InterimSender),
    Http2(Http2InterimSender),
}

impl InterimSender {
    /// Whether the client of an HTTP/1 request waits for a 100 and got none. Over HTTP/2 the proxy
    /// never sends a 100 itself.
    pub(super) fn expects_continue(&self) -> bool {
        match self {
            Self::Http1(interim) => interim.expects_continue(),
            Self::Http2(_) => false,
        }
    }

    /// Leaves the 100 to the server if that is `forwarded`; otherwise it is sent when the body is
    /// next polled.
    pub(super) fn forward_expectation(&self, forwarded: bool) {
        match self {
            Self::Http1(interim) => interim.forward_expectation(forwarded),
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

    /// Sends an interim response, but no 100 after one of the proxy itself. To be called from the
    /// request's own task, which writes it.
    pub(super) fn send(&self, status: StatusCode, headers: HeaderMap) {
        match self {
            Self::Http1(interim) => interim.send(status, &headers),
            Self::Http2(interim) => interim.send(status, headers),
        }
    }

    /// Whether an interim response of the server has been sent.
    pub(super) fn has_sent(&self) -> bool {
        match self {
            Self::Http1(interim) => interim.has_sent(),
            Self::Http2(interim) => interim.has_sent(),
        }
    }

    /// Returns how many bytes may be read ahead of the client from the beginning, in addition to
    /// the first bytes of every response. The connection of an HTTP/1 client carries one response
    /// at a time, and takes any number.
    pub(super) fn read_ahead(&self) -> u32 {
        match self {
            Self::Http1(_) => u32::MAX,
            Self::Http2(interim) => interim.read_ahead(),
        }
    }

    /// Passes the close of the client's sending direction on to `upstream`, instead of to an
    /// earlier one.
    pub(super) fn pass_close_to(&self, upstream: UpstreamStream) {
        match self {
            Self::Http1(interim) => interim.pass_close_to(upstream),
            Self::Http2(interim) => interim.pass_close_to(upstream),
        }
    }

    /// Whether the client has closed its sending direction.
    pub(super) fn is_client_closed(&self) -> bool {
        match self {
            Self::Http1(interim) => interim.is_client_closed(),
            Self::Http2(interim) => interim.is_client_closed(),
        }
    }

    /// Ends the exchange without a response: the server has done so after the client closed.
    pub(super) fn abandon(&self) {
        match self {
            Self::Http1(interim) => interim.abandon(),
            Self::Http2(interim) => interim.abandon(),
        }
    }
}
