//! One connection, shared by the task that moves its bytes and by those of its streams.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, Request, Response, StatusCode};
use mesh_http2::{Connection, Error, ErrorCode, LimitExceeded, StreamId};

use super::Incoming;
use crate::http::patience::Announced;

/// Its methods borrow the connection for the time of one call only.
#[derive(Clone, Debug)]
pub(in crate::http) struct Link(Rc<RefCell<Connection>>);

/// The body of a request, seen from beside.
#[derive(Clone, Debug)]
pub(super) struct Upload {
    link: Link,
    id: StreamId,
}

/// The right to send on a stream. Dropping it says that nobody will.
#[derive(Debug)]
pub(in crate::http) struct Writer {
    link: Link,
    id: StreamId,
}

/// A request that was begun, until its response's head has come.
#[derive(Debug)]
pub(in crate::http) struct Call(Reader);

/// The right to read a stream. Dropping it says that nobody will.
#[derive(Debug)]
pub(super) struct Reader {
    link: Link,
    id: StreamId,
}

/// [`Interim`](crate::http::interim::Interim) of a request that came on this stream.
#[derive(Clone, Debug)]
pub(in crate::http) struct Interim {
    link: Link,
    id: StreamId,
    /// Of a request that expects a 100: whether it has not come yet.
    awaited: Option<Rc<Cell<bool>>>,
}

impl Link {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Rc::new(RefCell::new(connection)))
    }

    pub(super) fn connection(&self) -> RefMut<'_, Connection> {
        self.0.borrow_mut()
    }

    /// Both sides of a stream, once for each.
    pub(super) fn hold(&self, id: StreamId) -> (Reader, Writer) {
        let reader = Reader {
            link: self.clone(),
            id,
        };
        let writer = Writer {
            link: self.clone(),
            id,
        };
        (reader, writer)
    }

    /// Ready when a stream may be opened at once.
    pub(in crate::http) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.connection().poll_ready(cx.waker())
    }

    /// Whether streams can still be opened, now or later.
    pub(in crate::http) fn is_usable(&self) -> bool {
        let connection = self.connection();
        !connection.is_drain_due() && connection.open_error().is_none()
    }

    /// Whether the other side may go on as it does.
    pub(super) fn is_welcome(&self) -> bool {
        !self.connection().is_drain_due()
    }

    /// What the other side has done too much of, once.
    pub(in crate::http) fn take_limit_exceeded(&self) -> Option<LimitExceeded> {
        self.connection().take_limit_exceeded()
    }

    /// Counts messages, and parts of them, both ways.
    pub(super) fn messages(&self) -> u32 {
        self.connection().message_frames()
    }

    /// How many streams the other side takes at a time.
    pub(in crate::http) fn max_streams(&self) -> u32 {
        self.connection().max_concurrent_streams()
    }

    /// No more streams; those that are open go on to their end.
    pub(in crate::http) fn leave(&self) {
        self.connection().start_graceful_shutdown();
    }
}

impl Call {
    /// To be called only when [`Link::poll_ready`] says so.
    pub(in crate::http) fn begin<B>(
        link: &Link,
        request: &Request<B>,
        is_last: bool,
    ) -> (Self, Writer) {
        let id = link.connection().open(request, is_last);
        let (reader, writer) = link.hold(id);
        (Self(reader), writer)
    }

    /// Interim responses, and behind them the response.
    pub(in crate::http) fn poll(&self, cx: &Context<'_>) -> Poll<Result<Response<()>, Error>> {
        let Reader { link, id } = &self.0;
        link.connection().poll_response(*id, cx.waker())
    }

    /// The body of the response, whose head has come and says how long it is.
    pub(in crate::http) fn into_body(self, length: Option<u64>) -> Incoming {
        Incoming::response(self.0, length)
    }
}

impl Upload {
    pub(super) fn of(link: &Link, id: StreamId) -> Self {
        Self {
            link: link.clone(),
            id,
        }
    }

    pub(super) fn reset(&self, reason: ErrorCode) {
        self.link.connection().reset(self.id, reason);
    }
}

impl Announced for Upload {
    fn outstanding(&self) -> u64 {
        self.link.connection().remaining(self.id).unwrap_or(0)
    }

    fn is_awaited(&self) -> bool {
        self.link.connection().is_reader_waiting(self.id)
    }
}

impl Interim {
    pub(super) fn of<B>(link: &Link, id: StreamId, request: &Request<B>) -> Self {
        let expects = request.headers().contains_key(EXPECT);
        Self {
            link: link.clone(),
            id,
            awaited: expects.then(|| Rc::new(Cell::new(true))),
        }
    }

    pub(in crate::http) fn is_awaited(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.get())
    }

    pub(in crate::http) fn send(&self, status: StatusCode, mut headers: HeaderMap) {
        // RFC 9110, section 8.6.
        headers.remove(CONTENT_LENGTH);
        if let Some(awaited) = &self.awaited
            && status == StatusCode::CONTINUE
        {
            awaited.set(false);
        }
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.link
            .connection()
            .send_informational(self.id, &response);
    }
}

impl Writer {
    pub(super) fn respond(&self, response: &Response<()>, is_last: bool) {
        self.link.connection().respond(self.id, response, is_last);
    }

    /// How much may be sent now.
    pub(super) fn poll_capacity(&self, cx: &Context<'_>) -> Poll<Result<usize, Error>> {
        self.link.connection().poll_capacity(self.id, cx.waker())
    }

    pub(super) fn send_data(&self, data: Bytes, is_last: bool) {
        self.link.connection().send_data(self.id, data, is_last);
    }

    pub(super) fn send_trailers(&self, trailers: &HeaderMap) {
        self.link.connection().send_trailers(self.id, trailers);
    }

    /// Ready when nothing can be sent any more.
    pub(super) fn poll_failure(&self, cx: &Context<'_>) -> Poll<Error> {
        self.link.connection().poll_failure(self.id, cx.waker())
    }

    pub(super) fn reset(&self, reason: ErrorCode) {
        self.link.connection().reset(self.id, reason);
    }
}

impl Reader {
    pub(super) fn connection(&self) -> (RefMut<'_, Connection>, StreamId) {
        (self.link.connection(), self.id)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.link.connection().drop_writer(self.id);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.link.connection().drop_reader(self.id);
    }
}
