//! A TLS connection whose records are sealed and opened by us: a byte stream like any other, and
//! two short cuts for tunnels whose other side is a plain socket.
//!
//! Between two calls it keeps what cannot be anywhere else: the beginning of a record that has not
//! come whole, content that the reader had no room for, and records that the socket has not taken
//! (their numbers are spent, so they cannot be sealed anew). All three are empty on an idle
//! connection.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::AlertDescription;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::error::RecordError;
use super::received::ReceivedBytes;
use super::session::Session;
use super::slots::{self, Pieces, SLOT, SLOTS};
use super::{MAX_CONTENT, MAX_RECORD};

/// A connection of which rustls has made the handshake.
pub struct RecordStream {
    tcp: TcpStream,
    session: Session,
    received: ReceivedBytes,
    content: Unread,
    records: Unsent,
    reading: Reading,
    writing: Writing,
    read_size: BulkSize,
    write_size: BulkSize,
    is_resumed: bool,
}

/// What one step of a short cut has done.
#[derive(Debug, Default)]
pub struct Moved {
    /// Bytes of the source. 0 at its end.
    pub taken: usize,
    /// What the sink did not take of them.
    pub left: Vec<u8>,
}

/// Which side of a short cut failed.
#[derive(Debug)]
pub enum BulkError {
    Source(io::Error),
    Sink(io::Error),
}

/// Opened, not handed on.
#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    start: usize,
}

/// Sealed, not written.
#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    start: usize,
}

enum Reading {
    Open,
    Ended,
    /// The error is for the next reader, content before it having been handed on.
    Failed(Option<RecordError>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Open,
    /// The end has been sealed.
    Ending,
    Ended,
    Failed,
}

/// How many records' worth of bytes a short cut takes at once.
///
/// What the sink does not take has to be kept, so one that stays slow must not make us hold a full
/// batch: sinks that take everything get larger batches.
#[derive(Clone, Copy)]
struct BulkSize(usize);

impl RecordStream {
    /// Goes on where the handshake has ended. `received` are the bytes that came behind it.
    pub(in crate::tls) fn new(
        tcp: TcpStream,
        session: Session,
        received: Vec<u8>,
        is_resumed: bool,
    ) -> Self {
        Self {
            tcp,
            session,
            received: ReceivedBytes::new(received),
            content: Unread::default(),
            records: Unsent::default(),
            reading: Reading::Open,
            writing: Writing::Open,
            read_size: BulkSize::LEAST,
            write_size: BulkSize::LEAST,
            is_resumed,
        }
    }

    /// Makes keys wear out sooner.
    #[cfg(test)]
    pub(in crate::tls) fn limit_records(&mut self, limit: u64) {
        self.session.limit_records(limit);
    }

    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether the handshake took up an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Whether no opened byte waits for a reader, so that [`RecordStream::poll_open_to`] may take
    /// the next.
    pub fn is_drained(&self) -> bool {
        self.content.is_empty()
    }

    /// Opens what has arrived, about `limit` bytes at most, and lends it piece by piece. Returns
    /// how much it was: nothing at the end of the peer's stream.
    pub fn poll_lend(
        &mut self,
        cx: &mut Context<'_>,
        limit: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if !self.content.is_empty() {
            let unread = std::mem::take(&mut self.content);
            take(&unread.bytes[unread.start..]);
            return Poll::Ready(Ok(unread.bytes.len() - unread.start));
        }
        slots::with(|bytes| {
            let limit = limit.clamp(2 * MAX_RECORD, bytes.len());
            let pieces = ready!(self.poll_opened(bytes, limit, cx))?;
            for piece in pieces.iter() {
                take(&bytes[piece]);
            }
            Poll::Ready(Ok(pieces.total()))
        })
    }

