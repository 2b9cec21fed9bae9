//! [`Connection`]: what both sides know of each other, and what is between them.
//!
//! Whoever owns the socket calls [`Connection::receive`] with what was read, writes what
//! [`Connection::output`] holds, and is woken when there is more of it. Whoever owns a stream polls
//! it by its [`StreamId`]. All of it happens on one thread.
//!
//! * [`receive`]: bytes become frames, and each frame is judged.
//! * [`headers`], [`data`]: what the frames of messages do.
//! * [`send`]: messages become frames, as far as there is room.
//! * [`streams`]: what owners of streams may ask and do.
//! * [`ending`]: how streams and connections end.

mod data;
mod ending;
mod headers;
mod receive;
mod send;
mod streams;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Instant;

use ahash::RandomState;
use http::Request;

use self::ending::{Leaving, Tombstones};
use self::headers::Block;
use self::receive::Input;
pub use self::receive::WORK_PER_TURN;
use crate::account::Account;
use crate::error::{Error, Reason, Violation};
use crate::frame::{self, PREFACE};
use crate::hpack::{Decoder, Encoder};
use crate::message::Refused;
use crate::output::{Buffers, Output};
use crate::settings::{Limits, Ours, Peer, Role};
use crate::stream::{Stream, StreamId, register, wake};
use crate::window::{DEFAULT_WINDOW, Receiving, Sending};

/// On what terms a connection is begun.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub role: Role,
    pub limits: Limits,
    /// What each stream may be sent before it is read.
    pub stream_window: u32,
    /// What all streams may be sent together before they are read.
    pub connection_window: u32,
    /// What the other side may put into one frame, if it is more than the 16 KiB that everybody
    /// takes.
    pub max_frame: Option<u32>,
    /// How much is collected to be written before streams have to wait, if it is not 256 KiB.
    pub collected: Option<usize>,
    pub buffers: Buffers,
    pub clock: fn() -> Instant,
}

/// A stream that the other side has opened. Whoever takes it reads and writes it until he says
/// otherwise.
#[derive(Debug)]
pub struct Accepted {
    pub id: StreamId,
    pub request: Request<()>,
    /// Why it should not be served; its header fields were not kept.
    pub refused: Option<Refused>,
    /// The head was all of it: there is no body, not even an empty one.
    pub is_head_only: bool,
    /// How long the body will be, if the head says so.
    pub length: Option<u64>,
}

/// What has begun to arrive and must not take for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The first settings.
    Greeting,
    /// The acknowledgement of the PING that follows the first GOAWAY of a graceful shutdown.
    GoAwayPing,
    /// A header block, by its number.
    Head(u32),
}

/// One connection without its socket.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    limits: Limits,
    account: Account,

    input: Input,
    decoder: Decoder,
    /// A header block that goes on.
    block: Option<Box<Block>>,
    /// How many have begun.
    blocks: u32,
    /// What we take, as far as that concerns single frames.
    max_frame: u32,

    output: Output,
    /// How much is collected there before streams have to wait.
    collected: usize,
    encoder: Encoder,
    /// What the other side takes.
    peer: Peer,
    /// It has said so.
    is_greeted: bool,
    /// Woken when there is something to write.
    driver: Option<Waker>,

    /// What the other side may send, and what we may.
    receiving: Receiving,
    sending: Sending,
    /// What the other side may send on each stream, as far as it may know.
    stream_window: u32,
    /// Settings of ours that were not acknowledged yet.
    unacknowledged: Option<u32>,

    streams: HashMap<u32, Box<Stream>, RandomState>,
    /// The last stream that the other side has opened.
    last_theirs: u32,
    /// The next that we open.
    next_ours: u32,
    open_theirs: u32,
    open_ours: u32,
    accepted: VecDeque<Accepted>,
    /// Streams that were reset since somebody last looked at `accepted`.
    unseen_resets: u32,
    tombstones: Tombstones,
    /// Streams that wait for room in the connection's window, or for what is written to leave.
    waiting: Vec<u32>,
    /// Woken when a stream may be opened.
    openers: Vec<Waker>,

    leaving: Leaving,
    /// The other side has said that it leaves: the last stream that it will look at, and why.
    gone: Option<(u32, Reason)>,
    failure: Option<Error>,
    violation: Option<Violation>,
    /// The other side should make another connection.
    is_retired: bool,
    /// A ping that somebody wanted was answered.
    has_pong: bool,
    /// Work that the last call of [`Connection::receive`] has done, see [`WORK_PER_TURN`].
    work: usize,

    /// Messages and parts of them, both ways.
    messages: u32,
    /// Bytes of bodies that have come.
    data: u64,
}

impl Connection {
    pub fn new(config: &Config) -> Self {
        let Config { role, limits, .. } = *config;
        let first_ours = match role {
            Role::Client => 1,
            Role::Server => 2,
        };
        let mut connection = Self {
            role,
            limits,
            account: Account::new(role, &limits, config.clock),
            input: match role {
                Role::Client => Input::default(),
                Role::Server => Input::Preface(0),
            },
            decoder: Decoder::new(),
            block: None,
            blocks: 0,
            max_frame: config.max_frame.unwrap_or(frame::MIN_MAX_FRAME),
            output: Output::new(config.buffers),
            collected: config.collected.unwrap_or(send::COLLECTED),
            encoder: Encoder::new(),
            peer: Peer::new(),
            is_greeted: false,
            driver: None,
            receiving: Receiving::new(DEFAULT_WINDOW),
            sending: Sending::new(DEFAULT_WINDOW),
            stream_window: DEFAULT_WINDOW,
            unacknowledged: None,
            streams: HashMap::default(),
            last_theirs: 0,
            next_ours: first_ours,
            open_theirs: 0,
            open_ours: 0,
            accepted: VecDeque::new(),
            unseen_resets: 0,
            tombstones: Tombstones::default(),
            waiting: Vec::new(),
            openers: Vec::new(),
            leaving: Leaving::No,
            gone: None,
            failure: None,
            violation: None,
            is_retired: false,
            has_pong: false,
            work: 0,
            messages: 0,
            data: 0,
        };
        connection.greet(config);
        connection
    }

