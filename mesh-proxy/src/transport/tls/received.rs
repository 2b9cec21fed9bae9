//! Opens received records, and keeps the bytes that have not been opened: the start of a record,
//! and only directly after the handshake more than that.
//!
//! [`crate::tls::handshake`] and protocol detection limit their length, but this module does not
//! rely on it: bytes that do not fit into the thread's buffer wait for the next call.

use std::io;
use std::task::{Poll, ready};

use super::buffers::Pieces;
use super::error::RecordError;
use super::session::{Content, Session};
use super::{MAX_RECORD, protection};

/// Empty on an idle connection.
pub(crate) struct ReceivedBytes(Vec<u8>);

/// The outcome of opening records.
pub(crate) struct Opened {
    pub(crate) pieces: Pieces,
    /// The length of the complete records; the start of another one may follow.
    pub(crate) consumed: usize,
    /// Whether the peer has sent close_notify.
    pub(crate) closed: Result<bool, RecordError>,
}

impl ReceivedBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Opens the complete records that fit into `buffer`, and calls `read` first when there is
    /// none. `buffer` must be at least two records long.
    pub(crate) fn poll_open(
        &mut self,
        session: &mut Session,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Opened>> {
        debug_assert!(buffer.len() >= 2 * MAX_RECORD);
        let buffered = self.0.len().min(buffer.len());
        let (front, free) = buffer.split_at_mut(buffered);
        let read = if self.has_next() {
            0
        } else {
            match ready!(read(free))? {
                0 => return Poll::Ready(Err(truncated())),
                read => read.min(free.len()),
            }
        };
        front.copy_from_slice(&self.0[..buffered]);
        let filled = buffered + read;
        let opened = open(session, &mut buffer[..filled]);
        if buffered < self.0.len() {
            self.0.drain(..opened.consumed);
        } else {
            self.0 = buffer[opened.consumed..filled].to_vec();
        }
        Poll::Ready(Ok(opened))
    }

    pub(crate) fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Whether there is a complete record, or bytes that opening rejects.
    fn has_next(&self) -> bool {
        match protection::record_length(&self.0) {
            Ok(next) => next.is_some_and(|length| length <= self.0.len()),
            Err(_) => true,
        }
    }
}

/// Opens the complete records at the start of `bytes`, up to the first invalid one or a
/// close_notify.
pub(super) fn open(session: &mut Session, bytes: &mut [u8]) -> Opened {
    let (mut pieces, mut consumed) = (Pieces::new(), 0);
    let closed = loop {
        let start = consumed;
        match protection::record_length(&bytes[start..]) {
            Ok(Some(length)) if length <= bytes.len() - start => consumed += length,
            Ok(_) => break Ok(false),
            Err(error) => break Err(error),
        }
        match session.open(&mut bytes[start..consumed]) {
            Ok(Content::Data(range)) => {
                pieces.push(start + range.start..start + range.end, bytes);
            }
            Ok(Content::NoData) => {}
            Ok(Content::CloseNotify) => break Ok(true),
            Err(error) => break Err(error),
        }
    };
    Opened {
        pieces,
        consumed,
        closed,
    }
}

/// Without close_notify, an attacker may have truncated the stream.
fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "peer closed the connection without TLS close_notify",
    )
}