    /// Opens what has arrived and writes it to a plain socket.
    pub fn poll_open_to(
        &mut self,
        sink: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Moved, BulkError>> {
        slots::with(|bytes| {
            let limit = self.read_size.slots() * SLOT;
            let pieces = ready!(self.poll_opened(bytes, limit, cx)).map_err(BulkError::Source)?;
            let taken = pieces.total();
            let delivered = write_pieces(sink, bytes, &pieces).map_err(BulkError::Sink)?;
            let left = gather(bytes, &pieces, delivered);
            let is_full = taken >= self.read_size.slots() * MAX_CONTENT * 7 / 8;
            self.read_size.judge(is_full, left.is_empty());
            Poll::Ready(Ok(Moved { taken, left }))
        })
    }

    /// Seals what a plain socket has and writes it. What this side's socket does not take is kept
    /// here.
    pub fn poll_seal_from(
        &mut self,
        source: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Moved, BulkError>> {
        ready!(self.poll_ready_to_seal(cx)).map_err(BulkError::Sink)?;
        slots::with(|bytes| {
            let count = self.write_size.slots();
            let taken = {
                let mut contents = slots::contents(bytes);
                ready!(poll_read_some(source, &mut contents[..count], cx))
                    .map_err(BulkError::Source)?
            };
            self.seal_and_send(bytes, taken, cx)
                .map_err(BulkError::Sink)?;
            self.write_size
                .judge(taken == count * MAX_CONTENT, self.records.is_empty());
            Poll::Ready(Ok(Moved {
                taken,
                left: Vec::new(),
            }))
        })
    }

    /// Reads and opens at least one piece. None at the end of the peer's stream.
    fn poll_opened(
        &mut self,
        bytes: &mut [u8],
        limit: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Pieces>> {
        loop {
            match &mut self.reading {
                Reading::Open => {}
                Reading::Ended => return Poll::Ready(Ok(Pieces::new())),
                Reading::Failed(error) => {
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
                |room| poll_read_some(tcp, &mut [IoSliceMut::new(room)], cx),
            ))?;
            match opened.ended {
                Ok(false) => {}
                Ok(true) => {
                    // Nothing that comes behind counts (RFC 8446 §6.1).
                    self.received.clear();
                    self.reading = Reading::Ended;
                }
                Err(error) => self.fail(error),
            }
            if !opened.pieces.is_empty() {
                return Poll::Ready(Ok(opened.pieces));
            }
        }
    }

    /// Ready when everything sealed has left and the key is good for all slots.
    fn poll_ready_to_seal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.writing != Writing::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.poll_send_records(cx)
    }

    /// Writes what is sealed, and a change of keys when one is due.
    fn poll_send_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.records.poll_send(&mut self.tcp, cx))?;
        if self.writing == Writing::Open && self.session.is_update_due() {
            self.session.update_keys(&mut self.records.bytes)?;
            ready!(self.records.poll_send(&mut self.tcp, cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Seals the first `length` bytes of content in the slots, and writes the records as far as the
    /// socket takes them. Nothing else must be unsent.
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
                self.writing = Writing::Failed;
                return Err(error);
            }
            Poll::Pending => 0,
        };
        self.records.bytes = records[sent..].to_vec();
        Ok(())
    }

    /// Ends both directions because of what the peer did, and tells it, if its socket takes that at
    /// once.
    fn fail(&mut self, error: RecordError) {
        if self.writing == Writing::Open
            && let Some(alert) = error.alert()
            && self.session.alert(&mut self.records.bytes, alert).is_ok()
        {
            // Best effort: the connection is over either way.
            let _ = self.tcp.try_write(self.records.unsent());
        }
        self.received.clear();
        self.records = Unsent::default();
        self.writing = Writing::Failed;
        self.reading = Reading::Failed(Some(error));
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready_to_seal(cx))?;
        slots::with(|bytes| {
            let count = self.write_size.slots();
            let length = fill(&mut slots::contents(bytes)[..count]);
            self.seal_and_send(bytes, length, cx)?;
            self.write_size
                .judge(length == count * MAX_CONTENT, self.records.is_empty());
            Poll::Ready(Ok(length))
        })
    }
}

impl BulkSize {
    /// 64 KiB: what a sink that stops makes us hold.
    const LEAST: Self = Self(4);

    fn slots(self) -> usize {
        self.0
    }

