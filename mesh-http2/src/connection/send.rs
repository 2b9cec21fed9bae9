//! What streams send: heads, data as far as there is room for it, trailers.

use std::task::{Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};

use super::{Connection, Role};
use crate::error::Error;
use crate::frame::{self, FrameHeader};
use crate::hpack::Encoder;
use crate::message;
use crate::stream::{MessageState, StreamId, register};
use crate::window::MAX_WINDOW;

/// As much is collected before streams have to wait, unless somebody wants it otherwise. Sixteen
/// TLS records: a quarter of that cost a third more CPU for each large message.
pub(super) const DEFAULT_OUTPUT_LIMIT: usize = 256 * 1024;

/// Frames of more would keep those of other streams waiting.
const MAX_FRAME: usize = 16 * 1024;

impl Connection {
    /// Ready when a stream may be opened at once.
    pub fn poll_ready(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        if let Some(failure) = self.open_error() {
            return Poll::Ready(Err(failure));
        }
        if self.open_local_streams < self.max_concurrent_streams() {
            return Poll::Ready(Ok(()));
        }
        if !self.open_wakers.iter().any(|known| known.will_wake(waker)) {
            self.open_wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Why no stream will ever be opened on this connection again.
    pub fn open_error(&self) -> Option<Error> {
        if let Some(failure) = &self.failure {
            return Some(failure.clone());
        }
        if let Some((_, reason)) = self.peer_goaway {
            return Some(Error::Unprocessed(reason));
        }
        // Numbers are not used twice (RFC 9113, section 5.1.1).
        (self.next_local_stream > MAX_WINDOW || self.role == Role::Server).then_some(Error::Closed)
    }

    /// Opens a stream. To be called only when [`Connection::poll_ready`] says so.
    pub fn open<B>(&mut self, request: &Request<B>, is_last: bool) -> StreamId {
        let id = self.next_local_stream;
        self.next_local_stream += 2;
        self.open_local_streams += 1;
        let mut stream = self.new_stream(MessageState::Headers);
        stream.inbound.responds_to_head = *request.method() == Method::HEAD;
        stream.outbound.stage = stage_after(is_last);
        self.streams.insert(id, stream);
        self.write_head(id, is_last, |encoder, block| {
            message::write_request(encoder, block, request);
        });
        StreamId(id)
    }

    /// Sends an interim response (1xx). Nothing happens if the stream has been answered or is over
    /// already.
    pub fn send_informational<B>(&mut self, id: StreamId, response: &Response<B>) {
        if self.advance(id, MessageState::Headers, MessageState::Headers) {
            self.write_head(id.0, false, |encoder, block| {
                message::write_response(encoder, block, response);
            });
        }
    }

    /// Answers. Nothing happens if the stream is over already.
    pub fn respond<B>(&mut self, id: StreamId, response: &Response<B>, is_last: bool) {
        if !self.advance(id, MessageState::Headers, stage_after(is_last)) {
            return;
        }
        self.write_head(id.0, is_last, |encoder, block| {
            message::write_response(encoder, block, response);
        });
        self.release_closed(id.0);
    }

    /// How much of the next data may be sent now. The stream is woken when it may be more.
    pub fn poll_capacity(&mut self, id: StreamId, waker: &Waker) -> Poll<Result<usize, Error>> {
        let (has_output_capacity, collected) = (self.has_output_capacity(), self.output_limit);
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Err(Error::Closed));
        };
        if let Some(failure) = &stream.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        let of_stream = stream.outbound.window.capacity();
        let room = of_stream.min(self.send_window.capacity()).min(collected);
        if room > 0 && has_output_capacity {
            return Poll::Ready(Ok(room));
        }
        register(&mut stream.outbound.waker, waker);
        if of_stream > 0 && !stream.is_waiting_for_capacity {
            stream.is_waiting_for_capacity = true;
            self.waiting_for_capacity.push(id.0);
        }
        Poll::Pending
    }

    /// Whether more may be added to what is to be written.
    pub(super) fn has_output_capacity(&self) -> bool {
        self.output.len() < self.output_limit
    }

    /// Sends no more than [`Connection::poll_capacity`] said; nothing, to say that it was the last.
    pub fn send_data(&mut self, id: StreamId, mut data: Bytes, is_last: bool) {
        if !self.advance(id, MessageState::Body, stage_after(is_last)) {
            return;
        }
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.outbound.window.consume(data.len());
        }
        self.send_window.consume(data.len());
        let max_frame = MAX_FRAME.min(self.peer_settings.max_frame_size as usize);
        loop {
            let piece = data.split_to(data.len().min(max_frame));
            let flags = match is_last && data.is_empty() {
                true => frame::END_STREAM,
                false => 0,
            };
            let header = FrameHeader {
                length: piece.len() as u32,
                kind: frame::DATA,
                flags,
                stream: id.0,
            };
            self.output.write(|out| header.write(out));
            self.output.push(piece);
            self.flood.sent_message();
            self.count_message_frame();
            if data.is_empty() {
                break;
            }
        }
        self.wake_driver();
        self.release_closed(id.0);
    }

    pub fn send_trailers(&mut self, id: StreamId, trailers: &HeaderMap) {
        if !self.advance(id, MessageState::Body, MessageState::Complete) {
            return;
        }
        self.write_head(id.0, true, |encoder, block| {
            message::write_trailers(encoder, block, trailers);
        });
        self.release_closed(id.0);
    }

    /// Whether the stream stood at `from` and was let go on.
    fn advance(&mut self, id: StreamId, from: MessageState, to: MessageState) -> bool {
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
        let (encoder, max_frame) = (
            &mut self.encoder,
            self.peer_settings.max_frame_size as usize,
        );
        self.output.write(|out| {
            let start = out.len();
            out.resize(start + frame::FRAME_HEADER_SIZE, 0);
            write(encoder, out);
            frame::finish_headers(out, start, id, is_last, max_frame);
        });
        self.flood.sent_message();
        self.count_message_frame();
        self.wake_driver();
    }

    /// There may be room for those who wait for it.
    pub(super) fn wake_waiting(&mut self) {
        for id in self.waiting_for_capacity.drain(..) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.is_waiting_for_capacity = false;
                stream.outbound.wake();
            }
        }
        self.waiting_for_capacity.shrink_to(8);
    }

    pub(super) fn wake_open_wakers(&mut self) {
        for waker in self.open_wakers.drain(..) {
            waker.wake();
        }
        self.open_wakers.shrink_to(0);
    }
}

fn stage_after(is_last: bool) -> MessageState {
    match is_last {
        true => MessageState::Complete,
        false => MessageState::Body,
    }
}
