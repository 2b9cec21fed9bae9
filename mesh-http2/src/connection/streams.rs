//! Methods for the owners of streams. A closed stream is removed when both of its directions were
//! dropped.

use std::task::{Poll, Waker};

use http::Response;
use mesh_planted::Bug;

use super::{Connection, Role};
use crate::error::{Error, ErrorCode};
use crate::stream::{BodyFrame, MessageState, StreamId, register};

impl Connection {
    /// Waits for the next response: interim responses (1xx), then the final one.
    ///
    /// # Errors
    ///
    /// The stream has failed.
    pub fn poll_response(
        &mut self,
        id: StreamId,
        waker: &Waker,
    ) -> Poll<Result<Response<()>, Error>> {
        let mut id = id;
        if Bug::ResponseToOther.is_planted() && self.streams.contains_key(&(id.0 + 2)) {
            id = StreamId(id.0 + 2);
        }
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Err(Error::Closed));
        };
        if let Some(interims) = &mut stream.inbound.interims
            && let Some(interim) = interims.pop()
        {
            return Poll::Ready(Ok(interim));
        }
        if let Some(response) = stream.inbound.response.take() {
            stream.inbound.interims = None;
            return Poll::Ready(Ok(*response));
        }
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        register(&mut stream.inbound.waker, waker);
        Poll::Pending
    }

    /// Whether a HEADERS frame of the stream has arrived, be it incomplete, malformed, or of an
    /// interim response.
    pub fn has_response_begun(&self, id: StreamId) -> bool {
        // A field block that is not the last one was processed, or has failed its stream.
        self.last_field_block == id.0
            || self.streams.get(&id.0).is_none_or(|stream| {
                let inbound = &stream.inbound;
                inbound.state != MessageState::Headers || inbound.interims.is_some()
            })
    }

    /// Whether the peer has begun the connection with its SETTINGS.
    pub fn has_peer_settings(&self) -> bool {
        self.has_peer_settings
    }

    /// Whether the peer has begun the response to any request.
    pub fn has_responded(&self) -> bool {
        self.role == Role::Client && self.last_field_block != 0
    }

    /// Bytes of the received body that are still to come, if Content-Length is present.
    pub fn remaining(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id.0)?.inbound.remaining
    }

    /// Whether the stream's reader waits for input.
    pub fn is_reader_waiting(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.has_reader && stream.inbound.waker.is_some())
    }

    /// Whether HEADERS ended the received message: there is no body, not even an empty one.
    pub fn is_headers_only(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.inbound.is_headers_only)
    }

    /// Whether the received message is complete and was returned to the reader.
    pub fn is_fully_read(&self, id: StreamId) -> bool {
        self.streams.get(&id.0).is_none_or(|stream| {
            let inbound = &stream.inbound;
            inbound.state == MessageState::Complete
                && inbound.data.is_empty()
                && inbound.trailers.is_none()
        })
    }

    /// Waits for the next part of the body, `None` after its end. Releases the flow-control
    /// capacity of the previous part.
    ///
    /// # Errors
    ///
    /// The stream has failed.
    pub fn poll_body_frame(
        &mut self,
        id: StreamId,
        waker: &Waker,
    ) -> Poll<Option<Result<BodyFrame, Error>>> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Some(Err(Error::Closed)));
        };
        let previous = std::mem::take(&mut stream.inbound.unreleased);
        if let Some(data) = stream.inbound.data.pop() {
            stream.inbound.unreleased = data.len() as u32;
            if Bug::WindowNotReturned.is_planted() {
                stream.inbound.unreleased = 0;
            }
            self.release_capacity(Some(id.0), previous);
            return Poll::Ready(Some(Ok(BodyFrame::Data(data))));
        }
        let polled = if stream.inbound.state == MessageState::Complete {
            let trailers = stream.inbound.trailers.take();
            Poll::Ready(trailers.map(|trailers| Ok(BodyFrame::Trailers(*trailers))))
        } else if let Some(failure) = &stream.failure {
            Poll::Ready(Some(Err(failure.clone())))
        } else {
            register(&mut stream.inbound.waker, waker);
            Poll::Pending
        };
        self.release_capacity(Some(id.0), previous);
        polled
    }

    /// Returns how many bytes the receive window of a stream lacks for the rest of its message, or
    /// for any message if that has not begun; at most those up to
    /// [`Config::widened_stream_window`](super::Config::widened_stream_window). 0 if the window was
    /// widened before.
    pub fn missing_window(&self, id: StreamId) -> u32 {
        let Some(stream) = self.streams.get(&id.0) else {
            return 0;
        };
        let inbound = &stream.inbound;
        if inbound.state == MessageState::Complete
            || inbound.responds_to_head
            || stream.failure.is_some()
            || inbound.window.is_widened()
        {
            return 0;
        }
        let missing = inbound.remaining.map_or(u64::MAX, |remaining| {
            remaining.saturating_sub(inbound.window.credit())
        });
        u32::try_from(missing).map_or(self.widening, |missing| missing.min(self.widening))
    }

    /// Widens the receive window of a stream by at most [`Connection::missing_window`] bytes.
    pub fn widen_window(&mut self, id: StreamId, by: u32) {
        let by = by.min(self.missing_window(id));
        if by > 0
            && let Some(stream) = self.streams.get_mut(&id.0)
            && let Some(increment) = stream.inbound.window.widen(by)
        {
            self.write_window_update(id.0, increment);
        }
    }

    /// Waits until the stream has failed, and returns the error. To be polled while there is
    /// nothing to send.
    pub fn poll_failure(&mut self, id: StreamId, waker: &Waker) -> Poll<Error> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Error::Closed);
        };
        if let Some(failure) = &stream.failure {
            return Poll::Ready(failure.clone());
        }
        register(&mut stream.outbound.waker, waker);
        Poll::Pending
    }

    /// Drops the reading direction: input of the stream is discarded.
    pub fn drop_reader(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.has_reader = false;
        stream.inbound.waker = None;
        stream.inbound.trailers = None;
        stream.inbound.interims = None;
        let held = stream.inbound.unreleased_bytes();
        stream.inbound.data.clear();
        stream.inbound.unreleased = 0;
        self.release_capacity(None, held);
        self.reset_if_unowned(id.0);
    }

    /// Drops the sending direction.
    pub fn drop_writer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.has_writer = false;
        stream.outbound.waker = None;
        self.reset_if_unowned(id.0);
    }

    /// Resets the stream unless it is closed.
    pub fn reset(&mut self, id: StreamId, code: ErrorCode) {
        self.reset_stream(id.0, code, Error::Reset(code));
    }

    fn reset_if_unowned(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if stream.has_owner() {
            return;
        }
        if !stream.is_closed() {
            // RFC 9113, section 8.1: a server that has responded may reject the rest of the
            // request.
            let has_responded =
                self.role == Role::Server && stream.outbound.state == MessageState::Complete;
            let code = if has_responded {
                ErrorCode::NO_ERROR
            } else {
                ErrorCode::CANCEL
            };
            self.reset_stream(id, code, Error::Closed);
        }
        self.release_closed(id);
    }
}
