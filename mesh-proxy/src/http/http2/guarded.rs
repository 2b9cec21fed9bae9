//! The bytes of an HTTP/2 connection, with an account of the frames among them. `h2` reads and writes through it.
//!
//! What is sent goes when whoever drives the connection says so ([`Standing::poll_send`]). An account that is overdrawn, and a head that does not arrive in time, end the connection here. What makes it end gently is said in [`Standing`], to whoever
//! drives the connection.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

use super::account::{Account, Role, Verdict, Violation};
use super::frames::{Head, PREFACE, Scanner};
use super::wire::{Failed, Wire};
use crate::config::HttpLimits;
use crate::transport::Io;

/// See the module.
pub(in crate::http) struct Guarded {
    received: Scanner,
    sent: Scanner,
    account: Account,
    standing: Rc<Standing>,
    heads: Heads,
    /// Bytes of header blocks that were handed on since the library was last made to look at them.
    unseen_heads: usize,
    head_time: Duration,
    /// Runs while a head is awaited.
    head_timer: Option<(Awaited, Pin<Box<Sleep>>)>,
}

/// What whoever drives the connection knows of it, and its bytes.
pub(in crate::http) struct Standing {
    wire: RefCell<Wire>,
    /// Counts messages, and parts of them, both ways.
    messages: Cell<u32>,
    /// Bytes of bodies that have arrived.
    data: Cell<u64>,
    /// When something was read last, once somebody wants to know.
    last_read: Cell<Option<Instant>>,
    violation: Cell<Option<Violation>>,
    retired: Notify,
}

/// How far the heads of the other side's messages have come.
#[derive(Clone, Copy, Debug, Default)]
struct Heads {
    /// Its settings, which come first, have come.
    is_greeted: bool,
    /// How many header blocks have begun.
    begun: u32,
    /// Of the last one, there are more frames to come.
    is_continued: bool,
    /// The last frame is part of one.
    is_last: bool,
}

/// What has begun to arrive: the connection itself, or a header block by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Greeting,
    Head(u32),
}

/// The library reads all that has come before it hands requests on, and one byte of a header block may become a field of 100 bytes in memory. So it is made to hand
/// them on after so many: some dozens of usual requests, or about one megabyte of the worst.
const MAX_UNSEEN_HEADS: usize = 8 * 1024;

impl Guarded {
    pub(in crate::http) fn new(io: Io, role: Role, limits: &HttpLimits) -> Self {
        let (theirs, ours) = match role {
            Role::Server => (PREFACE, 0),
            Role::Client => (0, PREFACE),
        };
        Self {
            received: Scanner::behind(theirs),
            sent: Scanner::behind(ours),
            account: Account::new(role, &limits.http2),
            standing: Rc::new(Standing::new(io)),
            heads: Heads::default(),
            unseen_heads: 0,
            head_time: limits.head_time,
            head_timer: None,
        }
    }

    pub(in crate::http) fn standing(&self) -> Rc<Standing> {
        self.standing.clone()
    }

    /// Looks at what was read; why the connection must end, if it must.
    fn account_received(&mut self, mut bytes: &[u8]) -> Option<Violation> {
        self.standing.was_read();
        while let Some(head) = self.received.next(&mut bytes) {
            self.heads.see(&head);
            if head.is_of_header_block() {
                self.unseen_heads += head.length as usize;
            }
            self.standing.count(&head);
            self.standing.count_data(&head);
            match self.account.received(&head) {
                Verdict::GoOn => {}
                Verdict::Retire(violation) => self.standing.retire(violation),
                Verdict::Cut(violation) => return Some(violation),
            }
        }
        let awaited = self.heads.awaited(self.received.is_within_payload());
        if self.head_timer.as_ref().map(|(of, _)| *of) != awaited {
            self.head_timer = None;
        }
        None
    }

    /// What was written may retire a connection, never end it.
    fn account_sent(&mut self, mut bytes: &[u8]) {
        while let Some(head) = self.sent.next(&mut bytes) {
            self.standing.count(&head);
            if let Verdict::Retire(violation) = self.account.sent(&head) {
                self.standing.retire(violation);
            }
        }
    }

