//! Sockets and bytes: listening, protocol detection, connecting and copying.
//!
//! Runs on the data threads; the control thread uses [`connect`] too. Handles TCP, the first bytes
//! of TLS and HTTP, and Linkerd's transport header, independent of policies and requests. `inbound`
//! and `outbound` compose these modules.

pub mod connect;
pub mod copy;
pub mod detect;
pub mod header;
pub mod io;
pub mod listen;
pub mod original_dst;
pub mod scratch;
mod splice;
pub mod tls;

use std::time::Duration;

pub use self::io::Io;
pub use self::scratch::Scratch;

/// Options of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Idle time before TCP keep-alive probes, which are always enabled; `None` uses the kernel's
    /// default.
    pub keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT`: how long sent data may remain unacknowledged.
    pub user_timeout: Option<Duration>,
}
