//! What all HTTP/1 connections of one data thread share, so that an idle connection holds no memory for bytes: the room that sockets are read into, and the
//! vectors that heads are written to.
//!
//! Thread-local rather than passed along: connections are made and polled in places that have nothing else to do with each other, and every thread has one set.

use std::cell::RefCell;

thread_local! {
    static INPUT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
    static OUTPUT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Four TLS records, as for opaque bytes: below that, reading bulk costs noticeably more.
pub(super) const READ_SIZE: usize = 64 * 1024;

/// Vectors that are kept, and how large they may have become. Connections hold one while they write, which is rarely for longer than one poll.
const SPARE_OUTPUTS: usize = 16;
const SPARE_CAPACITY: usize = 64 * 1024;

/// Most heads with a small body.
const FIRST_CAPACITY: usize = 2 * 1024;

/// Lends the room to read into. What has been read is to be copied out of it.
pub(super) fn with_input<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    INPUT.with_borrow_mut(|input| read(input))
}

/// An empty vector to write to.
pub(super) fn take_output() -> Vec<u8> {
    OUTPUT
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| Vec::with_capacity(FIRST_CAPACITY))
}

/// Takes back a vector whose bytes have been written.
pub(super) fn give_output(mut output: Vec<u8>) {
    if output.capacity() == 0 || output.capacity() > SPARE_CAPACITY {
        return;
    }
    output.clear();
    OUTPUT.with_borrow_mut(|spare| {
        if spare.len() < SPARE_OUTPUTS {
            spare.push(output);
        }
    });
}