    /// Ready when what is awaited is too late. Nobody is waited for as long as there is something to read.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(awaited) = self.heads.awaited(self.received.is_within_payload()) else {
            return Poll::Pending;
        };
        let head_time = self.head_time;
        let (_, timer) = self
            .head_timer
            .get_or_insert_with(|| (awaited, Box::pin(sleep(head_time))));
        timer.as_mut().poll(cx)
    }

    /// Ends the connection. The other side is told, if that is possible without waiting: it may be a program whose author will wonder.
    fn cut(&self, violation: Violation, cx: &mut Context<'_>) -> io::Error {
        self.standing.violation.set(Some(violation));
        if self.sent.is_between_frames() {
            let farewell = go_away(self.account.last_stream(), violation);
            let mut wire = self.standing.wire.borrow_mut();
            let _best_effort = wire.poll_write(cx, &[IoSlice::new(&farewell)]);
            let _best_effort = wire.poll_send(cx);
        }
        io::Error::other(violation)
    }
}

impl Standing {
    fn new(io: Io) -> Self {
        Self {
            wire: RefCell::new(Wire::new(io)),
            messages: Cell::default(),
            data: Cell::default(),
            last_read: Cell::default(),
            violation: Cell::default(),
            retired: Notify::default(),
        }
    }

    /// Sends what the library has written. To be polled when the library is pending; when it is an error, the library is to be polled again and will tell it.
    pub(in crate::http) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.wire.borrow_mut().poll_send(cx)
    }

    /// Why the connection was ended or retired, once.
    pub(in crate::http) fn take_violation(&self) -> Option<Violation> {
        self.violation.take()
    }

    /// Ready when no more streams may be opened.
    pub(in crate::http) async fn retired(&self) {
        self.retired.notified().await;
    }

    pub(in crate::http) fn messages(&self) -> &Cell<u32> {
        &self.messages
    }

    pub(super) fn data(&self) -> u64 {
        self.data.get()
    }

    /// Begins to note when something is read.
    pub(super) fn note_reads(&self, now: Instant) {
        self.last_read.set(Some(now));
    }

    pub(super) fn last_read(&self) -> Option<Instant> {
        self.last_read.get()
    }

    fn was_read(&self) {
        if self.last_read.get().is_some() {
            self.last_read.set(Some(Instant::now()));
        }
    }

    fn count_data(&self, head: &Head) {
        if head.kind == Head::DATA {
            self.data.set(self.data.get() + u64::from(head.length));
        }
    }

    fn count(&self, head: &Head) {
        if matches!(head.kind, Head::HEADERS | Head::DATA) {
            self.messages.set(self.messages.get().wrapping_add(1));
        }
    }

    fn retire(&self, violation: Violation) {
        self.violation.set(Some(violation));
        self.retired.notify_one();
    }
}

impl Heads {
    fn see(&mut self, head: &Head) {
        self.is_greeted |= head.kind == Head::SETTINGS;
        self.is_last = head.is_of_header_block();
        self.is_continued = self.is_last && !head.ends_headers();
        if head.kind == Head::HEADERS {
            self.begun = self.begun.wrapping_add(1);
        }
    }

    fn awaited(self, is_within_payload: bool) -> Option<Awaited> {
        if !self.is_greeted {
            return Some(Awaited::Greeting);
        }
        let is_incomplete = self.is_continued || (self.is_last && is_within_payload);
        is_incomplete.then_some(Awaited::Head(self.begun))
    }
}

/// RFC 9113, section 6.8: ENHANCE_YOUR_CALM, and in words why.
fn go_away(last_stream: u32, violation: Violation) -> Vec<u8> {
    let words = violation.label().as_bytes();
    // Labels are short.
    let length = 8 + words.len() as u8;
    let mut frame = vec![0, 0, length, 7, 0, 0, 0, 0, 0];
    frame.extend(last_stream.to_be_bytes());
    frame.extend(u32::from(h2::Reason::ENHANCE_YOUR_CALM).to_be_bytes());
    frame.extend(words);
    frame
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unseen_heads > MAX_UNSEEN_HEADS {
            self.unseen_heads = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = self.standing.wire.borrow_mut().poll_read(cx, buf);
        let violation = match read {
            Poll::Ready(Ok(())) => self.account_received(&buf.filled()[before..]),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                ready!(self.poll_late(cx));
                Some(Violation::HeadTime)
            }
        };
        Poll::Ready(match violation {
            None => Ok(()),
            Some(violation) => Err(self.cut(violation, cx)),
        })
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.standing.wire.borrow_mut().poll_write(cx, slices))?;
        let mut left = written;
        for slice in slices {
            let here = left.min(slice.len());
            self.account_sent(&slice[..here]);
            left -= here;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The library flushes after each large frame; see [`Standing::poll_send`].
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.standing.wire.borrow_mut().poll_shutdown(cx)
    }
}
