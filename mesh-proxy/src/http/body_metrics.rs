//! Records bodies in the metrics: the observers of request and response bodies.

use super::body::{BodyEnd, BodyError, BodyObserver, TimeoutError};
use crate::telemetry::http::{Exchange, RequestBodyObserver, StreamError};

impl BodyObserver for RequestBodyObserver {
    fn data(&mut self, bytes: usize) {
        self.frame(bytes);
    }

    fn end(&mut self, _end: BodyEnd<'_>) {
        RequestBodyObserver::end(self);
    }
}

impl BodyObserver for Exchange {
    fn data(&mut self, bytes: usize) {
        self.response_frame(bytes);
    }

    fn end(&mut self, end: BodyEnd<'_>) {
        match end {
            BodyEnd::Complete(trailers) => self.response_end(trailers),
            BodyEnd::Failed(error) => self.failed(error.into()),
            BodyEnd::Dropped => self.dropped(),
        }
    }
}

impl From<&BodyError> for StreamError {
    fn from(error: &BodyError) -> Self {
        match (error, error.reset()) {
            (BodyError::TimedOut(TimeoutError::Request(_)), _) => Self::RequestTimeout,
            (BodyError::TimedOut(TimeoutError::Response(_)), _) => Self::ResponseStreamTimeout,
            (BodyError::TimedOut(TimeoutError::Idle(_)), _) => Self::IdleTimeout,
            (BodyError::Superseded | BodyError::MirrorGivenUp, _) => Self::Cancel,
            (BodyError::Http1(_) | BodyError::Http2(_) | BodyError::Local(_), Some(reason)) => {
                reason.into()
            }
            (BodyError::Http1(_) | BodyError::Http2(_) | BodyError::Local(_), None) => Self::Io,
        }
    }
}
