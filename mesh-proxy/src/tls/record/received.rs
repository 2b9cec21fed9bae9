//! Bytes that came from the peer and have not been opened: the beginning of a record, and more than
//! that only directly after the handshake.
//!
//! How much that can be is limited by [`crate::tls::handshake`] and by what detection reads ahead,
//! but nothing here relies on it: whatever does not fit into the record buffers of the thread waits
//! for the next call.

use std::io;
use std::task::{Poll, ready};

use super::session::Session;
use super::slots::{self, Opened};
use super::{MAX_RECORD, cipher};

/// Empty on an idle connection.
pub(in crate::tls) struct ReceivedBytes(Vec<u8>);

impl ReceivedBytes {
    pub(in crate::tls) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Opens the whole records that are here, as many as fit into `buffer`; `read` is asked for
    /// more when there is none. `buffer` has to be longer than a record.
    pub(in crate::tls) fn poll_open(
        &mut self,
        session: &mut Session,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Opened>> {
        debug_assert!(buffer.len() >= 2 * MAX_RECORD);
        let have = self.0.len().min(buffer.len());
        let (front, room) = buffer.split_at_mut(have);
        let read = match self.has_next() {
            true => 0,
            false => match ready!(read(room))? {
                0 => return Poll::Ready(Err(truncated())),
                read => read.min(room.len()),
            },
        };
        front.copy_from_slice(&self.0[..have]);
        let filled = have + read;
        let opened = slots::open(session, &mut buffer[..filled]);
        if have < self.0.len() {
            self.0.drain(..opened.consumed);
        } else {
            self.0 = buffer[opened.consumed..filled].to_vec();
        }
        Poll::Ready(Ok(opened))
    }

    pub(in crate::tls) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Whether a record is whole, or something is here that opening will refuse.
    fn has_next(&self) -> bool {
        match cipher::record_length(&self.0) {
            Ok(next) => next.is_some_and(|length| length <= self.0.len()),
            Err(_) => true,
        }
    }
}

/// A stream without its end may have been cut by anybody.
fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer's connection ended without TLS close_notify",
    )
}
