//! Records the bodies of an inbound exchange in its metrics.

use crate::http::body::{End, Observe};
use crate::telemetry::http::{Exchange, RequestBodyObserver, StreamError};

/// Observes the request's body.
pub(super) struct RequestObserver(pub(super) RequestBodyObserver);

/// Observes the response's body.
pub(super) struct ResponseObserver(pub(super) Exchange);

impl Observe for RequestObserver {
    fn data(&mut self, bytes: usize) {
        self.0.frame(bytes);
    }

    fn end(&mut self, _end: End<'_>) {
        self.0.end();
    }
}

impl Observe for ResponseObserver {
    fn data(&mut self, bytes: usize) {
        self.0.response_frame(bytes);
    }

    fn end(&mut self, end: End<'_>) {
        match end {
            End::Complete(trailers) => self.0.response_end(trailers),
            End::Failed(error) => {
                let reset = error.reset();
                self.0
                    .failed(reset.map_or(StreamError::Io, StreamError::from));
            }
            End::Dropped => self.0.dropped(),
        }
    }
}
