//! HTTP/2 on the `h2` crate: what both sides of the proxy need to speak it on one connection.
//!
//! The crate keeps streams, windows and header tables. Here is how messages come from them and go to them ([`Incoming`], [`Outgoing`], [`prepare_request`],
//! [`prepare_response`]), the pings ([`Pulse`]), the bytes in pieces of a decent size ([`wire`]), and what the crate leaves unbounded: [`Guarded`] stands between it and
//! the bytes, reads no more than the heads of frames ([`frames`]) and keeps account of them ([`account`]). The crate's own limits (concurrent streams, header lists, continuations, streams reset before
//! anybody saw them) are set by [`server`], one loop per accepted connection, and [`super::client`]. See docs/adr/0014 and 0016.
//!
//! An accepted stream has a task. A stream that we open has none: whoever sends a request polls its body and awaits the response in his own, and only a body that goes on after
//! the response's head gets one.

mod account;
mod frames;
mod guarded;
mod head;
mod incoming;
mod outgoing;
mod pulse;
pub(super) mod server;
mod wire;

pub(super) use self::account::Role;
pub(super) use self::guarded::{Guarded, Standing};
pub(super) use self::head::{declared_length, prepare_request, prepare_response};
pub(super) use self::incoming::{Incoming, Of};
pub(super) use self::outgoing::{Interrupted, Outgoing};
pub(super) use self::pulse::{Beat, Pulse};
pub(super) use self::wire::Failed;

use crate::config::DEFAULT_STREAM_WINDOW;

/// RFC 9113, section 6.9.1.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// What streams may send at first; windows that adapt begin with the protocol's.
pub(super) fn first_stream_window(configured: u32, adapts: bool) -> u32 {
    match adapts {
        true => DEFAULT_STREAM_WINDOW,
        false => configured,
    }
}

/// A connection's window with room for what every stream may receive before it is read, at least `configured`.
///
/// Requests that wait for a place at an endpoint, and responses that a client does not read, stay in the connection's window. Were it smaller than all of them, they could
/// fill it, and the others would never get the rest of their bodies: everything would stand still.
pub(super) fn connection_window(stream_window: u32, streams: u32, configured: u32) -> u32 {
    let all = stream_window.saturating_mul(streams);
    configured.max(all).min(MAX_WINDOW)
}
