//! TLS connections after their handshake, which [`crate::tls`] performs. The only module of the
//! transport that names rustls.
//!
//! [`RustlsStream`] is for calls to the control plane. [`RecordStream`] is for traffic between
//! pods: it seals and opens records in place, which halves the CPU time that rustls' copies cost.
//! rustls keeps the key schedule and the tickets; this module implements the record protocol of
//! RFC 8446 section 5 with the content that may follow a handshake: application data, KeyUpdate,
//! NewSessionTicket and alerts. Only [`stream`] does I/O. Decision: ADR 0013.

pub(crate) mod buffers;
mod error;
mod protection;
mod reassembler;
pub(crate) mod received;
mod schedule;
mod session;
mod stream;

pub(crate) use self::schedule::KeySchedule;
pub(crate) use self::session::Session;
pub(crate) use self::stream::{BulkError, BulkTransfer, RecordStream};

/// A TLS stream over `T` whose records rustls handles.
pub(crate) type RustlsStream<T> = tokio_rustls::TlsStream<T>;

/// A record header: content type, version and length.
const HEADER_LEN: usize = 5;

/// The AEAD tag, equally long in all three suites.
const TAG_LEN: usize = 16;

/// How much longer an unpadded record is than its content. One byte is the content type.
const OVERHEAD: usize = HEADER_LEN + 1 + TAG_LEN;

/// The longest content of a record (RFC 8446, section 5.1).
const MAX_CONTENT: usize = 1 << 14;

/// The longest encrypted part of a record (RFC 8446, section 5.2).
const MAX_CIPHERTEXT: usize = MAX_CONTENT + 256;

const MAX_RECORD: usize = HEADER_LEN + MAX_CIPHERTEXT;

// Content types.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

#[cfg(test)]
mod tests;
