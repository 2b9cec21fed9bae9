//! The count of the open streams of a connection. [`crate::http::client`] chooses a connection by
//! it. A stream counts until its response has been read and its request has been sent.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::OutgoingBody;
use crate::http::upload::{BodySender, Upload};

/// Holds the stream of a response until the response has been read. Dropping it resets the stream
/// if the request's body is still being sent.
pub(in crate::http) struct StreamGuard {
    /// The rest of the request. Dropped first, so that the stream is counted as long as it is open.
    upload: Option<Upload<StreamUpload>>,
    count: StreamCount,
}

/// Counts a stream until it is dropped.
struct StreamCount(Rc<Cell<usize>>);

/// Sends the rest of a request's body.
struct StreamUpload {
    body: OutgoingBody,
    /// Counts the stream once its response has been read.
    count: Option<StreamCount>,
}

impl StreamGuard {
    /// Counts a stream in `load`.
    pub(in crate::http) fn new(load: &Rc<Cell<usize>>) -> Self {
        load.set(load.get() + 1);
        Self {
            upload: None,
            count: StreamCount(load.clone()),
        }
    }

    /// Sends the rest of the request in a task of its own, so that sending does not depend on the
    /// response being read.
    pub(in crate::http) fn upload(&mut self, body: OutgoingBody) {
        self.upload = Some(Upload::start(StreamUpload { body, count: None }));
    }

    /// Releases the stream after the response has been read. The server may still want the rest of
    /// the request, which keeps the stream counted.
    pub(in crate::http) fn release(self) {
        let Self { upload, count } = self;
        if let Some(upload) = upload {
            upload.detach(|sender| sender.count = Some(count));
        }
    }
}

impl BodySender for StreamUpload {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        self.body.poll_send_all(cx)
    }

    fn poll_superseded(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.body.poll_superseded(cx)
    }

    fn progress(&self) -> u64 {
        self.body.progress()
    }
}

impl Drop for StreamCount {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
