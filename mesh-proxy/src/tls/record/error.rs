//! What can be wrong with a record, and what the peer is told about it.

use std::io;

use rustls::AlertDescription;

/// Why a connection cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(in crate::tls) enum RecordError {
    #[error("the peer sent a TLS record of type {0} where only encrypted ones are allowed")]
    Unprotected(u8),
    #[error("the peer sent a TLS record that is longer than the protocol allows")]
    TooLong,
    #[error(
        "a TLS record does not authenticate: it was changed, repeated, left out or moved on its way"
    )]
    Forged,
    #[error("the peer sent a TLS record of nothing but padding")]
    NoContent,
    #[error("the peer sent a TLS record with content of type {0}")]
    ContentType(u8),
    #[error("the peer sent an empty TLS alert or handshake record")]
    EmptyFragment,
    #[error("the peer sent other records in the middle of a TLS handshake message")]
    Interleaved,
    #[error("the peer sent TLS handshake message {0} after the handshake")]
    Message(u8),
    #[error("the peer sent a malformed TLS {0}")]
    Malformed(&'static str),
    #[error("the peer changed its TLS keys in the middle of a record")]
    Unaligned,
    #[error("the peer asked for a TLS key update with the unknown value {0}")]
    UpdateRequest(u8),
    #[error("the peer sent {0} TLS records in a row without data")]
    Quiet(u32),
    #[error("the peer sent a TLS session ticket that cannot be used")]
    Ticket(#[source] rustls::Error),
    #[error("the next TLS keys cannot be derived")]
    Schedule(#[source] rustls::Error),
    #[error("TLS negotiated a cipher suite that was not offered")]
    Suite,
    #[error("the TLS keys are used up")]
    Exhausted,
    #[error("the peer ended the connection with TLS alert {0:?}")]
    Alerted(AlertDescription),
}

impl RecordError {
    /// What RFC 8446 has us say. Nothing in answer to an alert.
    pub(super) fn alert(&self) -> Option<AlertDescription> {
        Some(match self {
            Self::Unprotected(_)
            | Self::NoContent
            | Self::ContentType(_)
            | Self::EmptyFragment
            | Self::Interleaved
            | Self::Message(_)
            | Self::Unaligned
            | Self::Quiet(_) => AlertDescription::UnexpectedMessage,
            Self::TooLong => AlertDescription::RecordOverflow,
            Self::Forged => AlertDescription::BadRecordMac,
            Self::Malformed(_) | Self::Ticket(_) => AlertDescription::DecodeError,
            Self::UpdateRequest(_) => AlertDescription::IllegalParameter,
            Self::Schedule(_) | Self::Suite | Self::Exhausted => AlertDescription::InternalError,
            Self::Alerted(_) => return None,
        })
    }
}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
