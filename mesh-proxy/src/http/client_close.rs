//! Passing on that the client of a request has closed its sending direction while it waits for the
//! response. The server decides what that means, as without a proxy: many cancel the request, and
//! others respond, because the client may still read. Decision: ADR 0171.
//!
//! The sender of a request registers its exchange with the connection that the request was received
//! on ([`super::interim::InterimSender::pass_close_to`]), whose task calls
//! [`UpstreamStream::close`] when it reads the end. No task polls for it.

use std::rc::Weak;

/// A connection to a server, as the exchanges on it see it.
pub(super) trait CloseExchange {
    /// The client of an exchange has closed its sending direction. Does nothing when the exchange
    /// is over.
    fn close_exchange(&self, exchange: u32);
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
}

impl std::fmt::Debug for UpstreamStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let exchange = &self.exchange;
        f.debug_struct("UpstreamStream")
            .field("exchange", exchange)
            .finish_non_exhaustive()
    }
}
