//! [`Connection`]: the state of one HTTP/2 connection, without its socket.
//!
//! The owner of the socket passes the bytes it reads to [`Connection::receive`], writes the bytes
//! that [`Connection::output`] holds, and is woken when there are more. The owner of a stream polls
//! it by its [`StreamId`]. All calls happen on one thread.
//!
//! * [`receive`]: parses frames and applies the connection's.
//! * [`headers`], [`data`]: apply the frames of messages.
//! * [`send`]: encodes messages into frames, as far as flow control allows.
//! * [`streams`]: the methods for the owners of streams.
//! * [`client_closed`]: the extension that tells the server that a proxy's client has closed.
//! * [`ending`]: stream errors, connection errors and graceful shutdown.

mod client_closed;
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

use self::ending::{GoAwayState, ResetStreams};
use self::headers::PartialFieldBlock;
use self::receive::ReadState;
pub use self::receive::WORK_PER_TURN;
use crate::error::{Error, ErrorCode, LimitExceeded};
use crate::flood::FloodLimiter;
use crate::frame::{self, PREFACE};
use crate::hpack::{Decoder, Encoder};
use crate::message::FieldSectionLimit;
use crate::output::{BufferPool, Output};
use crate::raw_target::RawTarget;
use crate::settings::{Limits, LocalSettings, PeerSettings, Role};
use crate::stream::{Stream, StreamId, register, wake};
use crate::window::{DEFAULT_WINDOW, ReceiveWindow, SendWindow};

/// The configuration of a new connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Whether the local endpoint is the client or the server.
    pub role: Role,
    /// The limits of what the peer may consume.
    pub limits: Limits,
    /// Flow-control window of each stream for received data, in bytes.
    pub stream_window: u32,
    /// Flow-control window of a stream after [`Connection::widen_window`], in bytes, at least
    /// `stream_window`.
    pub widened_stream_window: u32,
    /// Flow-control window of the connection for received data, in bytes.
    pub connection_window: u32,
    /// SETTINGS_MAX_FRAME_SIZE to advertise, in bytes; `None` leaves the protocol's 16 KiB.
    pub max_frame_size: Option<u32>,
    /// Bytes of output that are buffered before streams wait for capacity; `None` means 256 KiB.
    pub output_limit: Option<usize>,
    /// The pool of output buffers.
    pub buffers: BufferPool,
    /// The clock, which tests replace.
    pub clock: fn() -> Instant,
}

impl Config {
    /// The initial windows and frame size of HTTP/2 (RFC 9113, section 6.5.2), newly allocated
    /// buffers, and the system's clock.
    #[must_use]
    pub fn new(role: Role, limits: Limits) -> Self {
        Self {
            role,
            limits,
            stream_window: DEFAULT_WINDOW,
            widened_stream_window: DEFAULT_WINDOW,
            connection_window: DEFAULT_WINDOW,
            max_frame_size: None,
            output_limit: None,
            buffers: BufferPool {
                acquire: Vec::new,
                release: drop,
            },
            clock: Instant::now,
        }
    }
}

/// A stream that the client has opened. Its receiver must read and write it until it drops both
/// directions ([`Connection::drop_reader`], [`Connection::drop_writer`]).
#[derive(Debug)]
pub struct AcceptedStream {
    /// The identifier for calls of [`Connection`].
    pub id: StreamId,
    /// The request without its body.
    pub request: Request<()>,
    /// The request's target, if its URI cannot represent it.
    pub raw_target: Option<Box<RawTarget>>,
    /// The limit that the request's field section exceeds: the request must be rejected. Its fields
    /// were discarded.
    pub exceeded_limit: Option<FieldSectionLimit>,
    /// Whether HEADERS ended the stream: there is no body, not even an empty one.
    pub is_headers_only: bool,
    /// The value of Content-Length.
    pub content_length: Option<u64>,
}

/// Input that has begun to arrive and must be completed within a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingInput {
    /// The connection preface, which the peer's first SETTINGS complete.
    Preface,
    /// The acknowledgement of the PING that follows the first GOAWAY of a graceful shutdown.
    GoAwayPing,
    /// A field block, identified by its number on this connection.
    FieldBlock(u32),
}

