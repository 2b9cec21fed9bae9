//! What owners of streams may ask and do. A stream that is over is forgotten when nobody reads or
//! writes it any more.

use std::task::{Poll, Waker};

use http::Response;

use super::{Connection, Role};
use crate::error::{Error, ErrorCode};
use crate::stream::{BodyFrame, MessageState, StreamId, register};

impl Connection {
    /// The next head that comes: interim responses (1xx), and behind them the response.
    pub fn poll_response(
        &mut self,
        id: StreamId,
        waker: &Waker,
    ) -> Poll<Result<Response<()>, Error>> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Err(Error::Closed));
        };
        if let Some(interims) = &mut stream.inbound.interims
            && let Some(interim) = interims.pop()
        {
            return Poll::Ready(Ok(interim));
        }
        if let Some(head) = stream.inbound.response.take() {
            stream.inbound.interims = None;
            return Poll::Ready(Ok(*head));
        }
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        register(&mut stream.inbound.waker, waker);
        Poll::Pending
    }

    /// Bytes of the body that have not come yet, if that is known.
    pub fn remaining(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id.0)?.inbound.remaining
    }

    /// Whether somebody waits for what comes next.
    pub fn is_reader_waiting(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.has_reader && stream.inbound.waker.is_some())
    }

    /// Whether a head has come that is the whole message: there is no body, not even an empty one.
    pub fn is_headers_only(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.inbound.is_headers_only)
    }

    /// Whether everything that comes has come and was handed out.
    pub fn has_reader(&self, id: StreamId) -> bool {
        self.streams.get(&id.0).is_none_or(|stream| {
            let inbound = &stream.inbound;
            inbound.stage == MessageState::Complete
                && inbound.data.is_empty()
                && inbound.trailers.is_none()
        })
    }

    /// The next piece of the body; none at its end. Who asks is done with the piece before, of
    /// which the room in the windows is given back then.
    pub fn poll_body_frame(
        &mut self,
        id: StreamId,
        waker: &Waker,
    ) -> Poll<Option<Result<BodyFrame, Error>>> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Some(Err(Error::Closed)));
        };
        let done = std::mem::take(&mut stream.inbound.unreleased);
        if let Some(data) = stream.inbound.data.pop() {
            stream.inbound.unreleased = data.len() as u32;
            self.release_capacity(Some(id.0), done);
            return Poll::Ready(Some(Ok(BodyFrame::Data(data))));
        }
        let answer = if stream.inbound.stage == MessageState::Complete {
            let trailers = stream.inbound.trailers.take();
            Poll::Ready(trailers.map(|trailers| Ok(BodyFrame::Trailers(*trailers))))
        } else if let Some(failure) = &stream.failure {
            Poll::Ready(Some(Err(failure.clone())))
        } else {
            register(&mut stream.inbound.waker, waker);
            Poll::Pending
        };
        self.release_capacity(Some(id.0), done);
        answer
    }

    /// Ready when nothing can be sent any more. To be polled while there is nothing to send.
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

    /// Nobody will poll for what comes.
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

    /// Nobody will send.
    pub fn drop_writer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.has_writer = false;
        stream.outbound.waker = None;
        self.reset_if_unowned(id.0);
    }

    /// Ends the stream, if it is not over.
    pub fn reset(&mut self, id: StreamId, reason: ErrorCode) {
        self.reset_stream(id.0, reason, Error::Reset(reason));
    }

    fn reset_if_unowned(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if stream.has_owner() {
            return;
        }
        if !stream.is_closed() {
            // RFC 9113, section 8.1: a server that has answered does not want the rest.
            let has_answered =
                self.role == Role::Server && stream.outbound.stage == MessageState::Complete;
            let reason = match has_answered {
                true => ErrorCode::NO_ERROR,
                false => ErrorCode::CANCEL,
            };
            self.reset_stream(id, reason, Error::Closed);
        }
        self.release_closed(id);
    }
}
