//! HPACK encoding.

use std::collections::VecDeque;
use std::sync::LazyLock;

use ahash::RandomState;
use mesh_planted::Bug;

use super::field::STATIC_TABLE;
use super::{FIELD_OVERHEAD, MAX_TABLE_SIZE, integer};

/// Encodes the field blocks of one connection.
///
/// A field is added to the dynamic table when it is sent for the second time within [`RECENT`]
/// different fields: ids, dates and lengths differ each time, and would only evict the others.
/// Fields are stored as bytes, because most connections are idle most of the time, and their tables
/// with them.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// The most recent first.
    entries: VecDeque<Entry>,
    /// Names and values of `entries`, the oldest first, after the bytes of evicted entries.
    bytes: Vec<u8>,
    /// Number of bytes at the front of `bytes` that belong to evicted entries.
    evicted: usize,
    size: usize,
    max: usize,
    /// The dynamic table size update that the next field block must begin with.
    size_update: SizeUpdate,
    /// Hashes of recently sent fields, by their low bits. Allocated with the first field.
    recent: Option<Box<[u32; RECENT]>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    name: u16,
    value: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeUpdate {
    None,
    /// The smallest size since the last field block, which precedes the current one.
    Pending(usize),
}

/// The number of different fields that an application usually repeats.
const RECENT: usize = 64;

/// The same in all processes, so that the same fields are encoded in the same bytes. A peer that
/// finds fields with equal hashes makes field blocks longer, and nothing else: entries are
/// compared.
static HASHES: RandomState = RandomState::with_seeds(1, 2, 3, 4);

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            evicted: 0,
            size: 0,
            max: MAX_TABLE_SIZE as usize,
            size_update: SizeUpdate::None,
            recent: None,
        }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE.
    pub(crate) fn resize(&mut self, max: u32) {
        let max = max.min(MAX_TABLE_SIZE) as usize;
        if max == self.max {
            return;
        }
        let smallest = match self.size_update {
            SizeUpdate::None => max,
            SizeUpdate::Pending(before) => before.min(max),
        };
        self.size_update = SizeUpdate::Pending(smallest);
        self.max = max;
        self.evict(max);
    }

    /// Begins a field block.
    pub(crate) fn begin(&mut self, block: &mut Vec<u8>) {
        if let SizeUpdate::Pending(smallest) =
            std::mem::replace(&mut self.size_update, SizeUpdate::None)
        {
            if smallest < self.max {
                integer::write(block, 0x20, 5, smallest);
            }
            integer::write(block, 0x20, 5, self.max);
        }
    }

    pub(crate) fn field(&mut self, block: &mut Vec<u8>, name: &str, value: &[u8]) {
        let names = static_names(name);
        for index in names.clone() {
            let (_, static_value) = STATIC_TABLE[index - 1];
            if !static_value.is_empty() && static_value.as_bytes() == value {
                integer::write(block, 0x80, 7, index);
                return;
            }
        }
        let hash = HASHES.hash_one((name, value)) as u32;
        if let Some(position) = self.find(hash, name, value) {
            // The oldest entry has no older one.
            let has_older = position + 1 < self.entries.len();
            let is_wrong = position > 0 && has_older && Bug::EncoderIndexOffByOne.is_planted();
            let position = position + usize::from(is_wrong);
            integer::write(block, 0x80, 7, STATIC_TABLE.len() + 1 + position);
            return;
        }
        let size = name.len() + value.len() + FIELD_OVERHEAD;
        let index = names.start;
        // A field of more than a quarter of the table would evict too many others.
        if size <= self.max / 4 && self.was_sent_recently(hash) {
            literal(block, (0x40, 6), index, name, value);
            self.insert(hash, name, value);
        } else {
            literal(block, (0, 4), index, name, value);
        }
    }

    /// Encodes a field that intermediaries must not index either (RFC 7541, section 7.1.3).
    pub(crate) fn sensitive(&self, block: &mut Vec<u8>, name: &str, value: &[u8]) {
        literal(block, (0x10, 4), static_names(name).start, name, value);
    }

    /// Returns whether the field was sent recently, and records it.
    fn was_sent_recently(&mut self, hash: u32) -> bool {
        let recent = self.recent.get_or_insert_with(|| Box::new([0; RECENT]));
        std::mem::replace(&mut recent[hash as usize % RECENT], hash) == hash
    }

    fn find(&self, hash: u32, name: &str, value: &[u8]) -> Option<usize> {
        let mut end = self.bytes.len();
        for (position, entry) in self.entries.iter().enumerate() {
            let start = end - entry.length();
            if entry.hash == hash {
                let (entry_name, entry_value) = self.bytes[start..end].split_at(entry.name.into());
                if entry_name == name.as_bytes() && entry_value == value {
                    return Some(position);
                }
            }
            end = start;
        }
        None
    }

    fn insert(&mut self, hash: u32, name: &str, value: &[u8]) {
        let entry = Entry {
            hash,
            // Both fit, because the table is smaller than 64 KiB.
            name: name.len() as u16,
            value: value.len() as u16,
        };
        self.evict(self.max - entry.size());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(value);
        self.size += entry.size();
        self.entries.push_front(entry);
    }

    fn evict(&mut self, target: usize) {
        while self.size > target
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.size();
            self.evicted += entry.length();
        }
        // Moves each byte at most once, and bounds the buffer.
        if self.evicted > self.bytes.len() / 2 {
            self.bytes.drain(..self.evicted);
            self.evicted = 0;
        }
    }
}