    fn judge(&mut self, was_full: bool, was_delivered: bool) {
        // A fast sink is full now and then too.
        if !was_delivered {
            self.0 = (self.0 / 2).max(Self::LEAST.0);
        } else if was_full {
            self.0 = (self.0 * 2).min(SLOTS);
        }
    }
}

impl Unread {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let rest = &self.bytes[self.start..];
        let n = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..n]);
        self.start += n;
        if self.start == self.bytes.len() {
            *self = Self::default();
        }
    }
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn poll_send(&mut self, tcp: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        if !self.content.is_empty() {
            self.content.hand_on(buf);
            return Poll::Ready(Ok(()));
        }
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        slots::with(|bytes| {
            // Not much more than there is room for, but at least a record, with what is here of it
            // already.
            let limit = buf.remaining().clamp(2 * MAX_RECORD, bytes.len());
            let pieces = ready!(self.poll_opened(bytes, limit, cx))?;
            let mut handed = 0;
            for piece in pieces.iter() {
                let n = piece.len().min(buf.remaining());
                buf.put_slice(&bytes[piece.start..piece.start + n]);
                handed += n;
            }
            self.content.bytes = gather(bytes, &pieces, handed);
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
        match self.writing {
            Writing::Failed | Writing::Ended => Poll::Ready(Ok(())),
            Writing::Open | Writing::Ending => self.poll_send_records(cx),
        }
    }

    /// Says that no more will come (close_notify, then FIN). The peer may go on sending.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.writing == Writing::Open {
            let end = AlertDescription::CloseNotify;
            this.session.alert(&mut this.records.bytes, end)?;
            this.writing = Writing::Ending;
        }
        if this.writing == Writing::Ending {
            ready!(this.records.poll_send(&mut this.tcp, cx))?;
            this.writing = Writing::Ended;
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

fn poll_read_some(
    tcp: &TcpStream,
    into: &mut [IoSliceMut<'_>],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_read_ready(cx))?;
        match read_some(tcp, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read),
        }
    }
}

/// One read. One that does not fill its room has taken everything: saying so to the runtime saves
/// the read that would find nothing.
fn read_some(tcp: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let room: usize = into.iter().map(|slice| slice.len()).sum();
    let mut read = None;
    let tried = tcp.try_io(Interest::READABLE, || {
        let n = (&*SockRef::from(tcp)).read_vectored(into)?;
        read = Some(n);
        match n {
            1.. if n < room => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(n),
        }
    });
    match read {
        Some(n) => Ok(n),
        None => tried,
    }
}

/// Writes as much as the socket takes at once.
fn write_pieces(tcp: &TcpStream, bytes: &[u8], pieces: &Pieces) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); Pieces::MAX];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(pieces.iter()) {
        *slice = IoSlice::new(&bytes[piece]);
        count += 1;
    }
    if count == 0 {
        return Ok(0);
    }
    let written = tcp.try_io(Interest::WRITABLE, || {
        (&*SockRef::from(tcp)).write_vectored(&slices[..count])
    });
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        written => written,
    }
}

/// What the pieces hold behind the first `skip` bytes.
fn gather(bytes: &[u8], pieces: &Pieces, mut skip: usize) -> Vec<u8> {
    let mut rest = Vec::with_capacity(pieces.total().saturating_sub(skip));
    for piece in pieces.iter() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        rest.extend_from_slice(&bytes[piece.start + skipped..piece.end]);
    }
    rest
}

/// Copies as much as there is room for.
fn copy_into(contents: &mut [IoSliceMut<'_>], slices: &[IoSlice<'_>]) -> usize {
    let mut copied = 0;
    let mut rooms = contents.iter_mut();
    let mut room: &mut [u8] = &mut [];
    for slice in slices {
        let mut rest: &[u8] = slice;
        while !rest.is_empty() {
            if room.is_empty() {
                match rooms.next() {
                    Some(next) => room = next,
                    None => return copied,
                }
            }
            let n = rest.len().min(room.len());
            let (into, behind) = std::mem::take(&mut room).split_at_mut(n);
            into.copy_from_slice(&rest[..n]);
            room = behind;
            rest = &rest[n..];
            copied += n;
        }
    }
    copied
}
