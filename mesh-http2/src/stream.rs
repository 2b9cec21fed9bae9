//! One stream: what has come on it and was not read yet, what may be sent on it, and who waits for
//! either.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use http::{HeaderMap, Response};

use crate::error::Error;
use crate::window::{Receiving, Sending};

/// Names a stream of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub(crate) u32);

/// What bodies consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
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
    pub(crate) is_read: bool,
    /// Somebody will send.
    pub(crate) is_written: bool,
    /// It counts as open.
    pub(crate) is_counted: bool,
    /// It is in the connection's list of those that wait for room.
    pub(crate) waits: bool,
}

/// What comes.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) stage: Stage,
    /// The head was all of it.
    pub(crate) is_head_only: bool,
    /// What came ahead of a response. Few have it.
    pub(crate) interims: Option<Box<Interims>>,
    /// Of a response, until somebody takes it.
    pub(crate) head: Option<Box<Response<()>>>,
    pub(crate) data: Unread,
    pub(crate) trailers: Option<Box<HeaderMap>>,
    /// Bytes that are still to come, when the head said how many there are.
    pub(crate) remaining: Option<u64>,
    /// The answer to a HEAD has a length, and no body.
    pub(crate) answers_head: bool,
    pub(crate) window: Receiving,
    /// Length of the piece that was handed out last.
    pub(crate) in_use: u32,
    pub(crate) waker: Option<Waker>,
}

/// Interim responses that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Interims {
    heads: VecDeque<(Response<()>, usize)>,
    /// Bytes of their header lists.
    held: usize,
    /// All that have come, also those that were taken.
    count: u32,
}

/// What is sent.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) stage: Stage,
    pub(crate) window: Sending,
    pub(crate) waker: Option<Waker>,
}

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Head,
    Body,
    Over,
}

/// Data that nobody has read yet. Small pieces are put together, so that it costs hardly more than
/// its bytes.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    pieces: VecDeque<Vec<u8>>,
}

/// Pieces are not made larger than this by others behind them.
const JOINED: usize = 4 * 1024;

impl Stream {
    pub(crate) fn new(inbound: Stage, receiving: Receiving, sending: Sending) -> Self {
        Self {
            inbound: Inbound {
                stage: inbound,
                is_head_only: inbound == Stage::Over,
                interims: None,
                head: None,
                data: Unread::default(),
                trailers: None,
                remaining: None,
                answers_head: false,
                window: receiving,
                in_use: 0,
                waker: None,
            },
            outbound: Outbound {
                stage: Stage::Head,
                window: sending,
                waker: None,
            },
            failure: None,
            is_read: true,
            is_written: true,
            is_counted: true,
            waits: false,
        }
    }

    /// Whether nothing more will come or go.
    pub(crate) fn is_over(&self) -> bool {
        self.failure.is_some()
            || (self.inbound.stage == Stage::Over && self.outbound.stage == Stage::Over)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_read || self.is_written
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
    pub(crate) fn held(&self) -> u32 {
        self.in_use + self.data.len()
    }
}

/// Of one response. Real servers send one, and progress reports (102) some; without a limit a
/// server could send them for ever.
pub const MAX_INTERIMS: u32 = 32;

impl Interims {
    /// False when that is one too many, or more than `most` bytes are held.
    pub(crate) fn push(&mut self, head: Response<()>, size: usize, most: usize) -> bool {
        self.count += 1;
        self.held += size;
        self.heads.push_back((head, size));
        self.count <= MAX_INTERIMS && self.held <= most
    }

    pub(crate) fn pop(&mut self) -> Option<Response<()>> {
        let (head, size) = self.heads.pop_front()?;
        self.held -= size;
        Some(head)
    }
}

impl Outbound {
    pub(crate) fn wake(&mut self) {
        wake(&mut self.waker);
    }
}

impl Unread {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some(last) if last.len() + bytes.len() <= JOINED => last.extend_from_slice(bytes),
            _ => self.pieces.push_back(bytes.to_vec()),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        self.pieces.pop_front().map(Bytes::from)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.pieces = VecDeque::new();
    }

    /// Windows bound it.
    fn len(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.len() as u32).sum()
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
        Some(known) => known.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}
