//! One TCP connection: the state of both sockets, and the bytes between them.
//!
//! Follows Linux where an application can tell the difference: which calls fail, with their errors,
//! and when a peer receives RST instead of FIN. Segments, sequence numbers and retransmission are
//! not modelled: bytes arrive in order, in pieces that the network chooses.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::errno::Errno;

use crate::conditions::Conditions;

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The socket that has called `connect`.
    Opener,
    /// The socket that `accept` returns.
    Acceptor,
}

/// The network has carried this to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// This many bytes.
    Bytes(usize),
    Fin,
    Reset,
    /// Bytes for a socket that accepts none any more. Its host answers with RST.
    Refused,
}

/// The progress of a socket's FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    None,
    /// It follows the unsent bytes.
    Queued,
    Delivered,
}

#[derive(Debug)]
struct Socket {
    local: SocketAddr,
    /// Written and not yet delivered.
    unsent: VecDeque<u8>,
    send_capacity: usize,
    received: VecDeque<u8>,
    receive_capacity: usize,
    fin: Fin,
    /// An RST follows the unsent bytes.
    reset_queued: bool,
    peer_has_finished: bool,
    /// The error that the next call reports, once.
    error: Option<Errno>,
    /// The kernel has ended the connection: TCP_CLOSE.
    is_over: bool,
    /// Both directions are shut down, or the socket is closed: bytes that arrive are refused.
    refuses_bytes: bool,
    /// The application has no descriptor any more.
    is_closed: bool,
    resets_on_close: bool,
    options: Options,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// Options of a socket that limit how long it waits for a vanished peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) keepalive: Option<Duration>,
    pub(crate) user_timeout: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    opener: Socket,
    acceptor: Socket,
    /// The hosts of opener and acceptor.
    hosts: [IpAddr; 2],
    /// The tasks to wake when the network's lock is released.
    woken: Vec<Waker>,
}

impl Side {
    pub(crate) fn peer(self) -> Self {
        match self {
            Self::Opener => Self::Acceptor,
            Self::Acceptor => Self::Opener,
        }
    }
}

impl Socket {
    fn new(local: SocketAddr, conditions: &Conditions) -> Self {
        Self {
            local,
            unsent: VecDeque::new(),
            send_capacity: conditions.send_capacity,
            received: VecDeque::new(),
            receive_capacity: conditions.receive_capacity,
            fin: Fin::None,
            reset_queued: false,
            peer_has_finished: false,
            error: None,
            is_over: false,
            refuses_bytes: false,
            is_closed: false,
            resets_on_close: false,
            options: Options::default(),
            reader: None,
            writer: None,
        }
    }

    fn space(&self) -> usize {
        self.receive_capacity.saturating_sub(self.received.len())
    }

    fn has_both_ends(&self) -> bool {
        self.peer_has_finished && self.fin == Fin::Delivered
    }

    /// Ends the connection without a word to the peer.
    fn end(&mut self, error: Option<Errno>) {
        self.is_over = true;
        self.error = error;
        self.unsent.clear();
        if self.fin == Fin::Queued {
            self.fin = Fin::None;
        }
    }

    /// Ends the connection with RST. At most `in_flight` of the unsent bytes precede it.
    fn abort(&mut self, in_flight: usize) {
        let kept = self.unsent.len().min(in_flight);
        let unsent = std::mem::take(&mut self.unsent);
        self.end(None);
        self.unsent.extend(unsent.into_iter().take(kept));
        self.received.clear();
        self.reset_queued = true;
    }

    fn wake(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.reader.take());
        woken.extend(self.writer.take());
    }
}

impl Connection {
    pub(crate) fn new(
        [opener, acceptor]: [SocketAddr; 2],
        hosts: [IpAddr; 2],
        conditions: &Conditions,
    ) -> Self {
        Self {
            opener: Socket::new(opener, conditions),
            acceptor: Socket::new(acceptor, conditions),
            hosts,
            woken: Vec::new(),
        }
    }

