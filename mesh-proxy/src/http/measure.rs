//! Bodies tell the metrics what passes: the exchange goes with the response's body, its other half
//! with the request's.

use super::body::{BodyError, End, Observe, TimedOut};
use crate::telemetry::http::{Exchange, RequestBodyObserver, StreamError};

impl Observe for RequestBodyObserver {
    fn data(&mut self, bytes: usize) {
        self.frame(bytes);
    }

    fn end(&mut self, _end: End<'_>) {
        RequestBodyObserver::end(self);
    }
}

impl Observe for Exchange {
    fn data(&mut self, bytes: usize) {
        self.response_frame(bytes);
    }

    fn end(&mut self, end: End<'_>) {
        match end {
            End::Complete(trailers) => self.response_end(trailers),
            End::Failed(error) => self.failed(error.into()),
            End::Dropped => self.dropped(),
        }
    }
}

impl From<&BodyError> for StreamError {
    fn from(error: &BodyError) -> Self {
        match (error, error.reset()) {
            (BodyError::TimedOut(TimedOut::Request(_)), _) => Self::RequestTimeout,
            (BodyError::TimedOut(TimedOut::Response(_)), _) => Self::ResponseStreamTimeout,
            (BodyError::TimedOut(TimedOut::Idle(_)), _) => Self::IdleTimeout,
            (BodyError::Http1(_) | BodyError::Http2(_), Some(reason)) => reason.into(),
            (BodyError::Http1(_) | BodyError::Http2(_), None) => Self::Io,
        }
    }
}
