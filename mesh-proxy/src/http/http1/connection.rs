//! One HTTP/1 connection: the stream, the input that has not been processed, the position within a
//! message, and the output. A server or client shares it by `Rc` with the bodies that are read from
//! it.
//!
//! The task that polls is woken: the connection's own task, or a task that reads a body (an HTTP/2
//! request being forwarded has one). Only one task reads at a time: while a body is in use, only
//! its reader reads.

use std::cell::{RefCell, RefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version};
use http_body::Frame;
use mesh_planted::Bug;
use mesh_runtime::bounded_buffer::{BoundedBuffer, Fill};
use tokio::io::{AsyncRead as _, AsyncWrite as _};
use tokio::task::coop;

use self::decoder::BodyDecoder;
use super::Error;
use super::chunked::{self, BodyPart};
use super::encode::{self, FramingHeaders};
use super::framing::BodyLength;
use super::limits::max_input;
use super::parse::{self, ParsedResponse};
use super::write_buffer::WriteBuffer;
use crate::config::Http1Limits;
use crate::http::body_timeout::PendingRequestBody;
use crate::http::buffers::{self, READ_SIZE};
use crate::http::client_close::UpstreamStream;
use crate::http::linger::Closing;
use crate::http::message_error::MessageError;
use crate::time_slice;
use crate::transport::Io;

mod decoder;
mod handles;
mod headers;
mod reuse;
mod sending;

pub(crate) use self::handles::{IncomingBody, InterimSender};
use self::sending::Sending;

/// The methods borrow the state only during one call.
#[derive(Debug)]
pub(crate) struct Connection(RefCell<Inner>);

#[derive(Debug)]
struct Inner {
    io: Io,
    limits: Http1Limits,
    /// Input that has not been processed. Holds no memory when it is empty.
    input: BoundedBuffer,
    /// How many empty lines were skipped before the request line.
    empty_lines: u8,
    /// The end of the header section is not within this many bytes of `input`.
    scanned: usize,
    /// Whether that, or the header section that was taken last, has a line feed without a carriage
    /// return. Only where responses are parsed leniently.
    has_bare_line_feed: bool,
    /// The last read was so large that the next one gets its own buffer.
    last_read_was_large: bool,
    /// The most bytes of one read.
    read_size: u32,
    read_closed: bool,
    body: BodyDecoder,
    /// Bytes of chunked framing that have been processed and not yet charged to the task's budget.
    uncharged_framing: usize,
    /// An [`IncomingBody`] exists, so its holder may still read the body.
    body_in_use: bool,
    /// The reader of the body waits for more of it.
    reader_waits: bool,
    /// The error of the body, which determines the server's response.
    body_error: Option<MessageError>,
    expectation: ExpectContinue,
    /// The client of the last request has been sent an interim response of the server.
    has_interim: bool,
    output: WriteBuffer,
    /// The connection's task, while it waits until the body is no longer in use.
    connection_task: Option<Waker>,
    /// Learns of the end of the client's stream and of the failure of its connection. Only an
    /// accepted connection has one.
    upstream: Option<UpstreamStream>,
    /// Of an accepted connection: the exchange ends without a response.
    is_abandoned: bool,
    /// The connection has failed.
    has_failed: bool,
    /// Of an opened connection: the number of exchanges that have begun or ended. Wraps.
    exchanges: u32,
    sending: Sending,
}

/// State of a client that waits for a 100 before it sends the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectContinue {
    None,
    /// The proxy sends the 100 when the body is first polled.
    Local,
    /// The proxy forwards the server's 100.
    Forwarded,
    /// The proxy has sent the 100.
    Sent,
}

impl ExpectContinue {
    fn is_awaited(self) -> bool {
        matches!(self, Self::Local | Self::Forwarded)
    }
}

/// This many bytes of chunked framing count as one of the 128 operations that a task may do per
/// poll, which allows 4,096 chunks of one byte (docs/adr/0019).
const FRAMING_BYTES_PER_OPERATION: usize = 160;

/// What remains of a request's body before the next request can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemainingBody {
    Complete,
    /// A reader holds it.
    InUse,
    /// No reader holds it, so it is to be discarded. At least this many bytes remain, if that is
    /// known.
    Discard(Option<u64>),
    /// Its end cannot be determined.
    Unframed,
}

impl Connection {
    pub(crate) fn new(io: Io, limits: Http1Limits) -> Rc<Self> {
        Rc::new(Self(RefCell::new(Inner {
            io,
            limits,
            input: BoundedBuffer::new(max_input(&limits)),
            empty_lines: 0,
            scanned: 0,
            has_bare_line_feed: false,
            last_read_was_large: false,
            read_size: READ_SIZE as u32,
            read_closed: false,
            body: BodyDecoder::Complete,
            uncharged_framing: 0,
            body_in_use: false,
            reader_waits: false,
            body_error: None,
            expectation: ExpectContinue::None,
            has_interim: false,
            output: WriteBuffer::new(),
            connection_task: None,
            upstream: None,
            is_abandoned: false,
            has_failed: false,
            exchanges: 0,
            sending: Sending::Open { is_complete: false },
        })))
    }