    /// The socket of a side and its peer's.
    fn pair(&mut self, side: Side) -> (&mut Socket, &mut Socket, &mut Vec<Waker>) {
        match side {
            Side::Opener => (&mut self.opener, &mut self.acceptor, &mut self.woken),
            Side::Acceptor => (&mut self.acceptor, &mut self.opener, &mut self.woken),
        }
    }

    fn socket(&self, side: Side) -> &Socket {
        match side {
            Side::Opener => &self.opener,
            Side::Acceptor => &self.acceptor,
        }
    }

    pub(crate) fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }

    pub(crate) fn hosts(&self) -> [IpAddr; 2] {
        self.hosts
    }

    pub(crate) fn is_closed(&self, side: Side) -> bool {
        self.socket(side).is_closed
    }

    pub(crate) fn local_addr(&self, side: Side) -> SocketAddr {
        self.socket(side).local
    }

    /// Whether no application holds a descriptor and nothing is on its way.
    pub(crate) fn is_finished(&self) -> bool {
        [Side::Opener, Side::Acceptor]
            .iter()
            .all(|&side| self.socket(side).is_closed && !self.has_something_to_deliver(side))
    }

    /// Whether the side has sent something that can arrive now.
    pub(crate) fn has_something_to_deliver(&self, from: Side) -> bool {
        let (own, peer) = (self.socket(from), self.socket(from.peer()));
        if own.unsent.is_empty() {
            return own.reset_queued || own.fin == Fin::Queued;
        }
        peer.space() > 0 || peer.refuses_bytes || peer.is_over
    }

    /// How many bytes can arrive at once.
    pub(crate) fn deliverable(&self, from: Side) -> usize {
        let (own, peer) = (self.socket(from), self.socket(from.peer()));
        own.unsent.len().min(peer.space())
    }

    /// Carries at most `limit` bytes, or what follows them, to the peer.
    pub(crate) fn deliver(&mut self, from: Side, limit: usize) -> Option<Delivered> {
        let (own, peer, woken) = self.pair(from);
        if !own.unsent.is_empty() {
            if peer.is_over || peer.refuses_bytes {
                own.unsent.clear();
                if own.fin == Fin::Queued {
                    own.fin = Fin::Delivered;
                }
                if !peer.is_over {
                    peer.end(Some(Errno::ECONNRESET));
                    peer.wake(woken);
                }
                // A socket whose RST is on its way hears no answer.
                peer.reset_queued |= !own.is_over;
                return Some(Delivered::Refused);
            }
            let n = own.unsent.len().min(peer.space()).min(limit);
            if n == 0 {
                return None;
            }
            peer.received.extend(own.unsent.drain(..n));
            woken.extend(peer.reader.take());
            woken.extend(own.writer.take());
            return Some(Delivered::Bytes(n));
        }
        if own.reset_queued {
            own.reset_queued = false;
            if !peer.is_over && !peer.has_both_ends() {
                let is_close_wait = peer.peer_has_finished && peer.fin == Fin::None;
                peer.end(Some(if is_close_wait {
                    Errno::EPIPE
                } else {
                    Errno::ECONNRESET
                }));
                peer.wake(woken);
            }
            return Some(Delivered::Reset);
        }
        if own.fin == Fin::Queued {
            own.fin = Fin::Delivered;
            if !peer.is_over {
                peer.peer_has_finished = true;
                woken.extend(peer.reader.take());
            }
            return Some(Delivered::Fin);
        }
        None
    }

    pub(crate) fn poll_read(
        &mut self,
        side: Side,
        slices: &mut [IoSliceMut<'_>],
        cx: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let read = self.try_read(side, slices);
        if is_blocked(&read) {
            self.pair(side).0.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(read)
    }

    fn try_read(&mut self, side: Side, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (own, ..) = self.pair(side);
        if !own.received.is_empty() {
            let mut read = 0;
            for slice in slices {
                let n = slice.len().min(own.received.len());
                for (to, from) in slice.iter_mut().zip(own.received.drain(..n)) {
                    *to = from;
                }
                read += n;
            }
            return Ok(read);
        }
        if own.peer_has_finished {
            return Ok(0);
        }
        if let Some(error) = own.error.take() {
            return Err(error.into());
        }
        if own.is_over || own.refuses_bytes {
            return Ok(0);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    pub(crate) fn poll_write(
        &mut self,
        side: Side,
        slices: &[IoSlice<'_>],
        cx: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = self.try_write(side, slices);
        if is_blocked(&written) {
            self.pair(side).0.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(written)
    }

    pub(crate) fn try_write(&mut self, side: Side, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let (own, ..) = self.pair(side);
        if own.error.is_some() || own.is_over || own.fin != Fin::None {
            return Err(own.error.take().unwrap_or(Errno::EPIPE).into());
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let free = own.send_capacity.saturating_sub(own.unsent.len());
        if free == 0 && total > 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut left = free;
        for slice in slices {
            let n = slice.len().min(left);
            own.unsent.extend(&slice[..n]);
            left -= n;
        }
        Ok(free - left)
    }

    /// Sends FIN after the unsent bytes.
    pub(crate) fn finish(&mut self, side: Side) {
        let (own, ..) = self.pair(side);
        if !own.is_over && own.fin == Fin::None {
            own.fin = Fin::Queued;
        }
    }

    /// Shuts both directions down: the own readers receive the end of the stream, and bytes that
    /// arrive are refused.
    pub(crate) fn shut_down(&mut self, side: Side) {
        self.finish(side);
        let (own, _, woken) = self.pair(side);
        own.refuses_bytes = true;
        own.wake(woken);
    }

    /// Closes the descriptor. `in_flight` is the number of unsent bytes that have left the host
    /// already, if the close is abortive.
    pub(crate) fn close(&mut self, side: Side, in_flight: usize) {
        let (own, peer, _) = self.pair(side);
        own.is_closed = true;
        own.reader = None;
        own.writer = None;
        if own.is_over || own.has_both_ends() {
            own.refuses_bytes = true;
            own.received.clear();
            return;
        }
        if own.resets_on_close || !own.received.is_empty() {
            own.abort(in_flight.min(peer.space()));
        } else {
            own.refuses_bytes = true;
            self.finish(side);
        }
    }

    /// Ends one side's connection, as after the last retransmission to a peer that has vanished.
    pub(crate) fn give_up(&mut self, side: Side) {
        let (own, _, woken) = self.pair(side);
        if !own.is_over {
            own.end(Some(Errno::ETIMEDOUT));
            own.wake(woken);
        }
    }

    pub(crate) fn set_resets_on_close(&mut self, side: Side) {
        self.pair(side).0.resets_on_close = true;
    }

    pub(crate) fn set_send_capacity(&mut self, side: Side, capacity: usize) {
        let (own, ..) = self.pair(side);
        own.send_capacity = own.send_capacity.min(capacity);
    }

    pub(crate) fn set_options(&mut self, side: Side, options: Options) {
        self.pair(side).0.options = options;
    }

    /// How long the side waits for a peer that has vanished; `None` if nothing makes it notice.
    pub(crate) fn patience(&self, side: Side) -> Option<Duration> {
        let own = self.socket(side);
        if own.is_over {
            return None;
        }
        let has_unacknowledged = !own.unsent.is_empty() || own.fin == Fin::Queued;
        if has_unacknowledged {
            return Some(own.options.user_timeout.unwrap_or(RETRANSMISSION_TIMEOUT));
        }
        own.options
            .keepalive
            .map(|idle| idle + KEEPALIVE_PROBE_INTERVAL * KEEPALIVE_PROBES)
    }

    /// Whether the peer has received everything, or never will.
    pub(crate) fn is_acknowledged(&self, side: Side) -> bool {
        let own = self.socket(side);
        own.is_over || (own.unsent.is_empty() && own.fin != Fin::Queued)
    }
}

/// `net.ipv4.tcp_retries2` of 15, in sum.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(924_600);
/// `net.ipv4.tcp_keepalive_intvl`.
const KEEPALIVE_PROBE_INTERVAL: Duration = Duration::from_secs(75);
/// `net.ipv4.tcp_keepalive_probes`.
const KEEPALIVE_PROBES: u32 = 9;

fn is_blocked(result: &io::Result<usize>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
