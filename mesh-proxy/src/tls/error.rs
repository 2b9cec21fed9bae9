//! What can go wrong with certificates and handshakes.

use std::io;

use mesh_core::identity::{Identity, IdentityError};

/// Why issued material cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error(
        "the issued certificate does not verify against the trust anchors (was the issuer rotated without distributing its root?)"
    )]
    NotTrusted(#[source] rustls::Error),
    #[error("the issued certificate is for {found}, not for {expected}")]
    WrongIdentity { expected: Identity, found: Identity },
    #[error("the issued certificate is unusable")]
    Unusable(#[source] PeerError),
    #[error("the issued certificate does not belong to the key that was certified")]
    WrongKey(#[source] rustls::Error),
    #[error("TLS could not be set up")]
    Setup(#[source] rustls::Error),
    #[error("no signing request could be made")]
    SigningRequest(#[source] rcgen::Error),
}

/// Why a peer's certificate is not accepted, beyond what chain verification says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate holds {0} identities (DNS names and URIs) instead of exactly one")]
    IdentityCount(usize),
    #[error("the certificate's identity is malformed")]
    Identity(#[source] IdentityError),
    #[error("the peer is {found}, but {expected} was asked for")]
    Unexpected { expected: Identity, found: Identity },
    #[error("the certificate has expired since the session began")]
    Expired,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("TLS handshake failed")]
    Handshake(#[from] io::Error),
    #[error("TLS handshake did not end within {0:?}")]
    TimedOut(std::time::Duration),
    #[error("the peer is not accepted")]
    Peer(#[source] PeerError),
    #[error("{0:?} cannot be used as a TLS server name")]
    ServerName(String),
}
