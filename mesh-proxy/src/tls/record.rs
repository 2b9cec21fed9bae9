//! TLS 1.3 records after the handshake, sealed and opened where they lie: how pods' traffic is
//! carried for half of what the library's copies cost.
//!
//! The library shakes hands ([`super::handshake`]) and keeps the key schedule and the tickets; what
//! is here is the record protocol of RFC 8446 §5 with what may follow a handshake: data, KeyUpdate,
//! NewSessionTicket, alerts. [`session`] and below are pure, [`stream`] moves the bytes. Decision:
//! ADR 0013.

mod cipher;
mod error;
mod incoming;
mod received;
mod schedule;
mod session;
mod slots;
mod stream;

pub(super) use self::received::ReceivedBytes;
pub(super) use self::schedule::KeySchedule;
pub(super) use self::session::Session;
pub(super) use self::slots::with as with_slots;
pub use self::stream::{BulkError, Moved, RecordStream};

/// Type, version, length.
const HEADER: usize = 5;

/// All three suites have the same.
const TAG: usize = 16;

/// What a record is longer than its content when it is not padded; one byte says what the content
/// is.
const OVERHEAD: usize = HEADER + 1 + TAG;

/// RFC 8446 §5.1.
const MAX_CONTENT: usize = 1 << 14;

/// RFC 8446 §5.2: the most that may follow a header.
const MAX_BODY: usize = MAX_CONTENT + 256;

const MAX_RECORD: usize = HEADER + MAX_BODY;

// Content types.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

#[cfg(test)]
mod tests;
