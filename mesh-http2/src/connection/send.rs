//! Encoding of messages: headers, data as far as flow control allows, trailers.

use std::task::{Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use mesh_planted::Bug;

use super::{Connection, Role};
use crate::error::Error;
use crate::frame::{self, FrameHeader};
use crate::hpack::Encoder;
use crate::message;
use crate::stream::{MessageState, StreamId, register};
use crate::window::MAX_WINDOW;

/// The default of [`Config::output_limit`](super::Config::output_limit). With the headers of its
/// frames it fits sixteen TLS records, which are sealed and written at a time. A quarter of it cost
/// a third more CPU for each large message.
pub(super) const DEFAULT_OUTPUT_LIMIT: usize = 255 * 1024;

/// Larger frames would block other streams.
const MAX_FRAME: usize = 16 * 1024;

impl Connection {
    /// Waits until [`Connection::open`] may be called.
    ///
    /// # Errors
    ///
    /// No more streams can be opened on this connection.
    pub fn poll_ready(&mut self, waker: &Waker) -> Poll<Result<(), Error>> {
        if let Some(error) = self.open_error() {
            return Poll::Ready(Err(error));
        }
        let missed = u32::from(Bug::StreamLimitOffByOne.is_planted());
        if self.open_local_streams + missed < self.max_concurrent_streams() {
            return Poll::Ready(Ok(()));
        }
        self.register_open_waker(waker);
        Poll::Pending
    }

    /// Waits for the server's SETTINGS. Returns whether they are of a proxy of this project: false
    /// also if the connection fails before.
    pub fn poll_is_proxy(&mut self, waker: &Waker) -> Poll<bool> {
        if self.has_peer_settings {
            return Poll::Ready(self.peer_settings.accepts_client_closed);
        }
        if self.failure.is_some() {
            return Poll::Ready(false);
        }
        self.register_open_waker(waker);
        Poll::Pending
    }

    fn register_open_waker(&mut self, waker: &Waker) {
        let mut registered = self.open_wakers.iter();
        if !registered.any(|registered| registered.will_wake(waker)) {
            self.open_wakers.push(waker.clone());
        }
    }

    /// Returns why no more streams can be opened on this connection.
    pub fn open_error(&self) -> Option<Error> {
        if let Some(error) = &self.failure {
            return Some(error.clone());
        }
        if let Some((_, code)) = self.peer_goaway {
            return Some(Error::Unprocessed(code));
        }
        // Stream identifiers cannot be reused (RFC 9113, section 5.1.1).
        (self.next_local_stream > MAX_WINDOW || self.role == Role::Server).then_some(Error::Closed)
    }

    /// Opens a stream with a request, which is complete if `is_last`. `raw_path` replaces the path
    /// and query of its URI. To be called only when [`Connection::poll_ready`] is ready.
    pub fn open<B>(
        &mut self,
        request: &Request<B>,
        raw_path: Option<&Bytes>,
        is_last: bool,
    ) -> StreamId {
        let id = self.next_local_stream;
        self.next_local_stream += 2;
        self.open_local_streams += 1;
        let mut stream = self.new_stream(MessageState::Headers);
        stream.inbound.responds_to_head = *request.method() == Method::HEAD;
        stream.outbound.state = state_after(is_last);
        self.streams.insert(id, stream);
        self.write_headers(id, is_last, |encoder, out| {
            message::write_request(encoder, out, request, raw_path);
        });
        StreamId(id)
    }

    /// Sends an interim response (1xx). Does nothing if the final response was sent or the stream
    /// is closed.
    pub fn send_informational<B>(&mut self, id: StreamId, response: &Response<B>) {
        if self.advance(id, MessageState::Headers, MessageState::Headers) {
            self.write_headers(id.0, false, |encoder, out| {
                message::write_response(encoder, out, response);
            });
            if let Some(stream) = self.streams.get_mut(&id.0) {
                stream.outbound.has_interim = true;
            }
        }
    }

    /// Whether an interim response was sent on the stream.
    pub fn has_sent_informational(&self, id: StreamId) -> bool {
        let stream = self.streams.get(&id.0);
        stream.is_some_and(|stream| stream.outbound.has_interim)
    }

    /// Sends the final response, which is complete if `is_last`. Does nothing if one was sent or
    /// the stream is closed.
    pub fn respond<B>(&mut self, id: StreamId, response: &Response<B>, is_last: bool) {
        if !self.advance(id, MessageState::Headers, state_after(is_last)) {
            return;
        }
        self.write_headers(id.0, is_last, |encoder, out| {
            message::write_response(encoder, out, response);
        });
        self.release_closed(id.0);
    }

    /// Waits for capacity, and returns the number of bytes that may be sent now.
    ///
    /// # Errors
    ///
    /// The stream has failed.
    pub fn poll_capacity(&mut self, id: StreamId, waker: &Waker) -> Poll<Result<usize, Error>> {
        let (has_output_capacity, output_limit) = (self.has_output_capacity(), self.output_limit);
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Poll::Ready(Err(Error::Closed));
        };
        if let Some(error) = &stream.failure {
            return Poll::Ready(Err(error.clone()));
        }
        let stream_capacity = stream.outbound.window.capacity();
        let capacity = stream_capacity
            .min(self.send_window.capacity())
            .min(output_limit);
        if capacity > 0 && has_output_capacity {
            return Poll::Ready(Ok(capacity));
        }
        register(&mut stream.outbound.waker, waker);
        if stream_capacity > 0 && !stream.is_waiting_for_capacity {
            stream.is_waiting_for_capacity = true;
            self.waiting_for_capacity.push(id.0);
        }
        Poll::Pending
    }

    /// Whether the output is below its limit.
    pub(super) fn has_output_capacity(&self) -> bool {
        self.output.len() < self.output_limit
    }

    /// Sends data, at most the number of bytes that [`Connection::poll_capacity`] has returned.
    /// Empty data may complete the message.
    pub fn send_data(&mut self, id: StreamId, mut data: Bytes, is_last: bool) {
        if !self.advance(id, MessageState::Body, state_after(is_last)) {
            return;
        }
        if let Some(stream) = self.streams.get_mut(&id.0) {
            stream.outbound.window.consume(data.len());
        }
        self.send_window.consume(data.len());
        let max_frame = MAX_FRAME.min(self.peer_settings.max_frame_size as usize);
        loop {
            let chunk = data.split_to(data.len().min(max_frame));
            let is_end = match chunk.is_empty() {
                false if Bug::EndStreamLost.is_planted() => false,
                false if Bug::EndStreamEarly.is_planted() => chunk.len() < max_frame,
                _ => is_last && data.is_empty(),
            };
            let flags = if is_end { frame::END_STREAM } else { 0 };
            let header = FrameHeader {
                length: chunk.len() as u32,
                kind: frame::DATA,
                flags,
                stream: id.0,
            };
            self.output.write(|out| header.write(out));
            self.output.push(chunk);
            self.flood.record_sent_message();
            self.count_message_frame();
            if data.is_empty() {
                break;
            }
        }
        self.wake_driver();
        self.release_closed(id.0);
    }

    /// Sends the trailer section, which completes the message.
    pub fn send_trailers(&mut self, id: StreamId, trailers: &HeaderMap) {
        if !self.advance(id, MessageState::Body, MessageState::Complete) {
            return;
        }
        self.write_headers(id.0, true, |encoder, out| {
            message::write_trailers(encoder, out, trailers);
        });
        self.release_closed(id.0);
    }

    /// Moves the sent message from one state to another. Returns false if it is in another state or
    /// the stream has failed.
    fn advance(&mut self, id: StreamId, from: MessageState, to: MessageState) -> bool {
        match self.streams.get_mut(&id.0) {
            Some(stream) if stream.failure.is_none() && stream.outbound.state == from => {
                stream.outbound.state = to;
                true
            }
            _ => false,
        }
    }

    fn write_headers(
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
        self.flood.record_sent_message();
        self.count_message_frame();
        self.wake_driver();
    }

    /// Wakes the streams that wait for capacity.
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

fn state_after(is_last: bool) -> MessageState {
    if is_last {
        MessageState::Complete
    } else {
        MessageState::Body
    }
}
