//! Header blocks become fields.

use std::borrow::Cow;

use bytes::Bytes;

use super::field::{Field, Name};
use super::table::{Length, Table};
use super::{DecodeError, huffman, integer};

/// Reads the blocks of one connection, in their order.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
}

/// What the decoder remembers between the fragments of one field block.
#[derive(Debug, Default)]
pub(crate) struct DecodeProgress {
    has_fields: bool,
}

/// A field that stands in the block rather than in a table.
struct Literal {
    field: Field,
    length: Length,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(),
        }
    }

    /// Passes each field of a fragment of a field block to `sink`, with its size in a field
    /// section, until `sink` returns false; returns whether it did not. Removes what it has decoded
    /// from `piece`: the beginning of a field line that the next fragment continues is left.
    /// Malformed fields leave the table in step; stopping early, or an error, does not.
    pub(crate) fn decode(
        &mut self,
        progress: &mut DecodeProgress,
        piece: &mut &[u8],
        is_last: bool,
        mut sink: impl FnMut(Cow<'_, Field>, usize) -> bool,
    ) -> Result<bool, DecodeError> {
        while !piece.is_empty() {
            let begin = *piece;
            match self.next(progress, piece, &mut sink) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(DecodeError::Truncated(_)) if !is_last => {
                    *piece = begin;
                    break;
                }
                Err(broken) => return Err(broken),
            }
        }
        Ok(true)
    }

    /// Decodes a field line, or a change of the table's size. `piece` must not be empty.
    fn next(
        &mut self,
        progress: &mut DecodeProgress,
        piece: &mut &[u8],
        sink: &mut impl FnMut(Cow<'_, Field>, usize) -> bool,
    ) -> Result<bool, DecodeError> {
        let first = piece.first().copied().unwrap_or_default();
        // RFC 7541, section 6: the high bits say what it is.
        let wants_more = match first {
            0x80.. => {
                let index = integer::read(piece, 7)?;
                let (field, length) = self.find(index)?;
                sink(Cow::Borrowed(field), length.size())
            }
            0x40..0x80 => {
                let Literal { field, length } = self.literal(piece, 6)?;
                self.table.insert(field.clone(), length);
                sink(Cow::Owned(field), length.size())
            }
            0x20..0x40 if progress.has_fields => {
                return Err(DecodeError::Invalid(
                    "the header table's size is changed behind a field",
                ));
            }
            0x20..0x40 => {
                let size = integer::read(piece, 5)?;
                return match self.table.resize(size) {
                    true => Ok(true),
                    false => Err(DecodeError::Invalid(
                        "the header table is made larger than it may be",
                    )),
                };
            }
            0x10..0x20 => {
                let Literal { mut field, length } = self.literal(piece, 4)?;
                if let Field::Regular(_, value) = &mut field {
                    value.set_sensitive(true);
                }
                sink(Cow::Owned(field), length.size())
            }
            ..0x10 => {
                let Literal { field, length } = self.literal(piece, 4)?;
                sink(Cow::Owned(field), length.size())
            }
        };
        progress.has_fields = true;
        Ok(wants_more)
    }

    fn find(&self, index: usize) -> Result<(&Field, Length), DecodeError> {
        self.table.get(index).ok_or(DecodeError::Invalid(
            "a header block names a field that is not in the table",
        ))
    }

    /// `bits`: how many of the first byte are the index of the name.
    fn literal(&self, block: &mut &[u8], bits: u32) -> Result<Literal, DecodeError> {
        let (name, name_length) = match integer::read(block, bits)? {
            0 => StringLiteral::read(block)?.with(|name| (Name::parse(name), name.len() as u32))?,
            index => {
                let (field, length) = self.find(index)?;
                (field.name(), length.name)
            }
        };
        let value = StringLiteral::read(block)?.with(Bytes::copy_from_slice)?;
        let length = Length {
            name: name_length,
            value: value.len() as u32,
        };
        Ok(Literal {
            field: Field::new(name, value),
            length,
        })
    }
}

/// A string in a block (RFC 7541, section 5.2).
struct StringLiteral<'a> {
    bytes: &'a [u8],
    is_huffman: bool,
}

impl<'a> StringLiteral<'a> {
    fn read(block: &mut &'a [u8]) -> Result<Self, DecodeError> {
        const TRUNCATED: DecodeError =
            DecodeError::Truncated("a header block ends within a string");
        let is_huffman = block.first().ok_or(TRUNCATED)? & 0x80 != 0;
        let length = integer::read(block, 7)?;
        let (bytes, rest) = block.split_at_checked(length).ok_or(TRUNCATED)?;
        *block = rest;
        Ok(Self { bytes, is_huffman })
    }

    fn with<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DecodeError> {
        match self.is_huffman {
            true => huffman::with_decoded(self.bytes, read),
            false => Ok(read(self.bytes)),
        }
    }
}
