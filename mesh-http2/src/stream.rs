//! The state of one stream: received and unread input, flow control, and the wakers of its owners.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::error::Error;
use crate::window::{ReceiveWindow, SendWindow};

/// Identifies a stream of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u32);

impl From<StreamId> for u32 {
    fn from(id: StreamId) -> Self {
        id.0
    }
}

/// From a number that was a [`StreamId`]; any other identifies no stream.
impl From<u32> for StreamId {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

/// A part of a message's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyFrame {
    /// A non-empty chunk of the content.
    Data(Bytes),
    /// The trailer section, which ends the message.
    Trailers(HeaderMap),
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    /// Why the stream ended before both messages were complete.
    pub(crate) failure: Option<Error>,
    /// [`Connection::drop_reader`](crate::Connection::drop_reader) was not called yet.
    pub(crate) has_reader: bool,
    /// [`Connection::drop_writer`](crate::Connection::drop_writer) was not called yet.
    pub(crate) has_writer: bool,
    /// Whether it counts as open.
    pub(crate) is_counted: bool,
    /// Whether it is in the connection's list of streams that wait for capacity.
    pub(crate) is_waiting_for_capacity: bool,
    /// The client of the request has closed its sending direction: a server has been told, or a
    /// client has to tell it.
    pub(crate) is_client_closed: bool,
}

/// The received message.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) state: MessageState,
    /// HEADERS ended the stream.
    pub(crate) is_headers_only: bool,
    /// Boxed because few responses have any.
    pub(crate) interims: Option<Box<InterimResponses>>,
    /// The final response that was not returned yet.
    pub(crate) response: Option<Box<Response<()>>>,
    pub(crate) data: ReceiveBuffer,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    /// Bytes of the body that were not received yet, if Content-Length is present.
    pub(crate) remaining: Option<u64>,
    /// Whether the request's method is HEAD: the response may have a Content-Length, but no
    /// content.
    pub(crate) responds_to_head: bool,
    pub(crate) window: ReceiveWindow,
    /// Length of the chunk that was returned last; its flow-control capacity is released with the
    /// next call.
    pub(crate) unreleased: u32,
    pub(crate) waker: Option<Waker>,
}

/// Interim responses that were not returned yet.
#[derive(Debug, Default)]
pub(crate) struct InterimResponses {
    responses: VecDeque<(Response<()>, usize)>,
    /// Bytes of their field sections.
    buffered_bytes: usize,
    /// Number of all that were received, also of those that were returned.
    count: u32,
}

/// The sent message.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) state: MessageState,
    /// An interim response was sent.
    pub(crate) has_interim: bool,
    pub(crate) window: SendWindow,
    pub(crate) waker: Option<Waker>,
}

/// The part of a message that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageState {
    Headers,
    Body,
    Complete,
}

/// Received data that was not read yet. Small chunks are joined, so that they hold little more than
/// their bytes.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    chunks: VecDeque<Vec<u8>>,
}

/// Chunks are not joined beyond this size, in bytes.
const MAX_COALESCED: usize = 4 * 1024;

impl Stream {
    pub(crate) fn new(
        inbound: MessageState,
        receive_window: ReceiveWindow,
        send_window: SendWindow,
    ) -> Self {
        Self {
            inbound: Inbound {
                state: inbound,
                is_headers_only: inbound == MessageState::Complete,
                interims: None,
                response: None,
                data: ReceiveBuffer::default(),
                trailers: None,
                remaining: None,
                responds_to_head: false,
                window: receive_window,
                unreleased: 0,
                waker: None,
            },
            outbound: Outbound {
                has_interim: false,
                state: MessageState::Headers,
                window: send_window,
                waker: None,
            },
            failure: None,
            has_reader: true,
            has_writer: true,
            is_counted: true,
            is_waiting_for_capacity: false,
            is_client_closed: false,
        }
    }

    /// Whether both messages are complete, or the stream has failed.
    pub(crate) fn is_closed(&self) -> bool {
        self.failure.is_some()
            || (self.inbound.state == MessageState::Complete
                && self.outbound.state == MessageState::Complete)
    }

    pub(crate) fn has_owner(&self) -> bool {
        self.has_reader || self.has_writer
    }

    /// Ends the stream with an error. The input received before can still be read.
    pub(crate) fn fail(&mut self, error: Error) {
        if self.failure.is_none() {
            self.failure = Some(error);
        }
        self.inbound.wake();
        self.outbound.wake();
    }
}

impl Inbound {
    pub(crate) fn wake(&mut self) {
        wake(&mut self.waker);
    }

    /// Bytes whose capacity in the connection's window was not released yet.
    pub(crate) fn unreleased_bytes(&self) -> u32 {
        self.unreleased + self.data.len()
    }
}

/// Interim responses (1xx) that are accepted before one final response. Servers send one, and some
/// of them progress reports (102); without a limit a server could send them indefinitely.
pub const MAX_INTERIM_RESPONSES: u32 = 32;

impl InterimResponses {
    /// Returns false if the number or the bytes of interim responses exceed their limits.
    pub(crate) fn push(&mut self, response: Response<()>, size: usize, max_bytes: usize) -> bool {
        self.count += 1;
        self.buffered_bytes += size;
        self.responses.push_back((response, size));
        self.count <= MAX_INTERIM_RESPONSES && self.buffered_bytes <= max_bytes
    }

    pub(crate) fn pop(&mut self) -> Option<Response<()>> {
        let (response, size) = self.responses.pop_front()?;
        self.buffered_bytes -= size;
        Some(response)
    }
}

impl Outbound {
    pub(crate) fn wake(&mut self) {
        wake(&mut self.waker);
    }
}

impl ReceiveBuffer {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.chunks.back_mut() {
            Some(last) if last.len() + bytes.len() <= MAX_COALESCED => {
                last.extend_from_slice(bytes);
            }
            _ => self.chunks.push_back(bytes.to_vec()),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        self.chunks.pop_front().map(Bytes::from)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.chunks = VecDeque::new();
    }

    /// Flow control bounds it.
    fn len(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.len() as u32).sum()
    }
}

pub(crate) fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Stores the waker in the slot.
pub(crate) fn register(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(registered) => registered.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}
