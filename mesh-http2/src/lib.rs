//! HTTP/2 (RFC 9113) without input and output: bytes that were read go into a [`Connection`], bytes
//! to be written come out of it, and streams are polled in between.
//!
//! Made for a proxy's data thread, where one task moves the bytes of a connection and each stream
//! is driven by the task of its request. So nothing is locked, nothing is handed from task to task,
//! and an idle connection holds no buffer. What a connection may cost is bounded while its frames
//! are read, each once: [`Limits`] says by how much, [`LimitExceeded`] what was too much.
//!
//! From the bottom up: [`hpack`] and [`frame`] know bytes, [`message`] knows what a request and a
//! response must be, [`stream`] and [`window`] what is open and how much may be sent, [`account`]
//! what the other side has spent. [`Connection`] puts them together.

mod connection;
mod error;
mod flood;
mod frame;
mod hpack;
mod message;
mod output;
mod settings;
mod stream;
mod window;

pub use self::connection::{AcceptedStream, Config, Connection, PendingInput, WORK_PER_TURN};
pub use self::error::{Error, ErrorCode, LimitExceeded};
pub use self::message::FieldSectionLimit;
pub use self::output::{BufferPool, Output};
pub use self::settings::{Limits, Role};
pub use self::stream::{BodyFrame, MAX_INTERIM_RESPONSES, StreamId};
pub use self::window::{DEFAULT_WINDOW, MAX_WINDOW};