impl Entry {
    fn length(self) -> usize {
        usize::from(self.name) + usize::from(self.value)
    }

    fn size(self) -> usize {
        self.length() + FIELD_OVERHEAD
    }
}

/// Writes a literal field line. `kind`: the high bits of the first byte, and the number of bits
/// that remain for `index`, the index of the name, 0 if it is in no table.
fn literal(block: &mut Vec<u8>, kind: (u8, u32), index: usize, name: &str, value: &[u8]) {
    let (prefix, bits) = kind;
    integer::write(block, prefix, bits, index);
    if index == 0 {
        write_string(block, name.as_bytes());
    }
    write_string(block, value);
}

fn write_string(block: &mut Vec<u8>, bytes: &[u8]) {
    integer::write(block, 0, 7, bytes.len());
    block.extend_from_slice(bytes);
}

/// An open-addressing hash table of the names in the static table: the first index of each name and
/// the number of its entries.
static NAMES: LazyLock<[Option<(u8, u8)>; SLOTS]> = LazyLock::new(|| {
    let mut slots = [None; SLOTS];
    for (index, (name, _)) in STATIC_TABLE.iter().enumerate() {
        let mut slot = slot(name);
        loop {
            match &mut slots[slot] {
                None => slots[slot] = Some((index as u8 + 1, 1)),
                Some((first, count)) if STATIC_TABLE[usize::from(*first) - 1].0 == *name => {
                    *count += 1;
                }
                Some(_) => {
                    slot = (slot + 1) % SLOTS;
                    continue;
                }
            }
            break;
        }
    }
    slots
});

const SLOTS: usize = 256;

fn slot(name: &str) -> usize {
    let mixed = match name.as_bytes() {
        [first, .., before, last] => {
            let [first, before, last] = [first, before, last].map(|byte| usize::from(*byte));
            name.len() * 41 + first * 7 + before * 31 + last * 3
        }
        short => short.len(),
    };
    mixed % SLOTS
}

/// Returns the indices of `name` in the static table, or an empty range at 0.
fn static_names(name: &str) -> std::ops::Range<usize> {
    let mut slot = slot(name);
    while let Some((first, count)) = NAMES[slot] {
        let first = usize::from(first);
        if STATIC_TABLE[first - 1].0 == name {
            return first..first + usize::from(count);
        }
        slot = (slot + 1) % SLOTS;
    }
    0..0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_names_finds_every_name_of_the_static_table() {
        for (index, (name, _)) in STATIC_TABLE.iter().enumerate() {
            assert!(static_names(name).contains(&(index + 1)), "{name}");
        }
        for name in ["", "x", "ab", "accepts", "x-request-id"] {
            assert_eq!(static_names(name), 0..0, "{name}");
        }
    }

    #[test]
    fn field_of_more_than_a_quarter_of_the_table_is_not_indexed() {
        for (name, value, is_indexed) in [
            (40, 40, true),
            (500, 492, true),
            (500, 493, false),
            (1100, 0, false),
        ] {
            let (name, value) = ("n".repeat(name), "v".repeat(value));
            let mut encoder = Encoder::new();
            let mut block = Vec::new();
            for _ in 0..3 {
                block.clear();
                encoder.field(&mut block, &name, value.as_bytes());
            }
            assert_eq!(
                block.len() <= 2,
                is_indexed,
                "{}, {}",
                name.len(),
                value.len()
            );
        }
    }

    #[test]
    fn evicted_fields_are_removed_from_memory() {
        let mut encoder = Encoder::new();
        for number in 0..1_000 {
            let value = format!("{number:0>100}");
            // Only a field that is repeated enters the table.
            for _ in 0..2 {
                encoder.field(&mut Vec::new(), "x", value.as_bytes());
            }
        }
        assert!(encoder.size <= encoder.max, "{}", encoder.size);
        let held = encoder.bytes.len();
        assert!(held <= 2 * encoder.max, "{held}");
    }
}
