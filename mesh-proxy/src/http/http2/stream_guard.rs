//! The count of the open streams of a connection, from which [`crate::http::client`] chooses one.

use std::cell::Cell;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Counts an open stream. Dropping it uncounts the stream, and aborts the request if its body is
/// still being sent.
pub(in crate::http) struct StreamGuard {
    load: Rc<Cell<usize>>,
    upload: Option<AbortHandle>,
}

impl StreamGuard {
    /// Counts a stream in `load`.
    pub(in crate::http) fn new(load: &Rc<Cell<usize>>) -> Self {
        load.set(load.get() + 1);
        Self {
            load: load.clone(),
            upload: None,
        }
    }

    /// Sets the task that sends the rest of the request.
    pub(in crate::http) fn set_upload(&mut self, task: AbortHandle) {
        self.upload = Some(task);
    }

    /// Releases the stream after the response has been read. The server may still want the rest of
    /// the request, so the upload continues.
    pub(in crate::http) fn release(mut self) {
        self.upload = None;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.load.set(self.load.get() - 1);
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}
