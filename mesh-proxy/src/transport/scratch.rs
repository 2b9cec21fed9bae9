//! Memory that all connections of one data thread share to copy bytes: a buffer, borrowed for one
//! read and the write of its bytes but never across an await, and pipes, borrowed while they
//! contain bytes. An idle connection has neither.

use std::cell::{RefCell, RefMut};

use super::splice::Pipe;

/// One per data thread.
#[derive(Debug)]
pub struct Scratch {
    bytes: RefCell<Box<[u8]>>,
    /// Unused, empty pipes.
    pipes: RefCell<Vec<Pipe>>,
}

/// Unused pipes that are kept open. When more bulk transfers run concurrently, the others open and
/// close a pipe each time.
const IDLE_PIPES: usize = 4;

/// Four TLS records. Copying between TLS and a plain socket costs 1.3 CPU-seconds per GB with 8
/// KiB, 0.7 with 64 KiB and no less with 256 KiB.
pub(crate) const SCRATCH_SIZE: usize = 64 * 1024;

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: RefCell::new(vec![0; SCRATCH_SIZE].into_boxed_slice()),
            pipes: RefCell::default(),
        }
    }

    /// Borrows the buffer. The borrow must end before the caller awaits.
    pub(super) fn borrow(&self) -> RefMut<'_, Box<[u8]>> {
        self.bytes.borrow_mut()
    }

    /// Takes an empty pipe; `None` when none can be opened, for lack of file descriptors.
    pub(super) fn take_pipe(&self) -> Option<Pipe> {
        let idle = self.pipes.borrow_mut().pop();
        idle.or_else(|| Pipe::open().ok())
    }

    #[cfg(test)]
    pub(super) fn idle_pipes(&self) -> usize {
        self.pipes.borrow().len()
    }

    /// Returns an empty pipe for reuse.
    pub(super) fn return_pipe(&self, pipe: Pipe) {
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