/// An HTTP/2 connection without its socket.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    limits: Limits,
    flood: FloodLimiter,

    input: ReadState,
    decoder: Decoder,
    /// The field block whose CONTINUATION frames are still to come.
    field_block: Option<Box<PartialFieldBlock>>,
    /// Number of field blocks that have begun. Wraps.
    field_blocks: u32,
    /// The stream of the last of them.
    last_field_block: u32,
    /// The advertised SETTINGS_MAX_FRAME_SIZE.
    max_frame_size: u32,

    output: Output,
    /// Bytes of output that are buffered before streams wait.
    output_limit: usize,
    encoder: Encoder,
    peer_settings: PeerSettings,
    /// The peer's first SETTINGS were received.
    has_peer_settings: bool,
    /// Wakes the connection driver when there is output.
    driver: Option<Waker>,

    receive_window: ReceiveWindow,
    send_window: SendWindow,
    /// The receive window of new streams: the larger of both values while a change of it is
    /// unacknowledged, because the peer may use either.
    stream_window: u32,
    /// The stream window in SETTINGS that the peer has not acknowledged yet.
    unacknowledged_window: Option<u32>,
    /// The receive window of one stream may be widened by this number of bytes.
    widening: u32,

    streams: HashMap<u32, Box<Stream>, RandomState>,
    last_peer_stream: u32,
    next_local_stream: u32,
    open_peer_streams: u32,
    open_local_streams: u32,
    accepted: VecDeque<AcceptedStream>,
    /// Streams whose client has closed, not returned yet: each stream at most once.
    client_closed: Vec<u32>,
    /// Streams that were reset since `accepted` was last empty in [`Connection::next_request`].
    pending_accept_resets: u32,
    reset_streams: ResetStreams,
    /// Streams that wait for the connection's window or for the output to drain.
    waiting_for_capacity: Vec<u32>,
    /// Woken when a stream may be opened.
    open_wakers: Vec<Waker>,

    goaway: GoAwayState,
    /// The last stream identifier and the error code of the peer's GOAWAY.
    peer_goaway: Option<(u32, ErrorCode)>,
    failure: Option<Error>,
    limit_exceeded: Option<LimitExceeded>,
    /// The peer should be moved to another connection.
    is_drain_due: bool,
    /// The acknowledgement of [`Connection::ping`] was received.
    has_pong: bool,
    /// Work of the current call of [`Connection::receive`], see [`WORK_PER_TURN`].
    work: usize,

    /// HEADERS and DATA frames in both directions.
    message_frames: u32,
    /// Bytes of DATA payloads.
    data_received: u64,
}

impl Connection {
    /// Creates a connection and queues its preface and SETTINGS.
    pub fn new(config: &Config) -> Self {
        let Config { role, limits, .. } = *config;
        let first_local_stream = match role {
            Role::Client => 1,
            Role::Server => 2,
        };
        let mut connection = Self {
            role,
            limits,
            flood: FloodLimiter::new(role, &limits, config.clock),
            input: match role {
                Role::Client => ReadState::default(),
                Role::Server => ReadState::Preface(0),
            },
            decoder: Decoder::new(),
            field_block: None,
            field_blocks: 0,
            last_field_block: 0,
            max_frame_size: config.max_frame_size.unwrap_or(frame::MIN_MAX_FRAME_SIZE),
            output: Output::new(config.buffers),
            output_limit: config.output_limit.unwrap_or(send::DEFAULT_OUTPUT_LIMIT),
            encoder: Encoder::new(),
            peer_settings: PeerSettings::new(),
            has_peer_settings: false,
            driver: None,
            receive_window: ReceiveWindow::new(DEFAULT_WINDOW),
            send_window: SendWindow::new(DEFAULT_WINDOW),
            stream_window: DEFAULT_WINDOW,
            unacknowledged_window: None,
            widening: config
                .widened_stream_window
                .saturating_sub(config.stream_window),
            streams: HashMap::default(),
            last_peer_stream: 0,
            next_local_stream: first_local_stream,
            open_peer_streams: 0,
            open_local_streams: 0,
            accepted: VecDeque::new(),
            client_closed: Vec::new(),
            pending_accept_resets: 0,
            reset_streams: ResetStreams::default(),
            waiting_for_capacity: Vec::new(),
            open_wakers: Vec::new(),
            goaway: GoAwayState::None,
            peer_goaway: None,
            failure: None,
            limit_exceeded: None,
            is_drain_due: false,
            has_pong: false,
            work: 0,
            message_frames: 0,
            data_received: 0,
        };
        connection.send_preface(config);
        connection
    }

    fn send_preface(&mut self, config: &Config) {
        if self.role == Role::Client {
            self.output.write(|out| out.extend_from_slice(PREFACE));
        }
        let is_server = self.role == Role::Server;
        let settings = LocalSettings {
            initial_window_size: (config.stream_window != DEFAULT_WINDOW)
                .then_some(config.stream_window),
            max_frame_size: config.max_frame_size,
            max_concurrent_streams: is_server.then_some(self.limits.max_concurrent_streams),
            max_header_list_size: Some(self.limits.max_header_list_size),
            is_client: !is_server,
            accepts_client_closed: is_server,
        };
        self.write_settings(settings, config.stream_window);
        self.enlarge_connection_window(config.connection_window);
    }

    fn write_settings(&mut self, settings: LocalSettings, stream_window: u32) {
        self.output.write(|out| settings.write(out));
        self.flood.record_sent_acknowledged_frame();
        self.stream_window = self.stream_window.max(stream_window);
        self.unacknowledged_window = Some(stream_window);
    }

