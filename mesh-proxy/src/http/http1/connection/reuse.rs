//! Whether a connection can be used for another message.

use std::task::{Context, Poll, Waker};

use mesh_planted::Bug;

use super::Connection;
use super::decoder::BodyDecoder;
use super::sending::Sending;

impl Connection {
    /// Whether another message can be exchanged: the last one has been read and written completely,
    /// and nothing follows it.
    pub(crate) fn is_reusable(&self) -> bool {
        let inner = self.inner();
        matches!(inner.body, BodyDecoder::Complete)
            && (inner.input.is_empty() || Bug::LeftoverReused.is_planted())
            && inner.output.is_empty()
            && matches!(inner.sending, Sending::Open { .. })
            && !inner.read_closed
    }

    /// Whether an idle connection is open and has received nothing, as far as the kernel has
    /// reported. Unsolicited bytes count as a failure.
    pub(crate) fn is_idle(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_idle_end(&mut cx).is_pending()
    }

    /// Ready when the trust in the peer of an idle connection has ended. Reads nothing.
    pub(crate) fn poll_revoked(&self, cx: &Context<'_>) -> Poll<()> {
        match self.inner().io.watch_revocation(cx) {
            Ok(()) => Poll::Pending,
            Err(_revoked) => Poll::Ready(()),
        }
    }

    /// Ready when an idle connection has been closed or has received bytes.
    pub(crate) fn poll_idle_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.inner();
        let has_input = !inner.input.is_empty() && !Bug::LeftoverReused.is_planted();
        if inner.read_closed || has_input {
            return Poll::Ready(());
        }
        if Bug::ClosedReused.is_planted() {
            return Poll::Pending;
        }
        inner.poll_fill(cx).map(|_bytes_or_end| ())
    }
}
