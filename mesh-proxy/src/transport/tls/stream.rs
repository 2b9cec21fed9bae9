//! A TLS connection over TCP as a byte stream, with two bulk operations for tunnels between TLS and
//! a plain socket.
//!
//! Between calls it buffers only the start of an incomplete record, plaintext that did not fit into
//! the reader's buffer, and records that the socket has not accepted (their sequence numbers are
//! used, so they cannot be sealed again). All three are empty on an idle connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mesh_planted::Bug;
use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::buffers::{self, Pieces, SLOT_COUNT, SLOT_LEN};
use super::error::RecordError;
use super::received::ReceivedBytes;
use super::session::Session;
use super::{MAX_CONTENT, MAX_RECORD};
use crate::transport::revocation::Admission;
use crate::transport::socket::Socket;

/// A TLS connection after its handshake.
pub(crate) struct RecordStream {
    tcp: Socket,
    session: Session,
    received: ReceivedBytes,
    plaintext: PlaintextBuffer,
    ciphertext: CiphertextBuffer,
    read_state: ReadState,
    write_state: WriteState,
    read_size: BulkSize,
    write_size: BulkSize,
    is_resumed: bool,
}

/// The result of one step of a bulk operation.
#[derive(Debug, Default)]
pub(crate) struct BulkTransfer {
    /// Number of bytes read from the source. 0 at the end of its stream.
    pub(crate) read: usize,
    /// The last bytes read, which the sink did not accept.
    pub(crate) unsent: Vec<u8>,
}

/// The connection of a bulk operation that failed.
#[derive(Debug)]
pub(crate) enum BulkError {
    Source(io::Error),
    Sink(io::Error),
}

/// Opened content that has not been read.
#[derive(Default)]
struct PlaintextBuffer {
    bytes: Vec<u8>,
    start: usize,
}

/// Sealed records that have not been written.
#[derive(Default)]
struct CiphertextBuffer {
    bytes: Vec<u8>,
    start: usize,
}

enum ReadState {
    Open,
    Closed,
    /// The next read returns the error, after the content that precedes it.
    Failed(Option<RecordError>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Open,
    /// close_notify has been sealed.
    Closing,
    Closed,
    Failed,
}

/// How many records a bulk operation handles per step.
///
/// Bytes that the sink does not accept are buffered, so a slow sink gets small batches and a sink
/// that accepts everything gets larger ones.
#[derive(Clone, Copy)]
struct BulkSize(usize);

impl RecordStream {
    /// Creates the stream after a handshake. `received` are the bytes that followed it.
    pub(crate) fn new(tcp: Socket, session: Session, received: Vec<u8>, is_resumed: bool) -> Self {
        Self {
            tcp,
            session,
            received: ReceivedBytes::new(received),
            plaintext: PlaintextBuffer::default(),
            ciphertext: CiphertextBuffer::default(),
            read_state: ReadState::Open,
            write_state: WriteState::Open,
            read_size: BulkSize::MIN,
            write_size: BulkSize::MIN,
            is_resumed,
        }
    }

    #[cfg(test)]
    pub(crate) fn set_record_limit(&mut self, limit: u64) {
        self.session.set_record_limit(limit);
    }

    pub(crate) fn tcp(&self) -> &Socket {
        &self.tcp
    }

    /// See [`Socket::end_with`].
    pub(crate) fn end_with(&mut self, admission: Arc<Admission>) {
        self.tcp.end_with(admission);
    }

    /// Whether the handshake resumed an earlier session.
    #[cfg(test)]
    pub(crate) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Whether opened bytes are buffered. They must be read before [`RecordStream::poll_open_to`]
    /// is called.
    pub(crate) fn has_buffered_plaintext(&self) -> bool {
        !self.plaintext.is_empty()
    }

    /// Opens about `limit` received bytes at most and passes the content to `read`, piece by piece.
    /// Returns its length: 0 at the end of the peer's stream.
    pub(crate) fn poll_read_with(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        mut read: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if !self.plaintext.is_empty() {
            let plaintext = std::mem::take(&mut self.plaintext);
            read(&plaintext.bytes[plaintext.start..]);
            return Poll::Ready(Ok(plaintext.bytes.len() - plaintext.start));
        }
        buffers::with(|bytes| {
            let limit = limit.clamp(2 * MAX_RECORD, bytes.len());
            let pieces = ready!(self.poll_opened(bytes, limit, cx))?;
            for piece in pieces.iter() {
                read(&bytes[piece]);
            }
            Poll::Ready(Ok(pieces.total()))
        })
    }

