//! Records the bodies of an inbound exchange in its metrics.

use crate::access_log::OpenEntry;
use crate::http::body::{BodyEnd, BodyObserver};
use crate::telemetry::http::{Exchange, RequestBodyObserver, StreamError};

/// Observes the request's body.
pub(super) struct RequestObserver(pub(super) RequestBodyObserver);

/// Observes the response's body.
pub(super) struct ResponseObserver(pub(super) Exchange);

/// Counts the bytes of the response's body for the access log.
impl BodyObserver for OpenEntry {
    fn data(&mut self, bytes: usize) {
        self.response_data(bytes);
    }

    fn end(&mut self, _end: BodyEnd<'_>) {}
}

impl BodyObserver for RequestObserver {
    fn data(&mut self, bytes: usize) {
        self.0.frame(bytes);
    }

    fn end(&mut self, _end: BodyEnd<'_>) {
        self.0.end();
    }
}

impl BodyObserver for ResponseObserver {
    fn data(&mut self, bytes: usize) {
        self.0.response_frame(bytes);
    }

    fn end(&mut self, end: BodyEnd<'_>) {
        match end {
            BodyEnd::Complete(trailers) => self.0.response_end(trailers),
            BodyEnd::Failed(error) => {
                let reset = error.reset();
                self.0
                    .failed(reset.map_or(StreamError::Io, StreamError::from));
            }
            BodyEnd::Dropped => self.0.dropped(),
        }
    }
}
