//! Mutual TLS between proxies: credentials and handshakes.
//!
//! [`Credentials`] hold a certificate with its key and the TLS configurations for accepting from
//! and connecting to peers of the mesh. The control thread creates them whenever a certificate is
//! issued or the trust anchors change and publishes them through [`CredentialsRx`]; data threads
//! take the current ones for each connection. They are immutable and own everything that must not
//! outlive them (tickets, sessions), so a new generation never resumes a session of an old one.
//!
//! Rules for every connection, also for resumed sessions: TLS 1.3 only; a peer's certificate holds
//! exactly one identity and chains to a trust anchor of this name; a server's identity is the one
//! that discovery named; and no identity is one that is denied.
//!
//! The implementation of the record protocol depends on the [`Purpose`]: [`crate::transport::tls`]
//! carries traffic between pods, after [`handshake`]; rustls carries calls to the control plane.

mod certificate;
mod chains;
pub(crate) mod client;
mod credentials;
mod crypto;
mod csr;
mod error;
pub(crate) mod handshake;
mod peers;
pub(crate) mod server;
mod sessions;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
mod svid;
mod trust;
mod verify;

use std::sync::Arc;

use crate::watch;

pub(crate) use self::credentials::{Credentials, IssuedCertificate};
pub(crate) use self::crypto::export_rustls_info;
pub(crate) use self::csr::CertificateRequest;
pub(crate) use self::error::{CredentialsError, TlsError};
pub(crate) use self::peers::Peers;
pub(crate) use self::trust::{DomainBundles, TrustAnchors, TrustAnchorsError};

/// The current credentials; `None` until the first certificate is issued.
pub(crate) type CredentialsRx = watch::Receiver<Option<Arc<Credentials>>>;

/// What a connection carries, as far as that is known before its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Traffic between pods, which may be bulk: [`crate::transport::tls::RecordStream`] seals and
    /// opens records in place.
    Traffic,
    /// Calls to the control plane: rustls seals and opens the records.
    Control,
}

#[cfg(test)]
pub(crate) mod tests;
