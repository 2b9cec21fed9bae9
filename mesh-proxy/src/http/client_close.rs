//! Passing on how the client of a request leaves before it has the response.
//!
//! It has closed its sending direction: the server decides what that means, as without a proxy.
//! Many cancel the request, and others respond, because the client may still read (ADR 0171). Its
//! connection has failed: the server's connection is reset (ADR 0209).
//!
//! The sender of a request registers its exchange with the connection that the request was received
//! on ([`super::interim::InterimSender::pass_close_to`]), whose task calls
//! [`UpstreamStream::close`] when it reads the end, and [`UpstreamStream::reset`] when it gets an
//! error. No task polls for it.

use std::rc::Weak;

use super::ErrorCode;

/// Resets the stream of a request whose HTTP/1 client's connection has failed. No other request
/// than CONNECT, which is not carried over HTTP/2, is reset with this code otherwise, and proxies
/// that do not know it treat it as CANCEL.
pub(super) const CLIENT_FAILED: ErrorCode = ErrorCode::CONNECT_ERROR;

/// Resets the stream of a response whose HTTP/1 server has closed its connection within it, so that
/// the proxy of an HTTP/1 client closes that connection, too, in place of resetting it. Other
/// proxies treat it as any code that ends a response.
pub(super) const SERVER_CLOSED: ErrorCode = ErrorCode::CONNECT_ERROR;

/// A connection to a server, as the exchanges on it see it.
pub(super) trait CloseExchange {
    /// The client of an exchange has closed its sending direction. Does nothing when the exchange
    /// is over.
    fn close_exchange(&self, exchange: u32);

    /// The connection of the client of an exchange has failed, and the exchange is about to be
    /// dropped. Does nothing when it is over.
    fn reset_exchange(&self, exchange: u32);
}

/// The request's exchange with the server.
#[derive(Clone)]
pub(super) struct UpstreamStream {
    connection: Weak<dyn CloseExchange>,
    exchange: u32,
}

impl UpstreamStream {
    /// The exchange with this number on a connection, which may be used for others later.
    pub(super) fn new(connection: Weak<dyn CloseExchange>, exchange: u32) -> Self {
        Self {
            connection,
            exchange,
        }
    }

    /// Closes the sending direction of the connection to an HTTP/1 server once the request is
    /// written. Tells the next proxy about it if that is this project's. Does nothing for any other
    /// HTTP/2 server.
    pub(super) fn close(&self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.close_exchange(self.exchange);
        }
    }

    /// Resets the connection to an HTTP/1 server when it is closed, or the stream of the request to
    /// the next proxy.
    pub(super) fn reset(&self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.reset_exchange(self.exchange);
        }
    }
}

impl std::fmt::Debug for UpstreamStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let exchange = &self.exchange;
        f.debug_struct("UpstreamStream")
            .field("exchange", exchange)
            .finish_non_exhaustive()
    }
}
