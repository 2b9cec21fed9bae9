//! Sockets and bytes: listening, protocol detection, connecting and copying.
//!
//! Runs on the data threads; the control thread uses [`connect`] too. Handles TCP, the first bytes
//! of TLS and HTTP, and Linkerd's transport header, independent of policies and requests. `inbound`
//! and `outbound` compose these modules.

pub(crate) mod connect;
pub(crate) mod copy;
pub mod detect;
mod ends;
pub mod header;
pub(crate) mod io;
pub(crate) mod listen;
pub(crate) mod original_dst;
pub(crate) mod reset;
pub(crate) mod revocation;
pub(crate) mod scratch;
pub(crate) mod socket;
mod source_port;
mod splice;
pub(crate) mod tls;
pub(crate) mod unix;

use std::time::Duration;

pub(crate) use self::ends::Stage;
pub use self::io::Io;
pub use self::scratch::Scratch;

/// Options of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// Idle time before TCP keep-alive probes, which are always enabled; `None` uses the kernel's
    /// default.
    pub(crate) keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT`: how long sent data may remain unacknowledged.
    pub(crate) user_timeout: Option<Duration>,
}
