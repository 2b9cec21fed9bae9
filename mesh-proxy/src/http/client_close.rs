//! Passing on that the client of a request has closed its sending direction while it waits for the
//! response. The server decides what that means, as without a proxy: many cancel the request, and
//! others respond, because the client may still read. Decision: ADR 0171.
//!
//! The sender of a request registers its connection with the connection that the request was
//! received on ([`super::interim::InterimSender::pass_close_to`]), whose task calls
//! [`UpstreamStream::close`] when it reads the end. Nobody polls for it.

use std::rc::{Rc, Weak};

use mesh_http2::StreamId;

use super::http1;
use super::http2::SharedConnection;

/// The request's exchange with the server.
#[derive(Clone, Debug)]
pub(super) enum UpstreamStream {
    /// An exchange, by its number on the connection, which may be used for others since.
    Http1(Weak<http1::Connection>, u32),
    Http2(SharedConnection, StreamId),
}

impl UpstreamStream {
    /// The exchange that begins on the connection.
    pub(super) fn http1(connection: &Rc<http1::Connection>) -> Self {
        Self::Http1(Rc::downgrade(connection), connection.begin_exchange())
    }

    /// Closes the sending direction of the connection to an HTTP/1 server once the request is
    /// written. Tells the next proxy about it if that is this project's. Does nothing for any other
    /// HTTP/2 server, nor when the exchange is over.
    pub(super) fn close(&self) {
        match self {
            Self::Http1(connection, exchange) => {
                if let Some(connection) = connection.upgrade() {
                    connection.close_after_request(*exchange);
                }
            }
            Self::Http2(shared, id) => shared.send_client_closed(*id),
        }
    }
}
