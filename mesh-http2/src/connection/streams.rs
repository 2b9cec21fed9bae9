//! What owners of streams may ask and do. A stream that is over is forgotten when nobody reads or
//! writes it any more.

use std::task::{Poll, Waker};

use http::Response;

use super::{Connection, Role};
use crate::error::{Error, Reason};
use crate::stream::{Piece, Stage, StreamId, register};

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
        if let Some(head) = stream.inbound.head.take() {
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
    pub fn is_awaited(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.is_read && stream.inbound.waker.is_some())
    }

    /// Whether a head has come that is the whole message: there is no body, not even an empty one.
    pub fn is_head_only(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.inbound.is_head_only)
    }

    /// Whether everything that comes has come and was handed out.
    pub fn is_read(&self, id: StreamId) -> bool {
        self.streams.get(&id.0).is_none_or(|stream| {
            let inbound = &stream.inbound;
            inbound.stage == Stage::Over && inbound.data.is_empty() && inbound.trailers.is_none()
        })
    }

    /// The next piece of the body; none at its end. Who asks is done with the piece before, of
    /// which the room in the windows is given back then.
    pub fn poll_piece(
        &mut self,
        id: StreamId,
        waker: &Waker,
    ) -> Poll<Option<Result<Piece, Error>>> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Some(Err(Error::Closed)));
        };
        let done = std::mem::take(&mut stream.inbound.in_use);
        if let Some(data) = stream.inbound.data.pop() {
            stream.inbound.in_use = data.len() as u32;
            self.free(Some(id.0), done);
            return Poll::Ready(Some(Ok(Piece::Data(data))));
        }
        let answer = if stream.inbound.stage == Stage::Over {
            let trailers = stream.inbound.trailers.take();
            Poll::Ready(trailers.map(|trailers| Ok(Piece::Trailers(*trailers))))
        } else if let Some(failure) = &stream.failure {
            Poll::Ready(Some(Err(failure.clone())))
        } else {
            register(&mut stream.inbound.waker, waker);
            Poll::Pending
        };
        self.free(Some(id.0), done);
        answer
    }

    /// Ready when nothing can be sent any more. To be polled while there is nothing to send.
    pub fn poll_failed(&mut self, id: StreamId, waker: &Waker) -> Poll<Error> {
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
        stream.is_read = false;
        stream.inbound.waker = None;
        stream.inbound.trailers = None;
        stream.inbound.interims = None;
        let held = stream.inbound.held();
        stream.inbound.data.clear();
        stream.inbound.in_use = 0;
        self.free(None, held);
        self.release(id.0);
    }

    /// Nobody will send.
    pub fn drop_writer(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        stream.is_written = false;
        stream.outbound.waker = None;
        self.release(id.0);
    }

    /// Ends the stream, if it is not over.
    pub fn reset(&mut self, id: StreamId, reason: Reason) {
        self.reset_stream(id.0, reason, Error::Reset(reason));
    }

    fn release(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if stream.is_held() {
            return;
        }
        if !stream.is_over() {
            // RFC 9113, section 8.1: a server that has answered does not want the rest.
            let has_answered = self.role == Role::Server && stream.outbound.stage == Stage::Over;
            let reason = match has_answered {
                true => Reason::NO_ERROR,
                false => Reason::CANCEL,
            };
            self.reset_stream(id, reason, Error::Closed);
        }
        self.settle(id);
    }
}
