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

pub use self::io::Io;
pub use self::scratch::Scratch;
