//! What all HTTP connections of one data thread share, so that an idle connection holds no memory
//! for bytes: the room that sockets are read into, and vectors for what is to be written, or was
//! read and could not be handed on yet.
//!
//! Thread-local rather than passed along: connections are made and polled in places that have
//! nothing else to do with each other, and every thread has one set.

use std::cell::RefCell;

thread_local! {
    static ROOM: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM_SIZE].into_boxed_slice());
    static VECTORS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// As much as records are opened or sealed at a time: against 64 KiB it saved a quarter of the CPU
/// of gRPC messages of 16 KiB. What was never read into costs no memory.
pub(super) const ROOM_SIZE: usize = 256 * 1024;

/// What is read of an HTTP/1 message at a time, because a body's piece is kept until it is sent on.
/// Four TLS records: below that, reading bulk costs noticeably more.
pub(super) const READ_SIZE: usize = 64 * 1024;

/// Vectors that are kept, and how large they may have become. Connections hold one while they
/// write, which is rarely for longer than one poll.
const SPARE_VECTORS: usize = 8;
const SPARE_CAPACITY: usize = 256 * 1024;

/// Most heads with a small body.
const FIRST_CAPACITY: usize = 2 * 1024;

/// Lends the room to read into. What has been read is to be copied out of it. Panics when it is
/// lent already, which nothing that does not itself read within `read` can bring about.
pub(super) fn with_room<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    ROOM.with_borrow_mut(|room| read(room))
}

/// An empty vector.
pub(super) fn take_vector() -> Vec<u8> {
    VECTORS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| Vec::with_capacity(FIRST_CAPACITY))
}

/// Takes back a vector whose bytes are not needed any more.
pub(super) fn give_vector(mut vector: Vec<u8>) {
    if vector.capacity() == 0 || vector.capacity() > SPARE_CAPACITY {
        return;
    }
    vector.clear();
    VECTORS.with_borrow_mut(|spare| {
        if spare.len() < SPARE_VECTORS {
            spare.push(vector);
        }
    });
}