    /// Opens received records and writes their content to a plain socket.
    pub(crate) fn poll_open_to(
        &mut self,
        sink: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BulkTransfer, BulkError>> {
        buffers::with(|bytes| {
            let limit = self.read_size.slots() * SLOT_LEN;
            let pieces = ready!(self.poll_opened(bytes, limit, cx)).map_err(BulkError::Source)?;
            let read = pieces.total();
            let written = write_pieces(sink, bytes, &pieces).map_err(BulkError::Sink)?;
            let unsent = gather(bytes, &pieces, written);
            let is_full = read >= self.read_size.slots() * MAX_CONTENT * 7 / 8;
            self.read_size.adjust(is_full, unsent.is_empty());
            Poll::Ready(Ok(BulkTransfer { read, unsent }))
        })
    }

    /// Reads from a plain socket and writes the sealed bytes. Buffers records that the TLS
    /// connection's socket does not accept.
    pub(crate) fn poll_seal_from(
        &mut self,
        source: &Socket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BulkTransfer, BulkError>> {
        ready!(self.poll_ready_to_seal(cx)).map_err(BulkError::Sink)?;
        buffers::with(|bytes| {
            let count = self.write_size.slots();
            let read = {
                let mut contents = buffers::contents(bytes);
                ready!(source.poll_read_vectored(&mut contents[..count], cx))
                    .map_err(BulkError::Source)?
            };
            self.seal_and_send(bytes, read, cx)
                .map_err(BulkError::Sink)?;
            self.write_size
                .adjust(read == count * MAX_CONTENT, self.ciphertext.is_empty());
            Poll::Ready(Ok(BulkTransfer {
                read,
                unsent: Vec::new(),
            }))
        })
    }

    /// Reads and opens at least one piece of content. No piece at the end of the peer's stream.
    fn poll_opened(
        &mut self,
        bytes: &mut [u8],
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pieces>> {
        loop {
            match &mut self.read_state {
                ReadState::Open => {}
                ReadState::Closed => return Poll::Ready(Ok(Pieces::new())),
                ReadState::Failed(error) => {
                    let error = error
                        .take()
                        .map_or_else(|| io::ErrorKind::ConnectionAborted.into(), io::Error::from);
                    return Poll::Ready(Err(error));
                }
            }
            let tcp = &self.tcp;
            let opened = ready!(self.received.poll_open(
                &mut self.session,
                &mut bytes[..limit],
                |buffer| tcp.poll_read_vectored(&mut [IoSliceMut::new(buffer)], cx),
            ))?;
            match opened.closed {
                Ok(false) => {}
                Ok(true) => {
                    // Data after close_notify is ignored (RFC 8446, section 6.1).
                    self.received.clear();
                    self.read_state = ReadState::Closed;
                }
                Err(error) => self.fail(error),
            }
            if !opened.pieces.is_empty() {
                return Poll::Ready(Ok(opened.pieces));
            }
        }
    }

    /// Ready when all sealed records are written and the key may seal all slots.
    fn poll_ready_to_seal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.write_state != WriteState::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.poll_send_records(cx)
    }

    /// Writes sealed records, and a KeyUpdate when one is due.
    fn poll_send_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.ciphertext.poll_send(&mut self.tcp, cx))?;
        if self.write_state == WriteState::Open && self.session.is_update_due() {
            self.session.update_keys(&mut self.ciphertext.bytes)?;
            ready!(self.ciphertext.poll_send(&mut self.tcp, cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Seals `length` bytes of content in the slots, writes the records and buffers those that the
    /// socket does not accept. No other ciphertext must be buffered.
    fn seal_and_send(
        &mut self,
        slots: &mut [u8],
        length: usize,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        let sealed = self.session.seal(slots, length)?;
        let records = &slots[..sealed];
        let sent = match Pin::new(&mut self.tcp).poll_write(cx, records) {
            Poll::Ready(Ok(sent)) => sent,
            Poll::Ready(Err(error)) => {
                self.write_state = WriteState::Failed;
                return Err(error);
            }
            Poll::Pending => 0,
        };
        self.ciphertext.bytes = records[sent..].to_vec();
        Ok(())
    }

    /// Fails both directions, and sends the error's alert if the socket accepts it immediately.
    fn fail(&mut self, error: RecordError) {
        if self.write_state == WriteState::Open
            && let Some(alert) = error.alert()
            && self
                .session
                .append_alert(&mut self.ciphertext.bytes, alert)
                .is_ok()
        {
            // Best effort: the connection has failed in any case.
            let _ = self
                .tcp
                .try_write_vectored(&[IoSlice::new(self.ciphertext.unsent())]);
        }
        self.received.clear();
        self.ciphertext = CiphertextBuffer::default();
        self.write_state = WriteState::Failed;
        self.read_state = ReadState::Failed(Some(error));
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready_to_seal(cx))?;
        buffers::with(|bytes| {
            let count = self.write_size.slots();
            let length = fill(&mut buffers::contents(bytes)[..count]);
            self.seal_and_send(bytes, length, cx)?;
            self.write_size
                .adjust(length == count * MAX_CONTENT, self.ciphertext.is_empty());
            Poll::Ready(Ok(length))
        })
    }
}

impl BulkSize {
    /// 64 KiB: the bytes buffered for a sink that stops reading.
    const MIN: Self = Self(4);

    fn slots(self) -> usize {
        self.0
    }

    fn adjust(&mut self, was_full: bool, was_written: bool) {
        // Halves instead of resetting, because a fast sink is full occasionally.
        if !was_written {
            self.0 = (self.0 / 2).max(Self::MIN.0);
        } else if was_full {
            self.0 = (self.0 * 2).min(SLOT_COUNT);
        }
    }
}

impl PlaintextBuffer {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn copy_to(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.bytes[self.start..];
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.start += n;
        if self.start == self.bytes.len() {
            *self = Self::default();
        }
    }
}

impl CiphertextBuffer {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn poll_send(&mut self, tcp: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.start < self.bytes.len() {
            match ready!(Pin::new(&mut *tcp).poll_write(cx, &self.bytes[self.start..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.start += n,
            }
        }
        *self = Self::default();
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for RecordStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.plaintext.is_empty() {
            self.plaintext.copy_to(buf);
            return Poll::Ready(Ok(()));
        }
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        buffers::with(|bytes| {
            // About as much as fits into `buf`, but at least a record and its buffered start.
            let limit = buf.remaining().clamp(2 * MAX_RECORD, bytes.len());
            let pieces = ready!(self.poll_opened(bytes, limit, cx))?;
            let mut read = 0;
            for piece in pieces.iter() {
                let n = piece.len().min(buf.remaining());
                buf.put_slice(&bytes[piece.start..piece.start + n]);
                read += n;
            }
            self.plaintext.bytes = gather(bytes, &pieces, read);
            Poll::Ready(Ok(()))
        })
    }
}

impl AsyncWrite for RecordStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |contents| copy_into(contents, &[IoSlice::new(bytes)]))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |contents| copy_into(contents, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.write_state {
            WriteState::Failed | WriteState::Closed => Poll::Ready(Ok(())),
            WriteState::Open | WriteState::Closing => self.poll_send_records(cx),
        }
    }

    /// Sends close_notify and FIN. The peer may continue to send.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.write_state == WriteState::Open && !Bug::CloseNotifyLost.is_planted() {
            let alert = AlertDescription::CloseNotify;
            this.session
                .append_alert(&mut this.ciphertext.bytes, alert)?;
            this.write_state = WriteState::Closing;
        }
        if this.write_state == WriteState::Closing {
            ready!(this.ciphertext.poll_send(&mut this.tcp, cx))?;
            this.write_state = WriteState::Closed;
        }
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream")
            .field("tcp", &self.tcp)
            .field("is_resumed", &self.is_resumed)
            .finish_non_exhaustive()
    }
}

/// Writes the bytes that the socket accepts immediately.
fn write_pieces(tcp: &Socket, bytes: &[u8], pieces: &Pieces) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); Pieces::MAX];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(pieces.iter()) {
        *slice = IoSlice::new(&bytes[piece]);
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    match tcp.try_write_vectored(&slices[..count]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written,
    }
}

/// Copies the content of the pieces after its first `skip` bytes.
fn gather(bytes: &[u8], pieces: &Pieces, mut skip: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(pieces.total().saturating_sub(skip));
    for piece in pieces.iter() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        rest.extend_from_slice(&bytes[piece.start + skipped..piece.end]);
    }
    rest
}

/// Copies the bytes that fit. Returns how many.
fn copy_into(contents: &mut [IoSliceMut<'_>], slices: &[IoSlice<'_>]) -> usize {
    let mut copied = 0;
    let mut contents = contents.iter_mut();
    let mut free: &mut [u8] = &mut [];
    for slice in slices {
        let mut rest: &[u8] = slice;
        while !rest.is_empty() {
            if free.is_empty() {
                match contents.next() {
                    Some(next) => free = next,
                    None => return copied,
                }
            }
            let n = rest.len().min(free.len());
            let (into, after) = std::mem::take(&mut free).split_at_mut(n);
            into.copy_from_slice(&rest[..n]);
            free = after;
            rest = &rest[n..];
            copied += n;
        }
    }
    copied
}

#[cfg(test)]
mod tests;