    /// Parses the header section of a response, which was read last.
    pub(crate) fn parse_response(&self, headers: &Bytes) -> Result<ParsedResponse, MessageError> {
        let inner = self.inner();
        parse::parse_response(headers, &inner.limits, inner.has_bare_line_feed)
    }

    fn inner(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    /// Returns the stream, with all unprocessed input in front; `None` while the connection is
    /// shared.
    pub(crate) fn into_io(self: Rc<Self>) -> Option<Io> {
        let Inner {
            mut io, mut input, ..
        } = Rc::into_inner(self)?.0.into_inner();
        if !input.is_empty() && !Bug::TunnelBytesLost.is_planted() {
            io.put_back(input.take_all());
        }
        Some(io)
    }

    /// Whether the next request has begun. False at the end of the stream. Skips empty lines before
    /// the request line.
    pub(super) fn poll_request_start(&self, cx: &mut Context<'_>) -> Poll<Result<bool, Error>> {
        let mut inner = self.inner();
        while !inner.skip_empty_lines() {
            if ready!(inner.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(!inner.input.is_empty()));
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Reads the next start line and header section; `None` at the end of the stream.
    pub(crate) fn poll_headers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        let mut inner = self.inner();
        loop {
            if let Some(headers) = inner.take_headers()? {
                return Poll::Ready(Ok(Some(headers)));
            }
            if ready!(inner.poll_fill(cx))? == 0 {
                return Poll::Ready(if inner.input.is_empty() {
                    Ok(None)
                } else {
                    Err(Error::Incomplete)
                });
            }
        }
    }

    /// Takes a header section that has already been read completely.
    pub(super) fn try_take_headers(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.inner().take_headers()?)
    }

    /// Begins the body of the message whose headers were read last. `expects_continue` means that
    /// its sender waits for a 100.
    pub(crate) fn begin_body(
        self: &Rc<Self>,
        length: BodyLength,
        expects_continue: bool,
    ) -> Option<IncomingBody> {
        let mut inner = self.inner();
        inner.has_interim = false;
        inner.expectation = if expects_continue {
            ExpectContinue::Local
        } else {
            ExpectContinue::None
        };
        inner.body = match length {
            BodyLength::Bytes(0) => {
                inner.body = BodyDecoder::Complete;
                return None;
            }
            BodyLength::Bytes(length) => BodyDecoder::Length(length),
            BodyLength::Chunked => BodyDecoder::Chunked(chunked::Decoder::new(&inner.limits)),
            BodyLength::UntilClose => BodyDecoder::UntilClose,
        };
        inner.body_in_use = true;
        inner.reader_waits = false;
        drop(inner);
        Some(IncomingBody(self.clone()))
    }

    /// Applies `add` to the output.
    pub(super) fn write<T>(&self, add: impl FnOnce(&mut WriteBuffer) -> T) -> T {
        add(&mut self.inner().output)
    }

    /// Applies `add` to the output's copied bytes, for start lines, headers and framing.
    pub(super) fn append(&self, add: impl FnOnce(&mut Vec<u8>)) {
        self.write(|output| output.append(add));
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let inner = &mut *self.inner();
        let flushed = inner.output.poll_flush(&mut inner.io, cx);
        if let Poll::Ready(Err(_)) = &flushed {
            inner.record_failure();
        }
        ready!(flushed.map_err(Error::Write))?;
        if inner.sending == (Sending::Closing { is_complete: true }) {
            inner.close_sending();
        }
        Poll::Ready(Ok(()))
    }

    /// Writes all output and closes the writing half.
    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.poll_flush(cx))?;
        let shut = Pin::new(&mut self.inner().io).poll_shutdown(cx);
        shut.map_err(Error::Write)
    }

    /// Ready with the error when the connection fails. The end of the peer's half does not count,
    /// because the peer may still read: it is passed on to the server, which may end the exchange.
    /// Pending while a body is being read.
    pub(super) fn poll_disconnected(&self, cx: &mut Context<'_>) -> Poll<Error> {
        let mut inner = self.inner();
        if inner.is_abandoned {
            return Poll::Ready(Error::NoResponse);
        }
        if inner.has_failed {
            // The reader of the body has got the error.
            return Poll::Ready(Error::Incomplete);
        }
        // The connection may wait for the server only.
        if let Err(error) = inner.io.watch_revocation(cx) {
            return Poll::Ready(Error::Read(error));
        }
        if !matches!(inner.body, BodyDecoder::Complete) {
            inner.wait_for_body(cx);
            return Poll::Pending;
        }
        if inner.read_closed || !inner.input.is_empty() {
            return Poll::Pending;
        }
        match inner.poll_fill(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// Ready when the request's body is complete or no reader holds it.
    pub(super) fn poll_remaining_body(&self, cx: &Context<'_>) -> Poll<RemainingBody> {
        let mut inner = self.inner();
        match inner.remaining_body() {
            RemainingBody::InUse => {
                inner.wait_for_body(cx);
                Poll::Pending
            }
            rest => Poll::Ready(rest),
        }
    }

    pub(super) fn remaining_body(&self) -> RemainingBody {
        self.inner().remaining_body()
    }

    /// Reads and discards the body, at most `left` bytes. Returns whether it is complete.
    pub(super) fn poll_discard_body(&self, cx: &mut Context<'_>, left: &mut u64) -> Poll<bool> {
        let mut inner = self.inner();
        loop {
            let data = match ready!(inner.poll_body(cx)) {
                Ok(Some(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
                Ok(None) => return Poll::Ready(true),
                Err(_failed) => return Poll::Ready(false),
            };
            match left.checked_sub(data) {
                Some(rest) => *left = rest,
                None => return Poll::Ready(false),
            }
        }
    }

    /// Whether bytes have been received that belong to no message yet.
    pub(in crate::http) fn has_unread_input(&self) -> bool {
        !self.inner().input.is_empty()
    }

    /// Whether no byte of the current message has been written to the stream.
    pub(crate) fn has_written_nothing(&self) -> bool {
        !self.inner().output.has_written()
    }

    pub(super) fn body_error(&self) -> Option<MessageError> {
        self.inner().body_error
    }

    /// Why the peer's body is incomplete, if it has failed.
    pub(super) fn body_failure(&self) -> Option<Error> {
        let inner = self.inner();
        let error = || inner.body_error.map_or(Error::Incomplete, Error::from);
        matches!(inner.body, BodyDecoder::Failed).then(error)
    }

    /// Whether the client waits for a 100, so that it may or may not send the body.
    pub(super) fn is_awaiting_continue(&self) -> bool {
        self.inner().expectation.is_awaited()
    }

    /// Sends close_notify on a TLS connection, if that is possible without waiting.
    pub(crate) fn send_close_notify(&self) {
        let mut inner = self.inner();
        if inner.io.is_tls() {
            let mut cx = Context::from_waker(Waker::noop());
            let _best_effort = Pin::new(&mut inner.io).poll_shutdown(&mut cx);
        }
    }

    /// Shuts the socket down if a body is in use, so that its reader fails. Otherwise dropping the
    /// connection suffices.
    pub(super) fn abort_body_reader(&self) {
        let inner = self.inner();
        if inner.body_in_use {
            // The peer has already closed the connection if this fails.
            inner.io.tcp().shut_down();
        }
    }

    /// Makes the kernel reset the connection when it is dropped, so that the peer cannot take the
    /// close for the end of a message.
    pub(super) fn reset(&self) {
        self.inner().io.reset_on_close();
    }
}

impl Closing for &Connection {
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let mut inner = self.inner();
        inner.input.take_all();
        Poll::Ready(ready!(inner.poll_fill(cx)).unwrap_or_default())
    }

    fn is_acknowledged(&self) -> bool {
        self.inner().io.tcp().is_acknowledged()
    }
}

impl PendingRequestBody for Rc<Connection> {
    fn outstanding(&self) -> u64 {
        match self.inner().body {
            BodyDecoder::Length(left) => left,
            _ => 0,
        }
    }

    fn is_awaited(&self) -> bool {
        let inner = self.inner();
        // While a client waits for a 100, the server delays the body, not the client.
        inner.body_in_use && inner.reader_waits && !inner.expectation.is_awaited()
    }
}

impl Inner {
    /// Reads more input; returns 0 at and after the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        if self.read_closed {
            return Poll::Ready(Ok(0));
        }
        let read_size = self.read_size as usize;
        let Self { io, input, .. } = self;
        let filled = if self.last_read_was_large && input.is_empty() {
            // Into a buffer of its own, which saves a copy for bulk data.
            ready!(input.poll_fill_from(cx, Pin::new(io), read_size))
        } else {
            // Via the shared buffer, so that the input takes no more memory than its bytes.
            let read = |shared: &mut [u8]| {
                input.poll_fill(&mut shared[..read_size], |buf| {
                    Pin::new(io).poll_read(cx, buf)
                })
            };
            ready!(buffers::with_read_buffer(read))
        };
        let n = match filled {
            Ok(Fill::Read(n)) => n,
            Ok(Fill::End) => 0,
            // A header or trailer section is refused before this.
            Ok(Fill::Full) => return Poll::Ready(Err(MessageError::HeadersTooLarge.into())),
            Err(error) => {
                self.record_failure();
                return Poll::Ready(Err(Error::Read(error)));
            }
        };
        self.last_read_was_large = n >= READ_SIZE / 2 || n == read_size;
        self.read_closed = n == 0;
        if n == 0
            && let Some(upstream) = self.upstream.take()
        {
            upstream.close();
        }
        Poll::Ready(Ok(n))
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Error>> {
        let polled = self.poll_part(cx);
        self.reader_waits = polled.is_pending();
        polled
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Error>> {
        loop {
            ready!(self.poll_budget(cx));
            let before = self.input.len();
            let (body, limits) = (&mut self.body, &self.limits);
            let next = self.input.decode(|input| body.next(input, limits));
            let data = match &next {
                Ok(Some(BodyPart::Data(data))) => data.len(),
                _ => 0,
            };
            self.uncharged_framing += before - self.input.len() - data;
            if matches!(next, Ok(Some(_))) && self.expectation.is_awaited() {
                // The client did not wait, or does so no longer (RFC 9110, section 10.1.1).
                self.expectation = ExpectContinue::None;
            }
            match next {
                Ok(None) if matches!(self.body, BodyDecoder::Complete) => {
                    return Poll::Ready(Ok(None));
                }
                Ok(None) => {}
                Ok(Some(BodyPart::Data(data))) => {
                    self.input.release_if_empty();
                    self.wake_connection_task();
                    return Poll::Ready(Ok(Some(Frame::data(data))));
                }
                Ok(Some(BodyPart::End(trailers))) => {
                    self.input.release_if_empty();
                    self.wake_connection_task();
                    return Poll::Ready(Ok(trailers.map(Frame::trailers)));
                }
                Err(error) => {
                    self.body_error = Some(error);
                    return Poll::Ready(Err(self.fail_body(error.into())));
                }
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if self.body.ends_with_connection() => self.body = BodyDecoder::Complete,
                Ok(0) => return Poll::Ready(Err(self.fail_body(Error::Incomplete))),
                Ok(_) => {}
                Err(_) if self.body.ends_with_reset() => self.body = BodyDecoder::Complete,
                Err(error) => return Poll::Ready(Err(self.fail_body(error))),
            }
        }
    }

    /// Yields when the task has processed enough chunks, also to other processes that share the
    /// CPU. tokio limits a task to 128 reads and writes per poll, but one read may contain ten
    /// thousand chunks.
    fn poll_budget(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.uncharged_framing >= FRAMING_BYTES_PER_OPERATION {
            let Poll::Ready(operation) = coop::poll_proceed(cx) else {
                time_slice::yield_cpu();
                return Poll::Pending;
            };
            operation.made_progress();
            self.uncharged_framing -= FRAMING_BYTES_PER_OPERATION;
        }
        Poll::Ready(())
    }

    fn fail_body(&mut self, error: Error) -> Error {
        self.body = BodyDecoder::Failed;
        self.wake_connection_task();
        error
    }

    fn remaining_body(&self) -> RemainingBody {
        let left = match self.body {
            BodyDecoder::Complete => return RemainingBody::Complete,
            BodyDecoder::Failed => return RemainingBody::Unframed,
            BodyDecoder::Length(left) => Some(left),
            BodyDecoder::Chunked(_) | BodyDecoder::UntilClose => None,
        };
        if self.body_in_use {
            RemainingBody::InUse
        } else {
            RemainingBody::Discard(left)
        }
    }

    fn wait_for_body(&mut self, cx: &Context<'_>) {
        if self.body_in_use
            && !self
                .connection_task
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            self.connection_task = Some(cx.waker().clone());
        }
    }

    /// Wakes the connection's task if the body is complete, failed, or no longer in use.
    fn wake_connection_task(&mut self) {
        if (!self.body_in_use || matches!(self.body, BodyDecoder::Complete | BodyDecoder::Failed))
            && let Some(connection_task) = self.connection_task.take()
        {
            connection_task.wake();
        }
    }

    /// Sends the 100 that the client waits for, because a reader polls the body.
    fn send_local_continue(&mut self, cx: &mut Context<'_>) {
        if self.expectation != ExpectContinue::Local {
            return;
        }
        self.expectation = ExpectContinue::Sent;
        let status_line = (Version::HTTP_11, StatusCode::CONTINUE, None);
        self.output.append(|buffer| {
            encode::write_response(
                buffer,
                status_line,
                &HeaderMap::new(),
                FramingHeaders::Omit,
                None,
            );
        });
        // Bytes that cannot be written now are written with the response, which also reports
        // errors.
        let _later = self.output.poll_flush(&mut self.io, cx);
    }
}
