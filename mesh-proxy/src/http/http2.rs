//! HTTP/2 on one connection, used by the server and the client.
//!
//! The crate `mesh-http2` implements frames, header compression, streams, flow control and limits
//! without I/O. This module does the I/O ([`Driver`]) and maps streams to messages: received bodies
//! ([`IncomingBody`]), sent bodies ([`OutgoingBody`]), headers ([`prepare_request`],
//! [`prepare_response`]) and pings ([`Pinger`]). [`server`] is the loop of an accepted connection;
//! the client is [`super::client`]. See docs/adr/0017.
//!
//! The task of a connection only does I/O. An accepted stream has its own task. An opened stream
//! has none: the task that sends a request polls its body and awaits the response. Only a body that
//! continues after the response headers gets a task.

mod driver;
mod headers;
pub(super) mod incoming_body;
mod outgoing_body;
mod ping;
mod read_ahead;
pub(super) mod server;
pub(super) mod shared_connection;
pub(super) mod stream_guard;

use std::time::Instant;

use mesh_core::endpoint::KeepAlive;
use mesh_http2::{Config, DEFAULT_WINDOW, Limits, MAX_WINDOW, Role};

pub(super) use self::driver::Driver;
pub(super) use self::headers::{declared_length, prepare_request, prepare_response};
pub(super) use self::incoming_body::IncomingBody;
pub(super) use self::outgoing_body::{OutgoingBody, SendBodyError};
use self::ping::{PingEvent, Pinger};
#[cfg(test)]
pub(super) use self::read_ahead::READ_AHEAD_BYTES;
pub(super) use self::read_ahead::ReadAhead;
use self::read_ahead::ReadAheadGrant;
use self::shared_connection::SendStream;
pub(super) use self::shared_connection::{InterimSender, ResponseFuture, SharedConnection};
pub(super) use self::stream_guard::StreamGuard;
use super::output::OUTPUT_BUFFERS;
use crate::config::{FRAME_SIZES, HttpLimits};

/// The range of the send buffer: less would not hold a frame, and more would be used by every
/// client that reads slowly.
const SEND_BUFFER_RANGE: (usize, usize) = (16 * 1024, 1024 * 1024);

/// The window at the start of a response; [`ReadAhead`] widens it (docs/adr/0166).
const FIRST_RESPONSE_WINDOW: u32 = 16 * 1024;

/// Streams whose windows the connection's window covers, the limit of unknown clients.
const WINDOWED_STREAMS: u32 = 200;

/// Settings that differ between the server and the client. The control plane may send any number
/// for an endpoint: windows and frame sizes are adjusted to the ranges of the protocol, because a
/// server closes a connection whose settings are out of range.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoleConfig {
    pub(super) role: Role,
    pub(super) limits: HttpLimits,
    pub(super) max_header_list_size: u32,
    /// Maximum of concurrent streams, whichever peer opens them.
    pub(super) max_streams: u32,
    pub(super) max_pending_accept_resets: u32,
    /// The budget of field lines beyond those that their bytes account for.
    pub(super) field_lines: u32,
    pub(super) stream_window: u32,
    pub(super) connection_window: u32,
    pub(super) adaptive_window: bool,
    pub(super) max_frame_size: Option<u32>,
    /// Bytes that are buffered before streams must wait.
    pub(super) send_buffer: Option<usize>,
    pub(super) keep_alive: Option<KeepAlive>,
}

impl RoleConfig {
    fn config(&self) -> Config {
        let limits = &self.limits;
        let full_window = self.initial_stream_window();
        let first_window = match self.role {
            Role::Client if !self.adaptive_window => full_window.min(FIRST_RESPONSE_WINDOW),
            Role::Client | Role::Server => full_window,
        };
        Config {
            role: self.role,
            limits: Limits {
                max_concurrent_streams: self.max_streams,
                max_header_list_size: self.max_header_list_size,
                max_fields: limits.http1.fields,
                idle_frames: limits.http2.idle_frames,
                resets: limits.http2.resets,
                stream_errors: limits.http2.mistakes,
                field_lines: self.field_lines,
                pending_accept_resets: self.max_pending_accept_resets,
            },
            stream_window: first_window,
            widened_stream_window: full_window,
            connection_window: self.connection_window_for(full_window),
            max_frame_size: self
                .max_frame_size
                .map(|size| size.clamp(*FRAME_SIZES.start(), *FRAME_SIZES.end())),
            output_limit: self
                .send_buffer
                .map(|size| size.clamp(SEND_BUFFER_RANGE.0, SEND_BUFFER_RANGE.1)),
            buffers: OUTPUT_BUFFERS,
            clock: now,
        }
    }

    /// The window of streams, before it is adapted. Adaptive windows start with the protocol's
    /// default.
    fn initial_stream_window(&self) -> u32 {
        if self.adaptive_window {
            DEFAULT_WINDOW
        } else {
            self.stream_window.min(MAX_WINDOW)
        }
    }

    /// The connection's window: enough for what all streams may receive before it is read, and at
    /// least the configured value.
    ///
    /// Requests that wait for an endpoint, and responses that a client does not read, occupy the
    /// connection's window. If they could fill it, the other streams would never receive the rest
    /// of their bodies, and the connection would deadlock.
    ///
    /// More than [`WINDOWED_STREAMS`] streams share the windows of this number: the window bounds
    /// the bytes that a connection stores, and servers of applications have smaller ones.
    fn connection_window_for(&self, stream_window: u32) -> u32 {
        let all = stream_window.saturating_mul(self.max_streams.min(WINDOWED_STREAMS));
        self.connection_window.max(all).min(MAX_WINDOW)
    }
}

/// The runtime's clock, which tests can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
