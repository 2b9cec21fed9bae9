//! HTTP/2 (RFC 9113) without input and output: bytes that were read go into a [`Connection`], bytes to be written come out of it, and streams are polled in between.
//!
//! Made for a proxy's data thread, where one task moves the bytes of a connection and each stream is driven by the task of its request. So nothing is locked, nothing is handed from task to task, and an idle
//! connection holds no buffer. What a connection may cost is bounded while its frames are read, each once: [`Limits`] says by how much, [`Violation`] what was too much.
//!
//! From the bottom up: [`hpack`] and [`frame`] know bytes, [`message`] knows what a request and a response must be, [`stream`] and [`window`] what is open and how much may be sent, [`account`] what the other side has
//! spent. [`Connection`] puts them together.

mod account;
mod connection;
mod error;
mod frame;
mod hpack;
mod message;
mod output;
mod settings;
mod stream;
mod window;

pub use self::account::Violation;
pub use self::connection::{Accepted, Awaited, Config, Connection, Role};
pub use self::error::{Error, Reason};
pub use self::message::Refused;
pub use self::output::{Buffers, Output};
pub use self::settings::Limits;
pub use self::stream::{Piece, StreamId};

/// What a client sends before its first frame (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What streams and connections may send before anything was said about it (RFC 9113, section 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window there is (RFC 9113, section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;
