//! The end of the sending direction: closed after a request whose client has closed, and reset
//! after a response that could not be completed, or when the client's connection has failed.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use mesh_planted::Bug;
use tokio::io::AsyncWrite as _;

use super::{Connection, Inner};
use crate::http::buffers::READ_SIZE;
use crate::http::client_close::{CloseExchange, UpstreamStream};
use crate::http::linger::Closing as _;
use crate::transport::reset;

/// The sending direction of an opened connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// A request is being written, or none is.
    Open {
        is_complete: bool,
    },
    /// It is closed when the request is complete and written.
    Closing {
        is_complete: bool,
    },
    Closed,
}

impl Connection {
    /// Begins an exchange on an opened connection. Its response is read in steps of `read_size`
    /// bytes, at most [`READ_SIZE`], until
    /// [`IncomingBody::widen_reads`](super::IncomingBody::widen_reads).
    pub(in crate::http) fn begin_exchange(self: &Rc<Self>, read_size: u32) -> UpstreamStream {
        let exchange = {
            let mut inner = self.inner();
            inner.sending = Sending::Open { is_complete: false };
            inner.read_size = read_size.min(READ_SIZE as u32);
            inner.exchanges = inner.exchanges.wrapping_add(1);
            inner.exchanges
        };
        let connection = Rc::downgrade(self);
        UpstreamStream::new(connection, exchange)
    }

    /// Ends the exchange on an opened connection, so that nothing that happens to its client
    /// concerns the connection any more.
    pub(in crate::http::http1) fn end_exchange(&self) {
        let mut inner = self.inner();
        inner.exchanges = inner.exchanges.wrapping_add(1);
    }

    /// The message that is being sent is complete, and has to be written.
    pub(in crate::http::http1) fn complete_message(&self) {
        let mut inner = self.inner();
        match &mut inner.sending {
            Sending::Open { is_complete } | Sending::Closing { is_complete } => *is_complete = true,
            Sending::Closed => {}
        }
    }

    /// Whether the client of the exchange on an opened connection has closed its sending direction.
    pub(in crate::http) fn is_client_closed(&self) -> bool {
        !matches!(self.inner().sending, Sending::Open { .. })
    }

    /// Forgets where the end of the client's stream is passed on, at the end of an exchange.
    pub(in crate::http::http1) fn forget_upstream(&self) {
        let mut inner = self.inner();
        inner.upstream = None;
        if Bug::PipelinedRequestLost.is_planted() {
            inner.input.take_all();
        }
    }

    /// Closes the sending direction after a message that will not be completed, because its sender
    /// has ended.
    pub(in crate::http::http1) fn close_incomplete(&self, cx: &mut Context<'_>) {
        self.inner().sending = Sending::Closing { is_complete: true };
        // What the socket does not take now is lost with the message.
        let _closed = self.poll_flush(cx);
    }

    /// Writes all output and waits until the peer has acknowledged it. An error of the connection
    /// ends the wait.
    pub(in crate::http::http1) async fn acknowledged(&self) {
        if poll_fn(|cx| self.poll_flush(cx)).await.is_ok() {
            reset::until_acknowledged(|| self.is_acknowledged()).await;
        }
    }
}

impl CloseExchange for Connection {
    /// Closes the sending direction of an opened connection when the request is written, if the
    /// exchange of this number is still the current one. The connection is not reused.
    fn close_exchange(&self, exchange: u32) {
        let inner = &mut *self.inner();
        if inner.exchanges != exchange {
            return;
        }
        match inner.sending {
            Sending::Open { is_complete: true } if inner.output.is_empty() => inner.close_sending(),
            Sending::Open { is_complete } => {
                inner.sending = Sending::Closing { is_complete };
            }
            Sending::Closing { .. } | Sending::Closed => {}
        }
    }

    fn reset_exchange(&self, exchange: u32) {
        let inner = self.inner();
        if inner.exchanges == exchange {
            inner.io.reset_on_close();
        }
    }
}

impl Inner {
    /// Records that the connection has failed, and passes the failure of a client on.
    pub(super) fn record_failure(&mut self) {
        self.has_failed = true;
        if let Some(upstream) = self.upstream.take() {
            upstream.reset();
        }
    }

    /// Closes the sending direction. On TLS connections sends close_notify, too.
    pub(super) fn close_sending(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        // Everything is written, so that this does not wait, except for a TLS socket that takes no
        // close_notify. The reader learns of an error.
        let _closed = Pin::new(&mut self.io).poll_shutdown(&mut cx);
        self.sending = Sending::Closed;
    }
}
