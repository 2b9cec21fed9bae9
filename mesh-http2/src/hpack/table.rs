//! The decoder's dynamic table (RFC 7541, section 2.3).

use std::collections::VecDeque;

use mesh_planted::Bug;

use super::field::{Field, STATIC_FIELDS, STATIC_TABLE};
use super::{FIELD_OVERHEAD, MAX_TABLE_SIZE};

/// Fields by index: the static table, then the dynamic table, the most recent first. Allocates
/// nothing until the peer uses it.
#[derive(Debug)]
pub(super) struct Table {
    /// The most recent first.
    entries: VecDeque<Entry>,
    size: usize,
    /// The current maximum size, in bytes.
    max: usize,
}

#[derive(Debug)]
struct Entry {
    field: Field,
    length: Length,
}

/// The lengths of a field, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) name: u32,
    pub(super) value: u32,
}

impl Length {
    /// The field's size in tables and field sections.
    pub(super) fn size(self) -> usize {
        self.name as usize + self.value as usize + FIELD_OVERHEAD
    }
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max: MAX_TABLE_SIZE as usize,
        }
    }

    /// Returns the field at `index`, which counts from 1.
    pub(super) fn get(&self, index: usize) -> Option<(&Field, Length)> {
        let index = index.checked_sub(1)?;
        if let Some(field) = STATIC_FIELDS.get(index) {
            let (name, value) = STATIC_TABLE[index];
            let length = Length {
                name: name.len() as u32,
                value: value.len() as u32,
            };
            return Some((field, length));
        }
        let entry = self.entries.get(index - STATIC_FIELDS.len())?;
        Some((&entry.field, entry.length))
    }

    /// Adds a field. One that is larger than the table only empties it.
    pub(super) fn insert(&mut self, field: Field, length: Length) {
        let size = length.size();
        self.evict(self.max.saturating_sub(size));
        if size <= self.max {
            let entry = Entry { field, length };
            if Bug::DecoderTableReversed.is_planted() {
                self.entries.push_back(entry);
            } else {
                self.entries.push_front(entry);
            }
            self.size += size;
        }
    }

    /// Applies a dynamic table size update. Returns false if it exceeds the advertised limit.
    pub(super) fn resize(&mut self, max: usize) -> bool {
        if max > MAX_TABLE_SIZE as usize {
            return false;
        }
        self.max = max;
        self.evict(self.max);
        true
    }

    fn evict(&mut self, target: usize) {
        while self.size > target
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.length.size();
        }
    }
}
