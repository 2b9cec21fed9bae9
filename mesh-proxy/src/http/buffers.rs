//! What all HTTP connections of one data thread share, so that an idle connection holds no memory for bytes: the room that sockets are read into, and vectors for
//! what is to be written, or was read and could not be handed on yet.
//!
//! Thread-local rather than passed along: connections are made and polled in places that have nothing else to do with each other, and every thread has one set.

use std::cell::RefCell;

thread_local! {
    static ROOMS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
    static VECTORS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Four TLS records, as for opaque bytes: below that, reading bulk costs noticeably more.
pub(super) const READ_SIZE: usize = 64 * 1024;

/// Vectors that are kept, and how large they may have become. Connections hold one while they write, which is rarely for longer than one poll.
const SPARE_VECTORS: usize = 16;
const SPARE_CAPACITY: usize = 64 * 1024;

/// Rooms that are kept. One is enough as long as what is read is handed on at once.
const SPARE_ROOMS: usize = 4;

/// Most heads with a small body.
const FIRST_CAPACITY: usize = 2 * 1024;

/// Lends the room to read into. What has been read is to be copied out of it.
pub(super) fn with_input<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut room = take_room();
    let result = read(&mut room);
    give_room(room);
    result
}

/// Room to read into that may be kept for as long as what was read is not handed on.
pub(super) fn take_room() -> Box<[u8]> {
    ROOMS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| vec![0; READ_SIZE].into_boxed_slice())
}

/// Takes back room that [`take_room`] has given.
pub(super) fn give_room(room: Box<[u8]>) {
    ROOMS.with_borrow_mut(|rooms| {
        if rooms.len() < SPARE_ROOMS {
            rooms.push(room);
        }
    });
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
