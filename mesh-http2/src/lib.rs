//! HTTP/2 (RFC 9113) without I/O: the caller passes the bytes it has read to a [`Connection`],
//! writes the bytes that the connection produces, and polls streams in between.
//!
//! Made for a data thread of the proxy, where one task moves the bytes of a connection and each
//! stream is driven by the task of its request. So nothing is locked, no data is passed between
//! tasks, and an idle connection holds no buffer. What a peer may consume is bounded while its
//! frames are parsed: [`Limits`] holds the bounds, [`LimitExceeded`] names the one that was
//! exceeded.
//!
//! From the bottom up: [`hpack`] and [`frame`] encode and decode bytes, [`message`] validates
//! requests and responses, [`stream`] and [`window`] hold the state of streams and flow control,
//! [`flood`] limits what the peer costs. [`Connection`] combines them. [`RawTarget`], the
//! targets that are no URIs, serves HTTP/1 too.

#![warn(missing_docs)]

mod connection;
mod error;
mod flood;
mod frame;
mod hpack;
mod message;
mod output;
mod raw_target;
mod settings;
mod stream;
mod window;

pub use self::connection::{AcceptedStream, Config, Connection, PendingInput, WORK_PER_TURN};
pub use self::error::{Error, ErrorCode, LimitExceeded};
pub use self::message::FieldSectionLimit;
pub use self::output::{BufferPool, Output};
pub use self::raw_target::RawTarget;
pub use self::settings::{Limits, Role};
pub use self::stream::{BodyFrame, MAX_INTERIM_RESPONSES, StreamId};
pub use self::window::{DEFAULT_WINDOW, MAX_WINDOW};
