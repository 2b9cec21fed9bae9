//! One connection, shared by its driver and its streams.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::task::{Context, Poll};

use ahash::AHashMap;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, Request, Response, StatusCode};
use mesh_http2::{Connection, Error, ErrorCode, LimitExceeded, Role, StreamId};
use mesh_planted::Bug;

use crate::http::body_timeout::PendingRequestBody;
use crate::http::client_close::{CLIENT_FAILED, CloseExchange, UpstreamStream};

/// The methods borrow the connection only during one call.
#[derive(Clone, Debug)]
pub(in crate::http) struct SharedConnection(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: RefCell<Connection>,
    /// On an accepted connection: the exchanges that the close of a stream's HTTP/1 client is
    /// passed on to. Only streams of another proxy have an entry.
    upstreams: RefCell<AHashMap<StreamId, UpstreamStream>>,
    /// On an opened connection: the last response did not fit its first window, so the next one
    /// probably does not either.
    has_long_responses: Cell<bool>,
}

impl CloseExchange for Shared {
    fn close_exchange(&self, exchange: u32) {
        let mut connection = self.connection.borrow_mut();
        connection.send_client_closed(StreamId::from(exchange));
    }

    fn reset_exchange(&self, exchange: u32) {
        let mut connection = self.connection.borrow_mut();
        connection.reset(StreamId::from(exchange), CLIENT_FAILED);
    }
}

/// Observes and resets a request's body, which another task reads.
#[derive(Clone, Debug)]
pub(super) struct RequestBodyMonitor {
    shared: SharedConnection,
    id: StreamId,
}

/// The sending half of a stream. Dropping it cancels what has not been sent.
#[derive(Debug)]
pub(in crate::http) struct SendStream {
    shared: SharedConnection,
    id: StreamId,
}

/// A request that was sent, until the response headers have been received.
#[derive(Debug)]
pub(in crate::http) struct ResponseFuture(RecvStream);

/// The receiving half of a stream. Dropping it discards what has not been read.
#[derive(Debug)]
pub(super) struct RecvStream {
    shared: SharedConnection,
    id: StreamId,
}

/// Sends interim responses to the client of a request received on a stream.
#[derive(Clone, Debug)]
pub(in crate::http) struct InterimSender {
    shared: SharedConnection,
    id: StreamId,
    /// A request with `expect` has it: whether the 100 has not been sent yet.
    awaited: Option<Rc<Cell<bool>>>,
    read_ahead: u32,
}

