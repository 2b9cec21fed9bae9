//! Buffers that all HTTP connections of one data thread share, so that an idle connection holds no
//! buffer: one that sockets are read into, and vectors for output and for input that could not be
//! processed yet.
//!
//! They are thread-local rather than passed along, because connections are created and polled in
//! unrelated modules.

use std::cell::RefCell;

thread_local! {
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BUFFER_SIZE].into_boxed_slice());
    static WRITE_BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// As large as the TLS records that are opened or sealed at a time: compared with 64 KiB it saved a
/// quarter of the CPU time of 16 KiB gRPC messages. Pages that no read has touched use no memory.
pub(super) const READ_BUFFER_SIZE: usize = 256 * 1024;

/// Size of one read of an HTTP/1 message, smaller because body data is kept until it is forwarded.
/// Four TLS records: below that, bulk reads cost noticeably more. With 72 KiB the kernel gives each
/// connection a larger receive buffer, which a peer that stops reading then fills.
pub(super) const READ_SIZE: usize = 64 * 1024;

/// Size of the reads at the beginning of a response, until its client's connection allows for more
/// ([`ReadAhead`](super::http2::ReadAhead)): as much as responses over HTTP/2 begin with.
pub(super) const FIRST_READ_SIZE: u32 = 16 * 1024;

/// How many vectors are kept, and their largest capacity. A connection holds one while it writes,
/// rarely longer than one poll.
const MAX_SPARE_BUFFERS: usize = 8;
const MAX_SPARE_CAPACITY: usize = 256 * 1024;

/// Fits most header sections with a small body.
const INITIAL_CAPACITY: usize = 2 * 1024;

/// Passes the read buffer to `read`, which must copy the bytes out of it. Panics if `read` itself
/// calls this function.
pub(super) fn with_read_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ_BUFFER.with_borrow_mut(|buffer| read(buffer))
}

/// Returns an empty vector.
pub(super) fn take_write_buffer() -> Vec<u8> {
    WRITE_BUFFERS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| Vec::with_capacity(INITIAL_CAPACITY))
}

/// Returns a vector to the pool.
pub(super) fn return_write_buffer(mut vector: Vec<u8>) {
    if vector.capacity() == 0 || vector.capacity() > MAX_SPARE_CAPACITY {
        return;
    }
    vector.clear();
    WRITE_BUFFERS.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE_BUFFERS {
            spare.push(vector);
        }
    });
}
