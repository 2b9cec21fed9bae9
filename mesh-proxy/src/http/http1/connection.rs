//! One HTTP/1 connection: the stream, what has been read but not handed on, where in a message that
//! is, and what is to be written. Server and client share it, by `Rc`, with the bodies that are
//! read from it.
//!
//! Whoever polls is woken: the connection's own task, or another task of the thread that reads a
//! body (an HTTP/2 request on its way out has one). Only one of them reads at a time: as long as a
//! body is held by somebody, nobody else reads.

use std::cell::{RefCell, RefMut};
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, Version};
use http_body::Frame;
use socket2::SockRef;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::task::coop;
use tokio_util::io::poll_read_buf;

use self::decoder::Decoder;
use super::chunked::{self, Piece};
use super::encode::{self, Framing};
use super::framing::BodyLength;
use super::head::{self, End};
use super::output::Output;
use super::{Error, Refused};
use crate::config::Http1Limits;
use crate::http::buffers::{self, READ_SIZE};
use crate::http::patience::Announced;
use crate::transport::Io;

mod decoder;
mod handles;

pub(crate) use self::handles::{Incoming, Interim};

/// See the module. Its methods borrow it for the time of one call only.
#[derive(Debug)]
pub(crate) struct Connection(RefCell<State>);

#[derive(Debug)]
struct State {
    io: Io,
    limits: Http1Limits,
    /// Read but not handed on. Without memory when it is empty.
    input: BytesMut,
    /// How much of `input` is known to hold no end of a head.
    scanned: usize,
    /// The last read was so large that the next is worth a buffer of its own.
    bulk: bool,
    read_closed: bool,
    body: Decoder,
    /// Bytes between the data of bodies that have been processed and not been charged for.
    framing: usize,
    /// Somebody may still read the body.
    body_held: bool,
    /// Somebody wants more of it than has come.
    starves: bool,
    /// Why the body was refused, for whoever answers.
    refused: Option<Refused>,
    expectation: Expectation,
    output: Output,
    /// The task of the connection, when it waits for somebody else to be done with the body.
    owner: Option<Waker>,
}

/// What is to be done about a client that waits for a 100 before it sends the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expectation {
    None,
    /// The 100 is sent when somebody wants to read the body.
    Ours,
    /// The server's answer is passed on.
    Servers,
}

/// So many bytes between the data of a chunked body count as one of the 128 operations of a task's
/// turn, which so has 4,096 chunks of one byte at most (docs/adr/0019).
const FRAMING_PER_UNIT: usize = 160;

/// What has to happen to the rest of a request's body before another request can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Over,
    /// Somebody reads it.
    Held,
    /// Nobody wants it. At least this much is to come, if that is known.
    Unwanted(Option<u64>),
    /// Its end cannot be found.
    Lost,
}

impl Connection {
    pub(crate) fn new(io: Io, limits: Http1Limits) -> Rc<Self> {
        Rc::new(Self(RefCell::new(State {
            io,
            limits,
            input: BytesMut::new(),
            scanned: 0,
            bulk: false,
            read_closed: false,
            body: Decoder::Over,
            framing: 0,
            body_held: false,
            starves: false,
            refused: None,
            expectation: Expectation::None,
            output: Output::default(),
            owner: None,
        })))
    }

    pub(crate) fn limits(&self) -> Http1Limits {
        self.state().limits
    }

    fn state(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// The stream, with everything that was read ahead in front; `None` while somebody else holds
    /// the connection.
    pub(crate) fn into_io(self: Rc<Self>) -> Option<Io> {
        let State { mut io, input, .. } = Rc::into_inner(self)?.0.into_inner();
        if !input.is_empty() {
            // What the stream itself still has to replay comes behind it.
            let behind = Bytes::copy_from_slice(io.replay());
            io.consume_replay(behind.len());
            io.push_replay(&input);
            io.push_replay(&behind);
        }
        Some(io)
    }

    /// Whether anything of the next message is there. False at the end of the stream.
    pub(super) fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let mut state = self.state();
        if state.input.is_empty() {
            ready!(state.poll_fill(cx))?;
        }
        Poll::Ready(Ok(!state.input.is_empty()))
    }

