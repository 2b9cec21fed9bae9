//! What the other side's encoder has put into the table (RFC 7541, section 2.3).

use std::collections::VecDeque;

use super::field::{Field, STATIC_FIELDS, STATIC_TABLE};
use super::{FIELD_OVERHEAD, MAX_TABLE_SIZE};

/// Fields by index, the latest first behind those of the static table. Without memory as long as
/// nobody uses it.
#[derive(Debug)]
pub(super) struct Table {
    /// The latest in front.
    entries: VecDeque<Entry>,
    size: usize,
    /// What it may hold at the moment.
    max: usize,
}

#[derive(Debug)]
struct Entry {
    field: Field,
    length: Length,
}

/// How many bytes a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) name: u32,
    pub(super) value: u32,
}

impl Length {
    /// What it counts for.
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

    /// There is none at index 0.
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

    /// Adds a field; one that is larger than the table only empties it.
    pub(super) fn insert(&mut self, field: Field, length: Length) {
        let size = length.size();
        self.evict(self.max.saturating_sub(size));
        if size <= self.max {
            self.entries.push_front(Entry { field, length });
            self.size += size;
        }
    }

    /// The encoder has changed its mind. False when it takes more than it was offered.
    pub(super) fn resize(&mut self, max: usize) -> bool {
        if max > MAX_TABLE_SIZE as usize {
            return false;
        }
        self.max = max;
        self.evict(self.max);
        true
    }

    fn evict(&mut self, left: usize) {
        while self.size > left
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.length.size();
        }
    }
}
