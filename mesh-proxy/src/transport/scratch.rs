//! What all connections of one data thread share to move bytes: a buffer that is borrowed for one
//! read and its write, never across an await, and pipes that are borrowed while they hold bytes. An
//! idle connection holds neither.

use std::cell::{RefCell, RefMut};

use super::splice::Pipe;

/// One per data thread.
#[derive(Debug)]
pub struct Scratch {
    bytes: RefCell<Box<[u8]>>,
    /// Empty ones, ready for use.
    pipes: RefCell<Vec<Pipe>>,
}

/// Pipes that are kept open when nobody uses them. More bulk transfers than this at the same moment
/// open and close theirs.
const IDLE_PIPES: usize = 4;

/// Four TLS records. With TLS on one side, copying through 8 KiB costs 1.3 CPU-seconds per GB,
/// through 64 KiB 0.7, through 256 KiB no less than that.
pub const SCRATCH_SIZE: usize = 64 * 1024;

impl Scratch {
    pub fn new() -> Self {
        Self {
            bytes: RefCell::new(vec![0; SCRATCH_SIZE].into_boxed_slice()),
            pipes: RefCell::default(),
        }
    }

    /// The buffer. Give it back before anything is awaited.
    pub(super) fn borrow(&self) -> RefMut<'_, Box<[u8]>> {
        self.bytes.borrow_mut()
    }

    /// An empty pipe; `None` when the process has no descriptors left for one.
    pub(super) fn take_pipe(&self) -> Option<Pipe> {
        let kept = self.pipes.borrow_mut().pop();
        kept.or_else(|| Pipe::open().ok())
    }

    #[cfg(test)]
    pub(super) fn idle_pipes(&self) -> usize {
        self.pipes.borrow().len()
    }

    /// Takes back a pipe that is empty.
    pub(super) fn give_pipe(&self, pipe: Pipe) {
        let mut pipes = self.pipes.borrow_mut();
        if pipes.len() < IDLE_PIPES {
            pipes.push(pipe);
        }
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
