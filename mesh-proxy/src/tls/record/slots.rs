//! The memory in which records are sealed and opened: one per thread, borrowed for one read and its
//! write. A connection has none of its own.
//!
//! When sealing, it is a row of slots, each as long as a full record, so that bytes are read from a
//! socket to where a record holds its content, and all records lie behind one another when they are
//! sealed. When opening, it is what a socket has given.

use std::array;
use std::cell::RefCell;
use std::io::IoSliceMut;
use std::ops::Range;

use super::error::RecordError;
use super::session::{Content, Session};
use super::{HEADER, MAX_CONTENT, OVERHEAD, cipher};

/// A full record.
pub(super) const SLOT: usize = MAX_CONTENT + OVERHEAD;

/// 256 KiB of content. Against 64 KiB it saved an eighth of the CPU outbound and a quarter inbound;
/// more does not fit the caches of a core.
pub(super) const SLOTS: usize = 16;

thread_local! {
    static BYTES: RefCell<Box<[u8]>> = RefCell::new(vec![0; SLOT * SLOTS].into_boxed_slice());
}

/// Lends the thread's slots. Panics when they are lent already, which nothing that is not itself
/// called by `borrow` can bring about.
pub(in crate::tls) fn with<R>(borrow: impl FnOnce(&mut [u8]) -> R) -> R {
    BYTES.with_borrow_mut(|bytes| borrow(bytes))
}

/// Where the content of each slot lies.
pub(super) fn contents(slots: &mut [u8]) -> [IoSliceMut<'_>; SLOTS] {
    let mut slots = slots.chunks_exact_mut(SLOT);
    array::from_fn(|_| {
        IoSliceMut::new(match slots.next() {
            Some(slot) => &mut slot[HEADER..HEADER + MAX_CONTENT],
            None => &mut [],
        })
    })
}

/// Where opened content lies among records.
#[derive(Clone, Debug)]
pub(in crate::tls) struct Pieces {
    ranges: [(usize, usize); Self::MAX],
    count: usize,
}

/// What opening came to.
pub(in crate::tls) struct Opened {
    pub(in crate::tls) pieces: Pieces,
    /// What lies behind is the beginning of a record.
    pub(in crate::tls) consumed: usize,
    /// Whether the peer has ended its stream.
    pub(in crate::tls) ended: Result<bool, RecordError>,
}

impl Pieces {
    /// One system call writes as many.
    pub(super) const MAX: usize = 64;

    /// Shorter ones are moved up to their predecessor: a copy of this size costs less than another
    /// piece.
    const SHORT: usize = 4096;

    pub(super) fn new() -> Self {
        Self {
            ranges: [(0, 0); Self::MAX],
            count: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(in crate::tls) fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        self.ranges[..self.count]
            .iter()
            .map(|&(start, end)| start..end)
    }

    pub(super) fn total(&self) -> usize {
        self.iter().map(|range| range.len()).sum()
    }

    fn push(&mut self, range: Range<usize>, bytes: &mut [u8]) {
        let is_full = self.count == Self::MAX;
        match self.ranges[..self.count].last_mut() {
            Some((_, end)) if is_full || range.len() < Self::SHORT => {
                let length = range.len();
                bytes.copy_within(range, *end);
                *end += length;
            }
            _ => {
                self.ranges[self.count] = (range.start, range.end);
                self.count += 1;
            }
        }
    }
}

/// Opens all whole records at the front of `bytes`, up to the first that is wrong or the last of
/// its stream.
pub(in crate::tls) fn open(session: &mut Session, bytes: &mut [u8]) -> Opened {
    let mut opened = Opened {
        pieces: Pieces::new(),
        consumed: 0,
        ended: Ok(false),
    };
    loop {
        let start = opened.consumed;
        let length = match cipher::record_length(&bytes[start..]) {
            Ok(Some(length)) if length <= bytes.len() - start => length,
            Ok(_) => return opened,
            Err(error) => {
                opened.ended = Err(error);
                return opened;
            }
        };
        opened.consumed += length;
        match session.open(&mut bytes[start..start + length]) {
            Ok(Content::Data(range)) => {
                let range = start + range.start..start + range.end;
                opened.pieces.push(range, bytes);
            }
            Ok(Content::Nothing) => {}
            Ok(Content::End) => {
                opened.ended = Ok(true);
                return opened;
            }
            Err(error) => {
                opened.ended = Err(error);
                return opened;
            }
        }
    }
}
