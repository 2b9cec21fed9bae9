//! What streams send: heads, data as far as there is room for it, trailers.

use std::task::{Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};

use super::{Connection, Role};
use crate::error::Error;
use crate::frame::{self, Head};
use crate::hpack::Encoder;
use crate::message;
use crate::stream::{Stage, StreamId, register};
use crate::window::MAX_WINDOW;

/// As much is collected before streams have to wait, unless somebody wants it otherwise. Sixteen
/// TLS records: a quarter of that cost a third more CPU for each large message.
pub(super) const COLLECTED: usize = 256 * 1024;

/// Frames of more would keep those of other streams waiting.
const MAX_FRAME: usize = 16 * 1024;

impl Connection {
    /// Ready when a stream may be opened at once.
    pub fn poll_ready(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        if let Some(failure) = self.cannot_open() {
            return Poll::Ready(Err(failure));
        }
        if self.open_ours < self.max_streams() {
            return Poll::Ready(Ok(()));
        }
        if !self.openers.iter().any(|known| known.will_wake(waker)) {
            self.openers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Why no stream will ever be opened on this connection again.
    pub fn cannot_open(&self) -> Option<Error> {
        if let Some(failure) = &self.failure {
            return Some(failure.clone());
        }
        if let Some((_, reason)) = self.gone {
            return Some(Error::GoneAway(reason));
        }
        // Numbers are not used twice (RFC 9113, section 5.1.1).
        (self.next_ours > MAX_WINDOW || self.role == Role::Server).then_some(Error::Closed)
    }

    /// Opens a stream. To be called only when [`Connection::poll_ready`] says so.
    pub fn open<B>(&mut self, request: &Request<B>, is_last: bool) -> StreamId {
        let id = self.next_ours;
        self.next_ours += 2;
        self.open_ours += 1;
        let mut stream = self.new_stream(Stage::Head);
        stream.inbound.answers_head = *request.method() == Method::HEAD;
        stream.outbound.stage = stage_after(is_last);
        self.streams.insert(id, stream);
        self.write_head(id, is_last, |encoder, block| {
            message::write_request(encoder, block, request);
        });
        StreamId(id)
    }

    /// Sends an interim response (1xx). Nothing happens if the stream has been answered or is over
    /// already.
    pub fn inform<B>(&mut self, id: StreamId, response: &Response<B>) {
        if self.advance(id, Stage::Head, Stage::Head) {
            self.write_head(id.0, false, |encoder, block| {
                message::write_response(encoder, block, response);
            });
        }
    }

    /// Answers. Nothing happens if the stream is over already.
    pub fn respond<B>(&mut self, id: StreamId, response: &Response<B>, is_last: bool) {
        if !self.advance(id, Stage::Head, stage_after(is_last)) {
            return;
        }
        self.write_head(id.0, is_last, |encoder, block| {
            message::write_response(encoder, block, response);
        });
        self.settle(id.0);
    }

    /// How much of the next data may be sent now. The stream is woken when it may be more.
    pub fn poll_room(&mut self, id: StreamId, waker: &Waker) -> Poll<Result<usize, Error>> {
        let (is_collecting, collected) = (self.is_collecting(), self.collected);
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Err(Error::Closed));
        };
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        let of_stream = stream.outbound.window.room();
        let room = of_stream.min(self.sending.room()).min(collected);
        if room > 0 && is_collecting {
            return Poll::Ready(Ok(room));
        }
        register(&mut stream.outbound.waker, waker);
        if of_stream > 0 && !stream.waits {
            stream.waits = true;
            self.waiting.push(id.0);
        }
        Poll::Pending
    }

    /// Whether more may be added to what is to be written.
    pub(super) fn is_collecting(&self) -> bool {
        self.output.len() < self.collected
    }

    /// Sends no more than [`Connection::poll_room`] said; nothing, to say that it was the last.
    pub fn send_data(&mut self, id: StreamId, mut data: Bytes, is_last: bool) {
        if !self.advance(id, Stage::Body, stage_after(is_last)) {
            return;
        }
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.outbound.window.take(data.len());
        }
        self.sending.take(data.len());
        let max_frame = MAX_FRAME.min(self.peer.max_frame as usize);
        loop {
            let piece = data.split_to(data.len().min(max_frame));
            let flags = match is_last && data.is_empty() {
                true => frame::END_STREAM,
                false => 0,
            };
            let head = Head {
                length: piece.len() as u32,
                kind: frame::DATA,
                flags,
                stream: id.0,
            };
            self.output.write(|out| head.write(out));
            self.output.push(piece);
            self.account.sent_message();
            self.count_message();
            if data.is_empty() {
                break;
            }
        }
        self.wake_driver();
        self.settle(id.0);
    }

    pub fn send_trailers(&mut self, id: StreamId, trailers: &HeaderMap) {
        if !self.advance(id, Stage::Body, Stage::Over) {
            return;
        }
        self.write_head(id.0, true, |encoder, block| {
            message::write_trailers(encoder, block, trailers);
        });
        self.settle(id.0);
    }

    /// Whether the stream stood at `from` and was let go on.
    fn advance(&mut self, id: StreamId, from: Stage, to: Stage) -> bool {
        match self.streams.get_mut(&id.0) {
            Some(stream) if stream.failure.is_none() && stream.outbound.stage == from => {
                stream.outbound.stage = to;
                true
            }
            _ => false,
        }
    }

    fn write_head(
        &mut self,
        id: u32,
        is_last: bool,
        write: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) {
        let (encoder, max_frame) = (&mut self.encoder, self.peer.max_frame as usize);
        self.output.write(|out| {
            let start = out.len();
            out.resize(start + frame::HEAD, 0);
            write(encoder, out);
            frame::finish_headers(out, start, id, is_last, max_frame);
        });
        self.account.sent_message();
        self.count_message();
        self.wake_driver();
    }

    /// There may be room for those who wait for it.
    pub(super) fn wake_waiting(&mut self) {
        for id in self.waiting.drain(..) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.waits = false;
                stream.outbound.wake();
            }
        }
        self.waiting.shrink_to(8);
    }

    pub(super) fn wake_openers(&mut self) {
        for waker in self.openers.drain(..) {
            waker.wake();
        }
        self.openers.shrink_to(0);
    }
}

fn stage_after(is_last: bool) -> Stage {
    match is_last {
        true => Stage::Over,
        false => Stage::Body,
    }
}
