//! Header blocks become fields.

use bytes::Bytes;

use super::field::{Field, Name};
use super::table::{Length, Table};
use super::{Broken, huffman, integer};

/// Reads the blocks of one connection, in their order.
#[derive(Debug)]
pub(crate) struct Decoder {
    table: Table,
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

    /// Hands each field of a whole block to `sink`, with what it counts for in a list, as long as that wants more; returns whether it did. Fields that are malformed leave the table as it should be; an end before
    /// the end, or an error, does not.
    pub(crate) fn decode(
        &mut self,
        mut block: &[u8],
        mut sink: impl FnMut(Field, usize) -> bool,
    ) -> Result<bool, Broken> {
        let mut has_fields = false;
        while let Some(&first) = block.first() {
            // RFC 7541, section 6: the high bits say what it is.
            let (field, size) = match first {
                0x80.. => {
                    let index = integer::read(&mut block, 7)?;
                    let (field, length) = self.find(index)?;
                    (field.clone(), length.size())
                }
                0x40..0x80 => {
                    let Literal { field, length } = self.literal(&mut block, 6)?;
                    self.table.insert(field.clone(), length);
                    (field, length.size())
                }
                0x20..0x40 if has_fields => {
                    return Err(Broken("the header table's size is changed behind a field"));
                }
                0x20..0x40 => {
                    let size = integer::read(&mut block, 5)?;
                    if !self.table.resize(size) {
                        return Err(Broken("the header table is made larger than it may be"));
                    }
                    continue;
                }
                0x10..0x20 => {
                    let Literal { mut field, length } = self.literal(&mut block, 4)?;
                    if let Field::Regular(_, value) = &mut field {
                        value.set_sensitive(true);
                    }
                    (field, length.size())
                }
                ..0x10 => {
                    let Literal { field, length } = self.literal(&mut block, 4)?;
                    (field, length.size())
                }
            };
            has_fields = true;
            if !sink(field, size) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn find(&self, index: usize) -> Result<(&Field, Length), Broken> {
        self.table.get(index).ok_or(Broken(
            "a header block names a field that is not in the table",
        ))
    }

    /// `bits`: how many of the first byte are the index of the name.
    fn literal(&self, block: &mut &[u8], bits: u32) -> Result<Literal, Broken> {
        let (name, name_length) = match integer::read(block, bits)? {
            0 => Text::read(block)?.with(|name| (Name::parse(name), name.len() as u32))?,
            index => {
                let (field, length) = self.find(index)?;
                (field.name(), length.name)
            }
        };
        let value = Text::read(block)?.with(Bytes::copy_from_slice)?;
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
struct Text<'a> {
    bytes: &'a [u8],
    is_coded: bool,
}

impl<'a> Text<'a> {
    fn read(block: &mut &'a [u8]) -> Result<Self, Broken> {
        const ENDS: Broken = Broken("a header block ends within a string");
        let is_coded = block.first().ok_or(ENDS)? & 0x80 != 0;
        let length = integer::read(block, 7)?;
        let (bytes, rest) = block.split_at_checked(length).ok_or(ENDS)?;
        *block = rest;
        Ok(Self { bytes, is_coded })
    }

    fn with<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R, Broken> {
        match self.is_coded {
            true => huffman::with_decoded(self.bytes, read),
            false => Ok(read(self.bytes)),
        }
    }
}
