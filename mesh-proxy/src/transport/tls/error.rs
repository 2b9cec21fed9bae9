//! Errors of the record protocol and their alerts.

use std::io;

use rustls::AlertDescription;

/// Why a connection has failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("peer sent an unencrypted TLS record of type {0}")]
    Unencrypted(u8),
    #[error("peer sent a TLS record longer than the protocol allows")]
    TooLong,
    #[error(
        "cannot authenticate a TLS record: it was modified, repeated, omitted or reordered in transit"
    )]
    BadMac,
    #[error("peer sent a TLS record that contains only padding")]
    NoContent,
    #[error("peer sent a TLS record with content of unknown type {0}")]
    ContentType(u8),
    #[error("peer sent an empty TLS alert or handshake record")]
    EmptyFragment,
    #[error("peer interleaved a fragmented TLS handshake message with other records")]
    Interleaved,
    #[error("peer sent TLS handshake message {0} after the handshake")]
    UnexpectedMessage(u8),
    #[error("peer sent a malformed TLS {0}")]
    Malformed(&'static str),
    #[error("peer sent a TLS KeyUpdate that does not end its record")]
    KeyUpdateNotLast,
    #[error("peer sent a TLS KeyUpdate with unknown request value {0}")]
    InvalidKeyUpdate(u8),
    #[error("peer sent {0} consecutive TLS records without data")]
    TooManyWithoutData(u32),
    #[error("peer sent an invalid TLS session ticket")]
    InvalidTicket(#[source] rustls::Error),
    #[error("cannot derive the next TLS keys")]
    KeySchedule(#[source] rustls::Error),
    #[error("TLS cipher suite is not supported")]
    UnsupportedSuite,
    #[error("TLS key has sealed or opened the maximum number of records")]
    KeyExhausted,
    #[error("peer closed the connection with TLS alert {0:?}")]
    AlertReceived(AlertDescription),
}

impl RecordError {
    /// Returns the alert that RFC 8446 requires. A received alert is not answered.
    pub(super) fn alert(&self) -> Option<AlertDescription> {
        Some(match self {
            Self::Unencrypted(_)
            | Self::NoContent
            | Self::ContentType(_)
            | Self::EmptyFragment
            | Self::Interleaved
            | Self::UnexpectedMessage(_)
            | Self::KeyUpdateNotLast
            | Self::TooManyWithoutData(_) => AlertDescription::UnexpectedMessage,
            Self::TooLong => AlertDescription::RecordOverflow,
            Self::BadMac => AlertDescription::BadRecordMac,
            Self::Malformed(_) | Self::InvalidTicket(_) => AlertDescription::DecodeError,
            Self::InvalidKeyUpdate(_) => AlertDescription::IllegalParameter,
            Self::KeySchedule(_) | Self::UnsupportedSuite | Self::KeyExhausted => {
                AlertDescription::InternalError
            }
            Self::AlertReceived(_) => return None,
        })
    }
}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