impl SharedConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self(Rc::new(Shared {
            connection: RefCell::new(connection),
            upstreams: RefCell::default(),
            has_long_responses: Cell::new(false),
        }))
    }

    pub(super) fn connection(&self) -> RefMut<'_, Connection> {
        self.0.connection.borrow_mut()
    }

    /// Returns the request's exchange. It tells the next proxy that the client of the request has
    /// closed its sending direction.
    pub(in crate::http) fn upstream(&self, id: StreamId) -> UpstreamStream {
        let shared = Rc::downgrade(&self.0);
        UpstreamStream::new(shared, id.into())
    }

    /// Passes on what the previous proxy has told about the clients of its requests.
    pub(super) fn pass_closes_on(&self) {
        loop {
            // A statement of its own, because the upstream may be borrowed below.
            let next = self.connection().next_client_closed();
            let Some(id) = next else { return };
            if let Some(upstream) = self.take_upstream(id) {
                upstream.close();
            }
        }
    }

    /// Passes on that the stream of a request has failed with the connection of its HTTP/1 client,
    /// or with the connection of the previous proxy.
    fn pass_failure_on(&self, id: StreamId, failure: &Error) {
        if matches!(failure, Error::Reset(CLIENT_FAILED) | Error::Io(_))
            && let Some(upstream) = self.take_upstream(id)
        {
            upstream.reset();
        }
    }

    /// Removes the exchange of a request with its server, if it is registered. Releases the borrow
    /// before the caller uses it.
    fn take_upstream(&self, id: StreamId) -> Option<UpstreamStream> {
        self.0.upstreams.borrow_mut().remove(&id)
    }

    /// Returns the two halves of a stream. To be called once per stream.
    pub(super) fn split(&self, id: StreamId) -> (RecvStream, SendStream) {
        let recv_stream = RecvStream {
            shared: self.clone(),
            id,
        };
        let send_stream = SendStream {
            shared: self.clone(),
            id,
        };
        (recv_stream, send_stream)
    }

    /// Ready when a stream can be opened immediately.
    pub(in crate::http) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        self.connection().poll_ready(cx.waker())
    }

    /// Waits until it is known whether the server is a proxy of this project.
    pub(in crate::http) fn poll_is_proxy(&self, cx: &Context<'_>) -> Poll<bool> {
        self.connection().poll_is_proxy(cx.waker())
    }

    /// Whether streams can still be opened, now or later.
    pub(in crate::http) fn is_usable(&self) -> bool {
        let connection = self.connection();
        !connection.is_drain_due() && connection.open_error().is_none()
    }

    /// Whether the peer has exceeded a limit that requires a graceful shutdown.
    pub(super) fn is_drain_due(&self) -> bool {
        self.connection().is_drain_due()
    }

    /// Whether the server may have closed the connection before it could receive a request: it has
    /// responded to another one, or has not begun the connection.
    pub(in crate::http) fn may_have_closed(&self) -> bool {
        let connection = self.connection();
        connection.has_responded() || !connection.has_peer_settings()
    }

    /// Takes the limit that the peer has exceeded.
    pub(in crate::http) fn take_limit_exceeded(&self) -> Option<LimitExceeded> {
        self.connection().take_limit_exceeded()
    }

    /// Counts the frames of messages in both directions.
    pub(super) fn message_frames(&self) -> u32 {
        self.connection().message_frames()
    }

    /// The peer's limit of concurrent streams.
    pub(in crate::http) fn max_concurrent_streams(&self) -> u32 {
        self.connection().max_concurrent_streams()
    }

    /// Sends GOAWAY and completes open streams.
    pub(in crate::http) fn start_graceful_shutdown(&self) {
        self.connection().start_graceful_shutdown();
    }
}

impl ResponseFuture {
    /// Opens a stream and sends the headers, with `raw_path` instead of the path and query of the
    /// URI. To be called only after [`SharedConnection::poll_ready`].
    pub(in crate::http) fn start<B>(
        shared: &SharedConnection,
        request: &Request<B>,
        raw_path: Option<&Bytes>,
        is_last: bool,
    ) -> (Self, SendStream) {
        let id = shared.connection().open(request, raw_path, is_last);
        let (reader, writer) = shared.split(id);
        (Self(reader), writer)
    }

    /// Returns interim responses, and then the final one.
    pub(in crate::http) fn poll(&self, cx: &Context<'_>) -> Poll<Result<Response<()>, Error>> {
        let RecvStream { shared, id } = &self.0;
        shared.connection().poll_response(*id, cx.waker())
    }

    /// Widens the window of the response by at most `by` bytes with the request, if the last
    /// response was long. That costs a frame, and saves the response a round trip.
    pub(in crate::http) fn widen_ahead(&self, by: u32) {
        let RecvStream { shared, id } = &self.0;
        if by > 0 && shared.0.has_long_responses.get() {
            shared.connection().widen_window(*id, by);
        }
    }

    pub(in crate::http) fn stream(&self) -> (SharedConnection, StreamId) {
        (self.0.shared.clone(), self.0.id)
    }

    /// Whether something of the response has arrived.
    pub(in crate::http) fn has_begun(&self) -> bool {
        self.0.shared.connection().has_response_begun(self.0.id)
    }

    /// Returns the stream of the response, whose headers have been received.
    pub(super) fn into_stream(self) -> RecvStream {
        self.0
    }
}

impl RequestBodyMonitor {
    pub(super) fn new(shared: &SharedConnection, id: StreamId) -> Self {
        Self {
            shared: shared.clone(),
            id,
        }
    }

    pub(super) fn reset(&self, code: ErrorCode) {
        self.shared.connection().reset(self.id, code);
    }
}

impl PendingRequestBody for RequestBodyMonitor {
    fn outstanding(&self) -> u64 {
        self.shared.connection().remaining(self.id).unwrap_or(0)
    }