    fn greet(&mut self, config: &Config) {
        if self.role == Role::Client {
            self.output.write(|out| out.extend_from_slice(PREFACE));
        }
        let is_server = self.role == Role::Server;
        let ours = Ours {
            stream_window: (config.stream_window != DEFAULT_WINDOW).then_some(config.stream_window),
            max_frame: config.max_frame,
            streams: is_server.then_some(self.limits.streams),
            header_list: Some(self.limits.header_list),
            is_client: !is_server,
        };
        self.write_settings(ours, config.stream_window);
        self.enlarge(config.connection_window);
    }

    fn write_settings(&mut self, ours: Ours, stream_window: u32) {
        self.output.write(|out| ours.write(out));
        self.account.sent_question();
        // Until the other side says that it knows, it may go by either.
        self.stream_window = self.stream_window.max(stream_window);
        self.unacknowledged = Some(stream_window);
    }

    fn enlarge(&mut self, connection_window: u32) {
        self.receiving.enlarge(connection_window);
        self.update_window();
    }

    /// Makes the windows larger. Not possible, and not done, while the other side has not
    /// acknowledged the last change.
    pub fn set_windows(&mut self, stream: u32, connection: u32) {
        if self.unacknowledged.is_some() {
            return;
        }
        let ours = Ours {
            stream_window: Some(stream),
            ..Ours::default()
        };
        self.write_settings(ours, stream);
        self.enlarge(connection);
        self.wake_driver();
    }

    /// What is to be written. [`Connection::written`] must be told of it.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The first `n` bytes of the output are written.
    pub fn written(&mut self, n: usize) {
        self.output.advance(n);
        if self.output.len() < self.collected / 2 && self.sending.room() > 0 {
            self.wake_waiting();
        }
    }

    /// Whether so much waits to be written that nothing more should be read: answers to what is
    /// read would only make it more.
    pub fn is_congested(&self) -> bool {
        self.output.len() >= 3 * self.collected
    }

    /// Wakes `waker` when something is to be written, or has to be looked at.
    pub fn register_driver(&mut self, waker: &Waker) {
        register(&mut self.driver, waker);
    }

    fn wake_driver(&mut self) {
        wake(&mut self.driver);
    }

    /// The next stream that the other side has opened.
    pub fn next_request(&mut self) -> Option<Accepted> {
        let accepted = self.accepted.pop_front();
        if accepted.is_none() {
            // What was received together is counted together, in however many turns.
            if self.work < WORK_PER_TURN {
                self.unseen_resets = 0;
            }
            // Four of them take a kilobyte.
            self.accepted = VecDeque::new();
        }
        accepted
    }

    /// What has begun to arrive; nothing may be kept waiting for long.
    pub fn awaited(&self) -> Option<Awaited> {
        if !self.is_greeted {
            return Some(Awaited::Greeting);
        }
        // Comes first, so that no new field block of the peer restarts its timer.
        if self.leaving == Leaving::Announced {
            return Some(Awaited::GoAwayPing);
        }
        let is_begun = self.block.is_some() || self.input.is_within_head();
        is_begun.then_some(Awaited::Head(self.blocks))
    }

    /// Asks the other side for an answer; [`Connection::take_pong`] says when it has come.
    pub fn ping(&mut self) {
        self.write_ping(PING);
    }

    fn write_ping(&mut self, payload: [u8; 8]) {
        self.output.write(|out| frame::write_ping(out, 0, payload));
        self.account.sent_question();
        self.wake_driver();
    }

    /// Whether a ping was answered since this was asked last.
    pub fn take_pong(&mut self) -> bool {
        std::mem::take(&mut self.has_pong)
    }

    /// How many streams are open, or wait to be taken.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// How many streams we may open at a time.
    pub fn max_streams(&self) -> u32 {
        match self.is_greeted {
            true => self.peer.streams.unwrap_or(u32::MAX),
            false => FIRST_STREAMS,
        }
    }

    /// Counts messages, and parts of them, both ways. Wraps.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Bytes of bodies that have come.
    pub fn data(&self) -> u64 {
        self.data
    }

    /// What the other side has done too much of, once.
    pub fn take_violation(&mut self) -> Option<Violation> {
        self.violation.take()
    }

    /// Whether the other side should make another connection, because of what it has done on this
    /// one.
    pub fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Why the connection is over, if it is.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Counts a frame of a message that its stream accepts.
    fn count_received(&mut self) {
        self.account.carries();
        self.count_message();
    }

    fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }
}

/// Pings of [`Connection::ping`], and of those that leave. Two are on the way at most, one of each.
const PING: [u8; 8] = *b"mesh   0";
const LEAVE: [u8; 8] = *b"mesh end";

/// Until the peer has said how many it allows. RFC 9113 recommends no smaller limit (section
/// 6.5.2).
const FIRST_STREAMS: u32 = 100;
