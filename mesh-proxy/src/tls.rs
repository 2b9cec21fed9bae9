//! Mutual TLS between proxies. The only module that names the TLS library.
//!
//! [`Credentials`] are everything one certificate makes possible: accepting from and connecting to
//! peers of the mesh. The control thread makes them whenever a certificate is issued or the trust
//! anchors change and publishes them through [`CredentialsRx`]; data threads take the newest for
//! each connection. They are immutable, and everything that must not outlive them (tickets,
//! remembered sessions) lives inside, so that a new generation never resumes what an old one
//! negotiated.
//!
//! Rules that hold for every connection: TLS 1.3 only; a peer's certificate chains to a trust
//! anchor and holds exactly one identity; a server's identity is the one that discovery named. A
//! resumed session is held to the same rules.
//!
//! Who makes the records depends on what they carry ([`Purpose`]): [`record`] for what pods say to
//! each other, after [`handshake`]; the library for the control plane.

mod chains;
pub mod client;
mod credentials;
mod crypto;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod record;
mod request;
pub mod server;
mod sessions;
mod trust;
mod verify;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::credentials::{Credentials, Issued};
pub use self::crypto::export_rustls_info;
pub use self::error::{CredentialsError, PeerError, TlsError};
pub use self::record::{BulkError, Moved, RecordStream};
pub use self::request::SigningRequest;
pub use self::trust::{TrustAnchors, TrustAnchorsError};

/// The newest credentials; `None` until the first certificate is issued.
pub type CredentialsRx = watch::Receiver<Option<Arc<Credentials>>>;

/// What a connection is meant to carry, as far as that is known before its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// What pods say to each other, perhaps very much: records are sealed and opened in place.
    Traffic,
    /// Calls to the control plane: the library makes the records.
    Control,
}

/// Offered when the client wants to send a transport header, selected by proxies that understand
/// it.
const TRANSPORT_ALPN: &[u8] = b"transport.l5d.io/v1";

#[cfg(test)]
pub(crate) mod tests;
