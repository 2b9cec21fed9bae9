//! Converts offsets in the file of a program, as perf prints them, to addresses of its line tables.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, bail};

/// The parts of a program that are loaded.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Segments(Vec<Segment>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    offset: u64,
    address: u64,
    length: u64,
}

/// The file header and the program headers are within the first page.
const HEADERS: u64 = 4096;
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
const LOAD: u64 = 1;

impl Segments {
    /// Reads the program headers of a 64-bit little-endian ELF file.
    pub(super) fn read(program: &Path) -> anyhow::Result<Self> {
        let mut headers = Vec::new();
        File::open(program)
            .and_then(|file| file.take(HEADERS).read_to_end(&mut headers))
            .with_context(|| format!("read {}", program.display()))?;
        let segments = Self::parse(&headers);
        segments.with_context(|| format!("{} is not a 64-bit ELF program", program.display()))
    }

    fn parse(headers: &[u8]) -> anyhow::Result<Self> {
        if !headers.starts_with(MAGIC) {
            bail!("it does not begin with ELF, 64 bits, little-endian");
        }
        let number = |at: u64, length: usize| -> anyhow::Result<u64> {
            let at = usize::try_from(at)?;
            let bytes = headers.get(at..at + length);
            let bytes = bytes.context("the program headers are not in the first page")?;
            let digits = bytes.iter().rev();
            Ok(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let (first, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut segments = Vec::new();
        for index in 0..count {
            let header = first + index * size;
            if number(header, 4)? == LOAD {
                segments.push(Segment {
                    offset: number(header + 8, 8)?,
                    address: number(header + 16, 8)?,
                    length: number(header + 32, 8)?,
                });
            }
        }
        Ok(Self(segments))
    }

    /// Returns the address of the byte at an offset.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let segments = self.0.iter();
        let mut within = segments.filter_map(|segment| {
            let distance = offset.checked_sub(segment.offset)?;
            (distance < segment.length).then(|| segment.address + distance)
        });
        within.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_converted_by_their_segment() {
        let segment = |offset, address, length| Segment {
            offset,
            address,
            length,
        };
        let segments = Segments(vec![segment(0, 0, 0x100), segment(0x100, 0x1100, 0x50)]);
        for (offset, address) in [
            (0x10, Some(0x10)),
            (0x100, Some(0x1100)),
            (0x14f, Some(0x114f)),
            (0x150, None),
        ] {
            assert_eq!(segments.address(offset), address, "{offset:#x}");
        }
    }

    #[test]
    fn segments_of_this_program_are_read() {
        let own = std::env::current_exe().expect("this program has a file");
        let segments = Segments::read(&own).expect("it is an ELF program");
        assert_eq!(segments.address(0), Some(0), "{segments:?}");
        assert!(segments.0.len() > 1);
        assert!(Segments::parse(b"#!/bin/sh").is_err());
        assert!(Segments::parse(MAGIC).is_err());
    }
}
