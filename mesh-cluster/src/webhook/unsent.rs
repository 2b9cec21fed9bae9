//! Responses that a client has not read.
//!
//! A response counts against the limits of requests and memory until its bytes have been written to
//! the connection, and not only until they were handed to hyper, which keeps them while the window
//! of an HTTP/2 stream, or the send buffer of a connection, has no room.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// The body of a response, with a value that is dropped when it has been sent.
pub(super) struct Unsent<T> {
    body: Vec<u8>,
    _held: T,
    /// Closed when the body has been sent.
    sent: Option<oneshot::Sender<()>>,
}

impl<T: Send + Sync + 'static> Unsent<T> {
    pub(super) fn new(body: Vec<u8>, held: T) -> Self {
        Self {
            body,
            _held: held,
            sent: None,
        }
    }

    /// Returns the bytes of the body. `overdue` is notified if they are not sent within the limit.
    pub(super) fn into_bytes(mut self, limit: Duration, overdue: Arc<Notify>) -> Bytes {
        if self.body.is_empty() {
            return Bytes::new();
        }
        let (sender, sent) = oneshot::channel();
        self.sent = Some(sender);
        tokio::spawn(async move {
            if timeout(limit, sent).await.is_err() {
                overdue.notify_one();
            }
        });
        Bytes::from_owner(self)
    }
}

impl<T> AsRef<[u8]> for Unsent<T> {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
