//! HTTP/2: what both sides of the proxy need to speak it on one connection.
//!
//! What a connection is, with its frames, header tables, streams, windows and limits, is the
//! package `mesh-http2`, which does no I/O. Here is what moves its bytes ([`Driver`]), and what its
//! streams become: bodies that come ([`Incoming`]), bodies that go ([`Outgoing`]), heads
//! ([`prepare_request`], [`prepare_response`]), pings ([`Pulse`]). On top stand [`server`], one
//! loop per accepted connection, and [`super::client`]. See docs/adr/0017.
//!
//! A connection's task only moves bytes. An accepted stream has a task of its own. A stream that we
//! open has none: whoever sends a request polls its body and awaits the response in his own, and
//! only a body that goes on after the response's head gets one.

mod driver;
mod head;
mod incoming;
mod link;
mod outgoing;
mod pulse;
pub(super) mod server;

use std::time::Instant;

use mesh_core::endpoint::KeepAlive;
use mesh_http2::{BufferPool, Config, Limits, MAX_WINDOW, Role};

pub(super) use self::driver::Driver;
pub(super) use self::head::{declared_length, prepare_request, prepare_response};
pub(super) use self::incoming::Incoming;
use self::link::Writer;
pub(super) use self::link::{Call, Interim, Link};
pub(super) use self::outgoing::{Interrupted, Outgoing};
use self::pulse::{Beat, Pulse};
use super::buffers::{give_vector, take_vector};
use crate::config::{DEFAULT_STREAM_WINDOW, HttpLimits};

/// Less would not hold a frame, and more would be kept for every client that reads slowly.
const COLLECTED: (usize, usize) = (16 * 1024, 1024 * 1024);

/// What each side has settings of its own for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) role: Role,
    pub(super) limits: HttpLimits,
    pub(super) header_list: u32,
    /// Streams at a time, whoever opens them.
    pub(super) streams: u32,
    pub(super) unseen_resets: u32,
    pub(super) stream_window: u32,
    pub(super) connection_window: u32,
    pub(super) adapts_windows: bool,
    pub(super) max_frame: Option<u32>,
    /// Bytes that are collected before streams have to wait.
    pub(super) collected: Option<usize>,
    pub(super) keep_alive: Option<KeepAlive>,
}

impl Terms {
    fn config(&self) -> Config {
        let limits = &self.limits;
        let stream_window = self.first_stream_window();
        Config {
            role: self.role,
            limits: Limits {
                max_concurrent_streams: self.streams,
                max_header_list_size: self.header_list,
                max_fields: limits.http1.fields,
                idle_frames: limits.http2.idle_frames,
                resets: limits.http2.resets,
                stream_errors: limits.http2.mistakes,
                pending_accept_resets: self.unseen_resets,
            },
            stream_window,
            connection_window: self.window_for(stream_window),
            max_frame_size: self.max_frame,
            output_limit: self
                .collected
                .map(|size| size.clamp(COLLECTED.0, COLLECTED.1)),
            buffers: BufferPool {
                acquire: take_vector,
                release: give_vector,
            },
            clock: now,
        }
    }

    /// What streams may be sent at first; windows that adapt begin with the protocol's.
    fn first_stream_window(&self) -> u32 {
        match self.adapts_windows {
            true => DEFAULT_STREAM_WINDOW,
            false => self.stream_window,
        }
    }

    /// The connection's window with room for what every stream may receive before it is read, at
    /// least what is configured.
    ///
    /// Requests that wait for a place at an endpoint, and responses that a client does not read,
    /// stay in the connection's window. Were it smaller than all of them, they could fill it, and
    /// the others would never get the rest of their bodies: everything would stand still.
    fn window_for(&self, stream_window: u32) -> u32 {
        let all = stream_window.saturating_mul(self.streams);
        self.connection_window.max(all).min(MAX_WINDOW)
    }
}

/// The clock of the runtime, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
