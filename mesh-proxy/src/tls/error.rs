//! Errors of certificates and handshakes.

use std::io;

use mesh_core::identity::{Identity, IdentityError};

/// Why [`super::Credentials`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CredentialsError {
    #[error(
        "issued certificate does not chain to the trust anchors (was the issuer rotated without distributing its root?)"
    )]
    NotTrusted(#[source] rustls::Error),
    #[error("issued certificate identity mismatch: expected {expected}, got {found}")]
    WrongIdentity { expected: Identity, found: Identity },
    #[error("invalid issued certificate")]
    InvalidCertificate(#[source] PeerError),
    #[error("issued certificate does not match its private key")]
    WrongKey(#[source] rustls::Error),
    #[error("invalid private key, expected PKCS #8 in DER of ECDSA, Ed25519 or RSA")]
    InvalidKey(#[source] rustls::Error),
    #[error("chain of {found} certificates, expected at most {most}")]
    ChainLength { found: usize, most: usize },
    #[error("cannot build the TLS configuration")]
    Setup(#[source] rustls::Error),
    #[error("cannot create a certificate request")]
    CertificateRequest(#[source] rcgen::Error),
}

/// Why a peer's certificate is rejected although its chain is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("malformed certificate")]
    Malformed,
    #[error(
        "certificate holds {uris} URIs and {dns_names} DNS names, expected one URI, or else one DNS name"
    )]
    WrongIdentityCount { uris: usize, dns_names: usize },
    #[error("certificate of a SPIFFE identity is for signing other certificates")]
    SigningCertificate,
    #[error("invalid identity in certificate")]
    InvalidIdentity(#[source] IdentityError),
    #[error("peer identity mismatch: expected {expected}, got {found}")]
    IdentityMismatch { expected: Identity, found: Identity },
    #[error("certificate of the resumed session has expired")]
    Expired,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("TLS handshake failed")]
    Handshake(#[from] io::Error),
    #[error("TLS handshake timed out after {0:?}")]
    TimedOut(std::time::Duration),
    #[error("peer certificate rejected")]
    Peer(#[source] PeerError),
    #[error("invalid TLS server name {0:?}")]
    ServerName(String),
    #[error("the trust domain of {0} is no longer trusted")]
    Revoked(Identity),
    #[error("the identity {0} is denied")]
    Denied(Identity),
}
