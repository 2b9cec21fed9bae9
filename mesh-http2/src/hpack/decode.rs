//! HPACK decoding.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::field::{Field, Name};
use super::table::{Length, Table};
use super::{DecodeError, huffman, integer};

/// Decodes the field blocks of one connection, in order.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
    /// Allocated when the peer first adds a short value.
    values: Option<Box<SmallValues>>,
}

/// Allocates the short values of the dynamic table's entries together: an entry may be encoded in
/// three bytes, and two allocations would cost more than the rest of its decoding.
///
/// The entries of the table are those that were added last, and so are their values: the table
/// holds at most two chunks more than its own size.
#[derive(Debug, Default)]
struct SmallValues {
    chunk: BytesMut,
}

/// Longer values are allocated separately.
const MAX_SMALL_VALUE: usize = 32;

const CHUNK_SIZE: usize = 512;

/// The decoder's state between the fragments of one field block.
#[derive(Debug, Default)]
pub(crate) struct DecodeProgress {
    has_fields: bool,
    size_updates: u8,
    /// Field lines of the block.
    pub(crate) lines: usize,
    /// Literals of fewer than [`SHORT_LITERAL`] bytes among them.
    pub(crate) short_literals: usize,
}

/// An encoded literal of fewer bytes costs more than the bytes themselves.
const SHORT_LITERAL: usize = 16;

/// Dynamic table size updates at the beginning of a field block. An encoder sends at most two (RFC
/// 7541, section 4.2).
const MAX_SIZE_UPDATES: u8 = 2;

/// A field that is encoded as a literal.
struct Literal {
    field: Field,
    length: Length,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(),
            values: None,
        }
    }

    /// Passes each field of a fragment of a field block to `sink`, with its size in a field
    /// section, until `sink` returns false; returns whether it did not. Removes the decoded bytes
    /// from `fragment`, and leaves the beginning of a field line that the next fragment continues.
    /// Malformed fields leave the dynamic table consistent; stopping early, or an error, does not.
    pub(crate) fn decode(
        &mut self,
        progress: &mut DecodeProgress,
        fragment: &mut &[u8],
        is_last: bool,
        mut sink: impl FnMut(Cow<'_, Field>, usize) -> bool,
    ) -> Result<bool, DecodeError> {
        while !fragment.is_empty() {
            let begin = *fragment;
            match self.next(progress, fragment, &mut sink) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(DecodeError::Truncated(_)) if !is_last => {
                    *fragment = begin;
                    break;
                }
                Err(broken) => return Err(broken),
            }
        }
        Ok(true)
    }

    /// Decodes a field line or a dynamic table size update. `fragment` must not be empty.
    fn next(
        &mut self,
        progress: &mut DecodeProgress,
        fragment: &mut &[u8],
        sink: &mut impl FnMut(Cow<'_, Field>, usize) -> bool,
    ) -> Result<bool, DecodeError> {
        let first = fragment.first().copied().unwrap_or_default();
        // RFC 7541, section 6: the high bits identify the representation.
        let wants_more = match first {
            0x80.. => {
                let index = integer::read(fragment, 7)?;
                let (field, length) = self.find(index)?;
                sink(Cow::Borrowed(field), length.size())
            }
            0x40..0x80 => {
                let Literal { field, length } = self.literal(progress, fragment, INDEXED_BITS)?;
                self.table.insert(field.clone(), length);
                sink(Cow::Owned(field), length.size())
            }
            0x20..0x40 if progress.has_fields => {
                return Err(DecodeError::Invalid(
                    "dynamic table size update after a field line",
                ));
            }
            0x20..0x40 if progress.size_updates == MAX_SIZE_UPDATES => {
                return Err(DecodeError::Invalid("too many dynamic table size updates"));
            }
            0x20..0x40 => {
                let size = integer::read(fragment, 5)?;
                if self.table.resize(size) {
                    progress.size_updates += 1;
                    return Ok(true);
                }
                return Err(DecodeError::Invalid(
                    "dynamic table size update beyond the limit",
                ));
            }
            0x10..0x20 => {
                let Literal { mut field, length } = self.literal(progress, fragment, 4)?;
                if let Field::Regular(_, value) = &mut field {
                    value.set_sensitive(true);
                }
                sink(Cow::Owned(field), length.size())
            }
            ..0x10 => {
                let Literal { field, length } = self.literal(progress, fragment, 4)?;
                sink(Cow::Owned(field), length.size())
            }
        };
        progress.has_fields = true;
        progress.lines += 1;
        Ok(wants_more)
    }

    fn find(&self, index: usize) -> Result<(&Field, Length), DecodeError> {
        self.table.get(index).ok_or(DecodeError::Invalid(
            "index of a field that is not in the tables",
        ))
    }

    /// `bits`: the number of bits in the first byte that belong to the index of the name.
    fn literal(
        &mut self,
        progress: &mut DecodeProgress,
        bytes: &mut &[u8],
        bits: u32,
    ) -> Result<Literal, DecodeError> {
        let encoded = bytes.len();
        let (name, name_length) = match integer::read(bytes, bits)? {
            0 => StringLiteral::read(bytes)?.with(|name| (Name::parse(name), name.len() as u32))?,
            index => {
                let (field, length) = self.find(index)?;
                (field.name(), length.name)
            }
        };
        let is_added = bits == INDEXED_BITS;
        let value = StringLiteral::read(bytes)?.with(|value| match value.len() {
            1..=MAX_SMALL_VALUE if is_added => self.values.get_or_insert_default().copy(value),
            _ => Bytes::copy_from_slice(value),
        })?;
        progress.short_literals += usize::from(encoded - bytes.len() < SHORT_LITERAL);
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

/// The bits of the name's index in a literal that is added to the dynamic table (RFC 7541, section
/// 6.2.1).
const INDEXED_BITS: u32 = 6;

impl SmallValues {
    fn copy(&mut self, value: &[u8]) -> Bytes {
        if self.chunk.capacity() < value.len() {
            self.chunk = BytesMut::with_capacity(CHUNK_SIZE);
        }
        self.chunk.extend_from_slice(value);
        self.chunk.split().freeze()
    }
}

/// A string literal (RFC 7541, section 5.2).
struct StringLiteral<'a> {
    bytes: &'a [u8],
    is_huffman: bool,
}

impl<'a> StringLiteral<'a> {
    fn read(input: &mut &'a [u8]) -> Result<Self, DecodeError> {
        const TRUNCATED: DecodeError = DecodeError::Truncated("incomplete string in a field block");
        let is_huffman = input.first().ok_or(TRUNCATED)? & 0x80 != 0;
        let length = integer::read(input, 7)?;
        let (bytes, rest) = input.split_at_checked(length).ok_or(TRUNCATED)?;
        *input = rest;
        Ok(Self { bytes, is_huffman })
    }

    fn with<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, DecodeError> {
        if self.is_huffman {
            huffman::with_decoded(self.bytes, read)
        } else {
            Ok(read(self.bytes))
        }
    }
}
