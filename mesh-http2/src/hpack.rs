//! HPACK (RFC 7541): encoding and decoding of field blocks.
//!
//! [`Decoder`] accepts everything that the RFC allows. [`Encoder`] uses little of it: literals are
//! not Huffman-coded, because in a cluster's network bytes are cheaper than the cycles that both
//! endpoints would spend, and only fields that recur are added to the dynamic table.

mod decode;
mod encode;
mod field;
mod huffman;
mod integer;
mod table;

pub(crate) use self::decode::{DecodeProgress, Decoder};
pub(crate) use self::encode::Encoder;
pub(crate) use self::field::{Field, PseudoHeader};

/// Initial SETTINGS_HEADER_TABLE_SIZE (RFC 9113, section 6.5.2), in bytes. Larger tables are not
/// used.
pub(crate) const MAX_TABLE_SIZE: u32 = 4096;

/// Bytes that a field counts for in addition to its name and value (RFC 7541, section 4.1; RFC
/// 9113, section 6.5.2).
pub(crate) const FIELD_OVERHEAD: usize = 32;

/// An invalid field block. The dynamic tables of both endpoints differ afterwards, so that the
/// connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub(crate) enum DecodeError {
    /// The fragment ends within a field line, which the next one may complete.
    Truncated(&'static str),
    Invalid(&'static str),
}

impl DecodeError {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Truncated(message) | Self::Invalid(message) => message,
        }
    }
}

#[cfg(test)]
mod tests;