    fn enlarge_connection_window(&mut self, size: u32) {
        self.receive_window.enlarge(size);
        self.send_connection_update();
    }

    /// Changes the receive windows of all streams and enlarges the connection's, in bytes. Does
    /// nothing while the peer has not acknowledged the previous change.
    pub fn set_windows(&mut self, stream: u32, connection: u32) {
        if self.unacknowledged_window.is_some() {
            return;
        }
        let settings = LocalSettings {
            initial_window_size: Some(stream),
            ..LocalSettings::default()
        };
        self.write_settings(settings, stream);
        self.enlarge_connection_window(connection);
        self.wake_driver();
    }

    /// The bytes to write. [`Connection::advance_output`] removes those that were written.
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// Removes the first `n` bytes of the output, which were written.
    pub fn advance_output(&mut self, n: usize) {
        self.output.advance(n);
        if self.output.len() < self.output_limit / 2 && self.send_window.capacity() > 0 {
            self.wake_waiting();
        }
    }

    /// Whether so much output is buffered that nothing more should be read, because responses to
    /// received frames would add to it.
    pub fn is_congested(&self) -> bool {
        self.output.len() >= 3 * self.output_limit
    }

    /// Registers the connection driver, which is woken when there is output or the connection's
    /// state has changed.
    pub fn register_driver(&mut self, waker: &Waker) {
        register(&mut self.driver, waker);
    }

    fn wake_driver(&mut self) {
        wake(&mut self.driver);
    }

    /// The role of the local endpoint.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the next stream that the client has opened.
    pub fn next_request(&mut self) -> Option<AcceptedStream> {
        let accepted = self.accepted.pop_front();
        if accepted.is_none() {
            // Resets that were read together are counted together, even if they take several turns.
            if self.work < WORK_PER_TURN {
                self.pending_accept_resets = 0;
            }
            // An empty queue would keep a kilobyte for four entries.
            self.accepted = VecDeque::new();
        }
        accepted
    }

    /// Returns the input that has begun to arrive and must be completed within a time limit; see
    /// [`Connection::handle_input_timeout`].
    pub fn pending_input(&self) -> Option<PendingInput> {
        if !self.has_peer_settings {
            return Some(PendingInput::Preface);
        }
        // Comes first, so that no new field block of the peer restarts its timer.
        if self.goaway == GoAwayState::Notice {
            return Some(PendingInput::GoAwayPing);
        }
        let is_begun = self.field_block.is_some() || self.input.is_within_field_block();
        is_begun.then_some(PendingInput::FieldBlock(self.field_blocks))
    }

    /// Sends a PING; [`Connection::take_pong`] reports its acknowledgement.
    pub fn ping(&mut self) {
        self.write_ping(PING_PAYLOAD);
    }

    fn write_ping(&mut self, payload: [u8; 8]) {
        self.output.write(|out| frame::write_ping(out, 0, payload));
        self.flood.record_sent_acknowledged_frame();
        self.wake_driver();
    }

    /// Returns whether a PING was acknowledged since the last call.
    pub fn take_pong(&mut self) -> bool {
        std::mem::take(&mut self.has_pong)
    }

    /// The number of streams that are open, or closed and not dropped by their owners yet.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// The number of streams that the peer allows to be open concurrently.
    pub fn max_concurrent_streams(&self) -> u32 {
        if self.has_peer_settings {
            self.peer_settings
                .max_concurrent_streams
                .unwrap_or(u32::MAX)
        } else {
            INITIAL_MAX_STREAMS
        }
    }

    /// The number of HEADERS and DATA frames in both directions. Wraps.
    pub fn message_frames(&self) -> u32 {
        self.message_frames
    }

    /// Bytes of DATA payloads that were received.
    pub fn data_received(&self) -> u64 {
        self.data_received
    }

    /// Returns the limit that the peer has exceeded since the last call.
    pub fn take_limit_exceeded(&mut self) -> Option<LimitExceeded> {
        self.limit_exceeded.take()
    }

    /// Whether the peer has come so close to a limit that this connection should be shut down
    /// gracefully.
    pub fn is_drain_due(&self) -> bool {
        self.is_drain_due
    }

    /// The error that closed the connection.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Counts a frame of a message that its stream accepts.
    fn count_received(&mut self) {
        self.flood.record_message();
        self.count_message_frame();
    }

    fn count_message_frame(&mut self) {
        self.message_frames = self.message_frames.wrapping_add(1);
    }
}

/// The payloads that tell the PING of [`Connection::ping`] from the one of a graceful shutdown. At
/// most one of each is in flight.
const PING_PAYLOAD: [u8; 8] = *b"mesh   0";
const GOAWAY_PING_PAYLOAD: [u8; 8] = *b"mesh end";

/// Concurrent streams before the peer's SETTINGS arrive. RFC 9113 recommends no smaller limit
/// (section 6.5.2).
const INITIAL_MAX_STREAMS: u32 = 100;
