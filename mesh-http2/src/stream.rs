//! One stream: what has come on it and was not read yet, what may be sent on it, and who is_waiting_for_capacity for
//! either.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::error::Error;
use crate::window::{ReceiveWindow, SendWindow};

/// Names a stream of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u32);

/// What bodies consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyFrame {
    /// Never empty.
    Data(Bytes),
    Trailers(HeaderMap),
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
    /// Why it ended, if that was not in peace.
    pub(crate) failure: Option<Error>,
    /// Somebody will poll for what comes.
    pub(crate) has_reader: bool,
    /// Somebody will send.
    pub(crate) has_writer: bool,
    /// It counts as open.
    pub(crate) is_counted: bool,
    /// It is in the connection's list of those that wait for room.
    pub(crate) is_waiting_for_capacity: bool,
}

/// What comes.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) stage: MessageState,
    /// The response was all of it.
    pub(crate) is_headers_only: bool,
    /// What came ahead of a response. Few have it.
    pub(crate) interims: Option<Box<InterimResponses>>,
    /// Of a response, until somebody takes it.
    pub(crate) response: Option<Box<Response<()>>>,
    pub(crate) data: ReceiveBuffer,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    /// Bytes that are still to come, when the response said how many there are.
    pub(crate) remaining: Option<u64>,
    /// The answer to a HEAD has a length, and no body.
    pub(crate) responds_to_head: bool,
    pub(crate) window: ReceiveWindow,
    /// Length of the chunk that was handed out last.
    pub(crate) unreleased: u32,
    pub(crate) waker: Option<Waker>,
}

/// Interim responses that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct InterimResponses {
    responses: VecDeque<(Response<()>, usize)>,
    /// Bytes of their header lists.
    buffered_bytes: usize,
    /// All that have come, also those that were taken.
    count: u32,
}

/// What is sent.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) stage: MessageState,
    pub(crate) window: SendWindow,
    pub(crate) waker: Option<Waker>,
}

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageState {
    Headers,
    Body,
    Complete,
}

/// Data that nobody has read yet. Small chunks are put together, so that it costs hardly more than
/// its bytes.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    chunks: VecDeque<Vec<u8>>,
}

/// Pieces are not made larger than this by others behind them.
const MAX_COALESCED: usize = 4 * 1024;

impl Stream {
    pub(crate) fn new(
        inbound: MessageState,
        receive_window: ReceiveWindow,
        send_window: SendWindow,
    ) -> Self {
        Self {
            inbound: Inbound {
                stage: inbound,
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
                stage: MessageState::Headers,
                window: send_window,
                waker: None,
            },
            failure: None,
            has_reader: true,
            has_writer: true,
            is_counted: true,
            is_waiting_for_capacity: false,
        }
    }

    /// Whether nothing more will come or go.
    pub(crate) fn is_closed(&self) -> bool {
        self.failure.is_some()
            || (self.inbound.stage == MessageState::Complete
                && self.outbound.stage == MessageState::Complete)
    }

    pub(crate) fn has_owner(&self) -> bool {
        self.has_reader || self.has_writer
    }

    /// Ends it. What has come completely can still be read.
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

    /// What the connection's window still holds of it.
    pub(crate) fn unreleased_bytes(&self) -> u32 {
        self.unreleased + self.data.len()
    }
}

/// Of one response. Real servers send one, and progress reports (102) some; without a limit a
/// server could send them for ever.
pub const MAX_INTERIM_RESPONSES: u32 = 32;

impl InterimResponses {
    /// False when that is one too many, or more than `max_bytes` bytes are unreleased_bytes.
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
                last.extend_from_slice(bytes)
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

    /// Windows bound it.
    fn len(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.len() as u32).sum()
    }
}

pub(crate) fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Remembers who is to be woken.
pub(crate) fn register(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(registered) => registered.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}