    /// The next head; `None` at the end of the stream.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        let mut state = self.state();
        loop {
            if let Some(head) = state.head()? {
                return Poll::Ready(Ok(Some(head)));
            }
            if ready!(state.poll_fill(cx))? == 0 {
                return Poll::Ready(match state.input.is_empty() {
                    true => Ok(None),
                    false => Err(Error::Incomplete),
                });
            }
        }
    }

    /// A head that has been read completely.
    pub(super) fn try_head(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.state().head()?)
    }

    /// The body of the message whose head was read last. `expects_continue`: its sender waits for a
    /// 100.
    pub(crate) fn begin_body(
        self: &Rc<Self>,
        length: BodyLength,
        expects_continue: bool,
    ) -> Option<Incoming> {
        let mut state = self.state();
        state.expectation = match expects_continue {
            true => Expectation::Ours,
            false => Expectation::None,
        };
        state.body = match length {
            BodyLength::Bytes(0) => {
                state.body = Decoder::Over;
                return None;
            }
            BodyLength::Bytes(length) => Decoder::Bytes(length),
            BodyLength::Chunked => Decoder::Chunked(chunked::Decoder::new(&state.limits)),
            BodyLength::UntilClose => Decoder::UntilClose,
        };
        state.body_held = true;
        state.starves = false;
        drop(state);
        Some(Incoming(self.clone()))
    }

    /// Lets something be added to what is to be written.
    pub(super) fn write<T>(&self, add: impl FnOnce(&mut Output) -> T) -> T {
        add(&mut self.state().output)
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let state = &mut *self.state();
        let flushed = state.output.poll_flush(&mut state.io, cx);
        flushed.map_err(Error::Write)
    }

    /// Writes everything and closes the writing half.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_flush(cx))?;
        let shut = Pin::new(&mut self.state().io).poll_shutdown(cx);
        shut.map_err(Error::Write)
    }

    /// Ready when the other side has gone for good. Half a close is none: it may still read. Does
    /// nothing while somebody reads a body.
    pub(super) fn poll_vanished(&self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut state = self.state();
        if !matches!(state.body, Decoder::Over) {
            state.wait_for_body(cx);
            return Poll::Pending;
        }
        if state.read_closed || !state.input.is_empty() {
            return Poll::Pending;
        }
        match state.poll_fill(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// What is left of the request's body. Waits while somebody reads it.
    pub(super) fn poll_rest(&self, cx: &Context<'_>) -> Poll<Rest> {
        let mut state = self.state();
        match state.rest() {
            Rest::Held => {
                state.wait_for_body(cx);
                Poll::Pending
            }
            rest => Poll::Ready(rest),
        }
    }

    pub(super) fn rest(&self) -> Rest {
        self.state().rest()
    }

    /// Reads the body and throws it away, at most `left` bytes. Whether that was all.
    pub(super) fn poll_discard(&self, cx: &mut Context<'_>, left: &mut u64) -> Poll<bool> {
        let mut state = self.state();
        loop {
            let data = match ready!(state.poll_body(cx)) {
                Ok(Some(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
                Ok(None) => return Poll::Ready(true),
                Err(_broken) => return Poll::Ready(false),
            };
            match left.checked_sub(data) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(false),
            }
        }
    }

    /// Reads whatever still comes and throws it away, until the other side has closed or `limit` is
    /// reached.
    pub(super) fn poll_linger(&self, cx: &mut Context<'_>, left: &mut u64) -> Poll<()> {
        let mut state = self.state();
        loop {
            state.input = BytesMut::new();
            match ready!(state.poll_fill(cx)) {
                Ok(n) if n > 0 && n as u64 <= *left => *left -= n as u64,
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Bytes have come that do not belong to the message.
    pub(super) fn has_surplus(&self) -> bool {
        !self.state().input.is_empty()
    }

    /// Whether nothing of the message that was begun last has reached the stream.
    pub(crate) fn has_written_nothing(&self) -> bool {
        !self.state().output.has_begun()
    }

    /// Why the body was refused.
    pub(super) fn refused(&self) -> Option<Refused> {
        self.state().refused
    }

    /// The client waits for a 100 and has got none, so that it may send the body or not.
    pub(super) fn is_undecided(&self) -> bool {
        self.state().expectation != Expectation::None
    }

    /// Whether another message can be exchanged: the last one has been read and written completely,
    /// and nothing has come since.
    pub(crate) fn is_clean(&self) -> bool {
        let state = self.state();
        matches!(state.body, Decoder::Over)
            && state.input.is_empty()
            && state.output.is_empty()
            && !state.read_closed
    }

    /// Whether an idle connection is still open and silent, as far as this thread has been told.
    /// Bytes that nobody asked for count as a failure.
    pub(crate) fn is_alive(&self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        self.poll_ended(&mut nobody).is_pending()
    }

    /// Ready when an idle connection is no longer open and silent.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.read_closed || !state.input.is_empty() {
            return Poll::Ready(());
        }
        state.poll_fill(cx).map(|_bytes_or_end| ())
    }

    /// Tells the peer of a TLS session that the connection ends on purpose, if that is possible
    /// without waiting.
    pub(crate) fn say_goodbye(&self) {
        let mut state = self.state();
        if state.io.is_tls() {
            let mut nobody = Context::from_waker(Waker::noop());
            let _best_effort = Pin::new(&mut state.io).poll_shutdown(&mut nobody);
        }
    }

    /// Ends the connection for whoever still reads a body from it. Otherwise dropping it is enough.
    pub(super) fn cut_off(&self) {
        let state = self.state();
        if state.body_held {
            // It is broken all the same when this fails.
            let _gone = SockRef::from(state.io.tcp()).shutdown(Shutdown::Both);
        }
    }

    /// Closes the connection, when it is dropped, in a way that the other side cannot take for the
    /// end of a message.
    pub(super) fn reset(&self) {
        let state = self.state();
        // The connection is closed all the same when this fails.
        let _unset = SockRef::from(state.io.tcp()).set_linger(Some(Duration::ZERO));
    }
}

impl Announced for Rc<Connection> {
    fn outstanding(&self) -> u64 {
        match self.state().body {
            Decoder::Bytes(left) => left,
            _ => 0,
        }
    }

    fn is_awaited(&self) -> bool {
        let state = self.state();
        // A client that has not been told to go on does not keep anybody waiting: the server does.
        state.body_held && state.starves && state.expectation == Expectation::None
    }
}

impl State {
    /// Takes a head off the input.
    fn head(&mut self) -> Result<Option<Bytes>, Refused> {
        if self.input.is_empty() {
            return Ok(None);
        }
        match head::end(&self.input, self.scanned, self.limits.head)? {
            End::At(length) => {
                self.scanned = 0;
                Ok(Some(self.take(length)))
            }
            End::Later(scanned) => {
                self.scanned = scanned;
                Ok(None)
            }
        }
    }

    fn take(&mut self, length: usize) -> Bytes {
        let taken = self.input.split_to(length).freeze();
        self.let_go();
        taken
    }

    /// An empty input must not keep the memory alive that it was part of.
    fn let_go(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Reads more; 0 at the end of the stream, for ever.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        if self.read_closed {
            return Poll::Ready(Ok(0));
        }
        let read = match self.bulk && self.input.is_empty() {
            true => ready!(self.poll_fill_directly(cx)),
            false => ready!(self.poll_fill_through_buffer(cx)),
        };
        let n = read.map_err(Error::Read)?;
        self.bulk = n >= READ_SIZE / 2;
        self.read_closed = n == 0;
        Poll::Ready(Ok(n))
    }

    /// What is read takes no more memory than it needs.
    fn poll_fill_through_buffer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        buffers::with_room(|room| {
            let mut buffer = ReadBuf::new(&mut room[..READ_SIZE]);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            self.input.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }

    /// Saves the copy, which matters for bulk only.
    fn poll_fill_directly(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut input = BytesMut::with_capacity(READ_SIZE);
        let n = ready!(poll_read_buf(Pin::new(&mut self.io), cx, &mut input))?;
        self.input = input;
        Poll::Ready(Ok(n))
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Error>> {
        let polled = self.poll_piece(cx);
        self.starves = polled.is_pending();
        polled
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Error>> {
        loop {
            ready!(self.poll_turn(cx));
            let before = self.input.len();
            let next = self.body.next(&mut self.input, &self.limits);
            let data = match &next {
                Ok(Some(Piece::Data(data))) => data.len(),
                _ => 0,
            };
            self.framing += before - self.input.len() - data;
            match next {
                Ok(None) if matches!(self.body, Decoder::Over) => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Ok(Some(Piece::Data(data))) => {
                    self.let_go();
                    self.tell_owner();
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Ok(Some(Piece::End(trailers))) => {
                    self.let_go();
                    self.tell_owner();
                    return Poll::Ready(Ok(trailers.map(Frame::trailers)));
                }
                Err(refused) => {
                    self.refused = Some(refused);
                    return Poll::Ready(Err(self.broken(refused.into())));
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if matches!(self.body, Decoder::UntilClose) => self.body = Decoder::Over,
                Ok(0) => return Poll::Ready(Err(self.broken(Error::Incomplete))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(self.broken(error))),
            }
        }
    }

    /// Ends the task's turn when it has processed enough chunks: tokio ends it after 128 reads and
    /// writes, and what one read brings may be ten thousand chunks.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.framing >= FRAMING_PER_UNIT {
            ready!(coop::poll_proceed(cx)).made_progress();
            self.framing -= FRAMING_PER_UNIT;
        }
        Poll::Ready(())
    }

    fn broken(&mut self, error: Error) -> Error {
        self.body = Decoder::Broken;
        self.tell_owner();
        error
    }

    fn rest(&self) -> Rest {
        let left = match self.body {
            Decoder::Over => return Rest::Over,
            Decoder::Broken => return Rest::Lost,
            Decoder::Bytes(left) => Some(left),
            Decoder::Chunked(_) | Decoder::UntilClose => None,
        };
        match self.body_held {
            true => Rest::Held,
            false => Rest::Unwanted(left),
        }
    }

    fn wait_for_body(&mut self, cx: &Context<'_>) {
        if self.body_held && !self.owner.as_ref().is_some_and(|o| o.will_wake(cx.waker())) {
            self.owner = Some(cx.waker().clone());
        }
    }

    /// The body is over or given up, which the connection's task may be waiting for.
    fn tell_owner(&mut self) {
        if (!self.body_held || matches!(self.body, Decoder::Over | Decoder::Broken))
            && let Some(owner) = self.owner.take()
        {
            owner.wake();
        }
    }

    /// Sends the 100 that the client waits for, now that somebody wants the body.
    fn keep_expectation(&mut self, cx: &mut Context<'_>) {
        if self.expectation != Expectation::Ours {
            return;
        }
        self.expectation = Expectation::None;
        let state = (Version::HTTP_11, StatusCode::CONTINUE, None);
        encode::response(
            self.output.flat(),
            state,
            &HeaderMap::new(),
            Framing::None,
            None,
        );
        // What cannot be written now goes with the response; an error comes back there.
        let _later = self.output.poll_flush(&mut self.io, cx);
    }
}