    fn is_awaited(&self) -> bool {
        self.shared.connection().is_reader_waiting(self.id)
    }
}

impl InterimSender {
    /// `read_ahead`: how many bytes of the response the client's connection has granted.
    pub(super) fn new<B>(
        shared: &SharedConnection,
        id: StreamId,
        request: &Request<B>,
        read_ahead: u32,
    ) -> Self {
        let expects = request.headers().contains_key(EXPECT);
        Self {
            shared: shared.clone(),
            id,
            read_ahead,
            awaited: expects.then(|| Rc::new(Cell::new(true))),
        }
    }

    pub(in crate::http) fn read_ahead(&self) -> u32 {
        self.read_ahead
    }

    pub(in crate::http) fn is_continue_awaited(&self) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.get())
    }

    pub(in crate::http) fn send(&self, status: StatusCode, mut headers: HeaderMap) {
        // Not allowed in interim responses (RFC 9110, section 8.6).
        headers.remove(CONTENT_LENGTH);
        if let Some(awaited) = &self.awaited
            && status == StatusCode::CONTINUE
        {
            awaited.set(false);
        }
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        self.shared
            .connection()
            .send_informational(self.id, &response);
    }

    /// Whether the client has been sent an interim response.
    pub(in crate::http) fn has_sent(&self) -> bool {
        self.shared.connection().has_sent_informational(self.id)
    }

    pub(in crate::http) fn pass_close_to(&self, upstream: UpstreamStream) {
        if self.is_client_closed() {
            upstream.close();
        } else {
            let mut upstreams = self.shared.0.upstreams.borrow_mut();
            upstreams.insert(self.id, upstream);
        }
    }

    pub(in crate::http) fn is_client_closed(&self) -> bool {
        self.shared.connection().is_client_closed(self.id)
    }

    /// Ends the exchange without a response.
    pub(in crate::http) fn abandon(&self) {
        self.shared.connection().reset(self.id, ErrorCode::CANCEL);
    }
}

impl SendStream {
    /// Whether a response is sent, to a client of the connection.
    pub(super) fn is_response(&self) -> bool {
        self.shared.connection().role() == Role::Server
    }

    pub(super) fn respond(&self, response: &Response<()>, is_last: bool) {
        self.shared.connection().respond(self.id, response, is_last);
    }

    /// Returns how many bytes may be sent now.
    pub(super) fn poll_capacity(&self, cx: &Context<'_>) -> Poll<Result<usize, Error>> {
        let polled = self.shared.connection().poll_capacity(self.id, cx.waker());
        if let Poll::Ready(Err(failure)) = &polled {
            self.shared.pass_failure_on(self.id, failure);
        }
        polled
    }

    pub(super) fn send_data(&self, data: Bytes, is_last: bool) {
        self.shared.connection().send_data(self.id, data, is_last);
    }

    pub(super) fn send_trailers(&self, trailers: &HeaderMap) {
        self.shared.connection().send_trailers(self.id, trailers);
    }

    /// Ready when nothing can be sent any more.
    pub(super) fn poll_failure(&self, cx: &Context<'_>) -> Poll<Error> {
        let polled = self.shared.connection().poll_failure(self.id, cx.waker());
        if let Poll::Ready(failure) = &polled {
            self.shared.pass_failure_on(self.id, failure);
        }
        polled
    }

    pub(super) fn reset(&self, code: ErrorCode) {
        let is_lost = Bug::ResetCodeLost.is_planted();
        let code = if is_lost { ErrorCode::CANCEL } else { code };
        self.shared.connection().reset(self.id, code);
    }
}

impl RecvStream {
    /// Records whether the response is longer than its first window.
    pub(super) fn record_length(&self, is_long: bool) {
        self.shared.0.has_long_responses.set(is_long);
    }

    pub(super) fn connection(&self) -> (RefMut<'_, Connection>, StreamId) {
        (self.shared.connection(), self.id)
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let mut upstreams = self.shared.0.upstreams.borrow_mut();
        if !upstreams.is_empty() {
            upstreams.remove(&self.id);
        }
        drop(upstreams);
        self.shared.connection().drop_writer(self.id);
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        self.shared.connection().drop_reader(self.id);
    }
}
