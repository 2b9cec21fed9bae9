//! Header compression (RFC 7541): blocks of bytes become fields, and the other way round.
//!
//! [`Decoder`] takes whatever the RFC allows. [`Encoder`] uses little of it: literals are not
//! Huffman-coded, because in a pod's network bytes are cheaper than the cycles that both sides
//! would spend on them, and only fields that come again are put into the table.

mod decode;
mod encode;
mod field;
mod huffman;
mod integer;
mod table;

pub(crate) use self::decode::{DecodeProgress, Decoder};
pub(crate) use self::encode::Encoder;
pub(crate) use self::field::{Field, PseudoHeader};

/// RFC 9113, section 6.5.2: what tables hold until somebody says otherwise. More is never used.
pub(crate) const MAX_TABLE_SIZE: u32 = 4096;

/// What each field counts for in a table or a list besides its bytes (RFC 7541, section 4.1; RFC
/// 9113, section 6.5.2).
pub(crate) const FIELD_OVERHEAD: usize = 32;

/// A block that is not one: both tables are out of step, and the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub(crate) enum DecodeError {
    /// The block ends within a field line.
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
