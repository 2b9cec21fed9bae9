//! The pool of HTTP/2 connections to one endpoint: one connection that all requests of this thread
//! share, and further ones only while the peer's limit of concurrent streams makes requests wait.
//! With a single connection, a few hundred long-lived streams would block all other requests.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use mesh_core::endpoint::Http2Params;
use mesh_http2::Role;
use tokio::time::Instant;

use super::{ClientConfig, Dial, SendError, ServerWatcher};
use crate::config::{DEFAULT_STREAM_WINDOW, HttpLimits};
use crate::error::DialError;
use crate::http::body::ResponseGuard;
use crate::http::http2::{
    Driver, IncomingBody, OutgoingBody, ResponseFuture, RoleConfig, SendBodyError,
    SharedConnection, StreamGuard, declared_length, prepare_request,
};
use crate::http::interim::InterimSender;
use crate::http::{Body, ErrorCode, Protocol, Request, Response, uri};

/// The connections to one endpoint.
pub(super) struct Http2Pool<D> {
    connector: Connector<D>,
    state: Rc<RefCell<PoolState>>,
    /// How long the surplus connections of a burst are kept.
    idle_timeout: Duration,
}

/// Connects to one endpoint.
struct Connector<D> {
    dial: Rc<D>,
    params: Http2Params,
    limits: HttpLimits,
    state: Weak<RefCell<PoolState>>,
    watcher: Option<Rc<dyn ServerWatcher>>,
}

#[derive(Default)]
struct PoolState {
    /// In order of creation. Earlier ones are filled first, so that the surplus connections of a
    /// burst become idle and are closed.
    connections: Vec<Http2Connection>,
    /// The attempt that all requests without a connection wait for; they share its result.
    connecting: Option<PendingConnect>,
}

/// One connection. Dropping it starts a graceful shutdown.
struct Http2Connection {
    shared: SharedConnection,
    /// The number of open and reserved streams.
    load: Rc<Cell<usize>>,
    /// When it was made, or, if it is not the first, when it was last given a stream.
    last_used: Cell<Instant>,
}

/// The reservation of a stream that is about to be opened.
pub(super) struct StreamReservation {
    shared: SharedConnection,
    stream: StreamGuard,
}

type PendingConnect = Shared<LocalBoxFuture<'static, Result<(), DialError>>>;

/// Maximum of connections to one endpoint from one thread; further requests wait. With
/// [`MAX_STREAMS`] streams each, this is three times what 4,000 clients that read slowly can
/// occupy.
const MAX_CONNECTIONS: usize = 64;

/// Maximum of streams on one connection, even if the peer allows more. The connection's window
/// covers what all of them may receive before it is read.
const MAX_STREAMS: u32 = 200;

/// The budget of short field lines in responses, as for an authenticated client: a connection to a
/// server carries the responses of many clients.
const FIELD_LINES: u32 = 128 * 1024;

impl<D: Dial + 'static> Http2Pool<D> {
    pub(super) fn new(
        dial: Rc<D>,
        params: &ClientConfig,
        watcher: Option<Rc<dyn ServerWatcher>>,
    ) -> Self {
        let state = Rc::default();
        let connector = Connector {
            dial,
            watcher,
            params: params.http2,
            limits: params.pool.limits,
            state: Rc::downgrade(&state),
        };
        Self {
            connector,
            state,
            idle_timeout: params.pool.idle_timeout,
        }
    }

    /// Reserves a stream, on a new connection if necessary.
    pub(super) async fn reserve(&self) -> Result<StreamReservation, DialError> {
        loop {
            let attempt = {
                let mut state = self.state.borrow_mut();
                match state.reserve(self.idle_timeout) {
                    Some(reservation) => return Ok(reservation),
                    None => state
                        .connecting
                        .get_or_insert_with(|| self.connector.start())
                        .clone(),
                }
            };
            if let Err(error) = attempt.await {
                // A full connection is better than none: the stream waits there.
                let mut state = self.state.borrow_mut();
                state.drop_unusable();
                return state
                    .least_loaded()
                    .map(Http2Connection::reserve)
                    .ok_or(error);
            }
        }
    }
}

impl<D> Clone for Connector<D> {
    fn clone(&self) -> Self {
        Self {
            dial: self.dial.clone(),
            params: self.params,
            limits: self.limits,
            state: self.state.clone(),
            watcher: self.watcher.clone(),
        }
    }
}

impl<D: Dial + 'static> Connector<D> {
    /// Connects in a task of its own, so that the attempt survives the request that started it.
    fn start(&self) -> PendingConnect {
        let connector = self.clone();
        let attempt = async move {
            let connected = connector.connect().await;
            let Some(state) = connector.state.upgrade() else {
                return Err(DialError::Closed);
            };
            let mut state = state.borrow_mut();
            state.connecting = None;
            state.connections.push(connected?);
            Ok(())
        };
        let attempt = attempt.boxed_local().shared();
        tokio::task::spawn_local(attempt.clone());
        attempt
    }

    /// Connects before a request needs the connection, if all connections are full.
    fn preconnect(&self) {
        let Some(state) = self.state.upgrade() else {
            return;
        };
        let mut state = state.borrow_mut();
        state.drop_unusable();
        if state.connecting.is_none() && state.connections.iter().all(Http2Connection::is_full) {
            state.connecting = Some(self.start());
        }
    }

    /// Notifies the watcher that a connection accepts no more streams. A connection that is still
    /// listed was closed by the server.
    fn report_unusable(&self, load: &Rc<Cell<usize>>) {
        if let (Some(watcher), Some(state)) = (&self.watcher, self.state.upgrade()) {
            let state = state.borrow();
            if state
                .connections
                .iter()
                .any(|connection| Rc::ptr_eq(&connection.load, load))
            {
                watcher.clone().connection_closed(None);
            }
        }
    }

    async fn connect(&self) -> Result<Http2Connection, DialError> {
        let io = self.dial.dial(Protocol::Http2).await?;
        let driver = Driver::new(io, role_config(&self.params, &self.limits));
        let connection = Http2Connection {
            shared: driver.shared().clone(),
            load: Rc::default(),
            last_used: Cell::new(Instant::now()),
        };
        tokio::task::spawn_local(drive(
            driver,
            connection.shared.clone(),
            connection.load.clone(),
            self.clone(),
        ));
        Ok(connection)
    }
}

/// Drives a connection. When it accepts no more streams while some are open, its endpoint is in
/// use, so a replacement is made before the next request needs it.
///
/// Not an `async fn`, for the same reason as the server's `serve`.
fn drive<D: Dial + 'static>(
    mut driver: Driver,
    shared: SharedConnection,
    load: Rc<Cell<usize>>,
    connector: Connector<D>,
) -> impl Future<Output = ()> {
    let mut connector = Some(connector);
    async move {
        let ended = poll_fn(|cx| {
            let polled = driver.poll(cx, &mut |_shared, _accepted| {});
            if connector.is_some()
                && !shared.is_usable()
                && let Some(connector) = connector.take()
            {
                connector.report_unusable(&load);
                if load.get() > 0 {
                    connector.preconnect();
                }
            }
            polled
        })
        .await;
        if let Some(violation) = shared.take_limit_exceeded() {
            tracing::info!(reason = %violation, "HTTP/2 endpoint exceeded a limit");
        }
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP/2 connection to an endpoint failed");
        }
    }
}

impl PoolState {
    /// Reserves a stream on an existing connection; `None` if another connection is needed.
    fn reserve(&mut self, idle_timeout: Duration) -> Option<StreamReservation> {
        self.drop_unusable();
        let free = self
            .connections
            .iter()
            .position(|connection| !connection.is_full());
        if let Some(free) = free {
            let connection = &self.connections[free];
            let (reservation, is_lightly_loaded) =
                (connection.reserve(), connection.is_lightly_loaded());
            if self.connections.len() > 1 {
                let now = Instant::now();
                connection.last_used.set(now);
                if is_lightly_loaded {
                    self.close_surplus(free, now, idle_timeout);
                }
            }
            return Some(reservation);
        }
        if self.connections.len() < MAX_CONNECTIONS {
            return None;
        }
        self.least_loaded().map(Http2Connection::reserve)
    }

    fn drop_unusable(&mut self) {
        self.connections.retain(Http2Connection::is_usable);
    }

    fn least_loaded(&self) -> Option<&Http2Connection> {
        let connection = self.connections.iter();
        connection.min_by_key(|connection| connection.load.get())
    }

    /// Closes connections after `in_use` that have been idle for `idle_timeout`. They are not
    /// closed immediately, because a recurring burst would then need a handshake each time.
    fn close_surplus(&mut self, in_use: usize, now: Instant, idle_timeout: Duration) {
        let mut index = 0;
        self.connections.retain(|connection| {
            let keep = index <= in_use
                || connection.load.get() > 0
                || connection.last_used.get() + idle_timeout > now;
            index += 1;
            keep
        });
    }
}

impl Http2Connection {
    fn is_usable(&self) -> bool {
        self.shared.is_usable()
    }

    fn reserve(&self) -> StreamReservation {
        StreamReservation {
            shared: self.shared.clone(),
            stream: StreamGuard::new(&self.load),
        }
    }

    fn is_full(&self) -> bool {
        self.load.get() >= self.limit()
    }

    /// Whether so few streams are open that another connection will not be needed soon.
    fn is_lightly_loaded(&self) -> bool {
        self.load.get() < self.limit() / 2
    }

    /// The number of streams that both the peer and [`MAX_STREAMS`] allow. A peer that currently
    /// allows none is treated as allowing one, which waits.
    fn limit(&self) -> usize {
        self.shared.max_concurrent_streams().clamp(1, MAX_STREAMS) as usize
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.shared.start_graceful_shutdown();
    }
}

impl StreamReservation {
    /// Sends `request`. The response's body keeps the stream counted.
    pub(super) async fn send(mut self, request: &mut Request) -> Result<Response, SendError> {
        let ready = poll_fn(|cx| self.shared.poll_ready(cx)).await;
        if ready.is_err() {
            return Err(SendError::Dial(DialError::Closed));
        }
        let body = mem::take(request.body_mut());
        let interim = body.interim();
        prepare_request(request.headers_mut(), &body);
        let is_last = body.has_no_body();
        let raw_path = uri::raw_path(request);
        let (response_future, send_stream) =
            ResponseFuture::start(&self.shared, request, raw_path, is_last);
        if let Some(client) = &interim {
            response_future.widen_ahead(client.read_ahead());
        }
        if let Some(client @ InterimSender::Http1(_)) = &interim {
            let (shared, id) = response_future.stream();
            client.pass_close_to(shared.upstream(id));
        }
        let response = if is_last {
            // The request ended with its headers, so this half is closed.
            drop(send_stream);
            poll_fn(|cx| poll_response(&response_future, interim.as_ref(), cx)).await
        } else {
            let upload = OutgoingBody::new(body, send_stream);
            let untouched = request.body_mut();
            let stream = &mut self.stream;
            send_with_body(&response_future, upload, interim, stream, untouched).await
        };
        let response = response.map_err(|error| send_error(error, &response_future))?;
        let length = declared_length(response.headers());
        let incoming = IncomingBody::response(response_future, length);
        Ok(response.map(|()| Body::http2(incoming).with_guard(ResponseGuard::Http2(self.stream))))
    }
}

/// Returns the error of a stream that has failed before its response.
fn send_error(error: mesh_http2::Error, response_future: &ResponseFuture) -> SendError {
    if error.is_connection_lost() && !response_future.has_begun() {
        let (shared, _) = response_future.stream();
        return SendError::Lost {
            cause: error.into(),
            may_be_unreceived: shared.may_have_closed(),
        };
    }
    SendError::Http2(error)
}

/// Polls for the response, and forwards interim responses to the client. Stays pending when an
/// HTTP/1 client that has closed gets no response, as with an HTTP/1 server.
fn poll_response(
    response_future: &ResponseFuture,
    interim: Option<&InterimSender>,
    cx: &Context<'_>,
) -> Poll<Result<http::Response<()>, mesh_http2::Error>> {
    loop {
        let response = ready!(response_future.poll(cx));
        if let Err(mesh_http2::Error::Reset(ErrorCode::CANCEL)) = response
            && let Some(client @ InterimSender::Http1(_)) = interim
            && client.is_client_closed()
        {
            client.abandon();
            return Poll::Pending;
        }
        let response = response?;
        let status = response.status();
        if !status.is_informational() {
            return Poll::Ready(Ok(response));
        }
        if let Some(interim) = interim {
            interim.send(status, response.into_parts().0.headers);
        }
    }
}

/// Leaves the 100 that the client of an HTTP/1 request waits for to the server, if that is a proxy
/// of this project. Linkerd's does not forward the server's, so that the client would wait without
/// success; the reader of the body then sends one. Pending until the server's SETTINGS say which
/// proxy it is: the body is not read before.
fn poll_expectation(
    response_future: &ResponseFuture,
    interim: Option<&InterimSender>,
    cx: &Context<'_>,
) -> Poll<()> {
    if let Some(client) = interim
        && client.expects_continue()
    {
        let (shared, _) = response_future.stream();
        client.forward_expectation(ready!(shared.poll_is_proxy(cx)));
    }
    Poll::Ready(())
}

/// Sends a request's body until the response headers have been received. A longer body is then an
/// [upload](crate::http::upload) of `stream`. If there is no response and nothing of the body was
/// read, `untouched` becomes the body.
async fn send_with_body(
    response_future: &ResponseFuture,
    upload: OutgoingBody,
    interim: Option<InterimSender>,
    stream: &mut StreamGuard,
    untouched: &mut Body,
) -> Result<http::Response<()>, mesh_http2::Error> {
    let mut upload = Some(upload);
    let mut failed = None;
    let response = poll_fn(|cx| {
        if let Some(sending) = &mut upload
            && poll_expectation(response_future, interim.as_ref(), cx).is_ready()
            && let Poll::Ready(sent) = Pin::new(sending).poll(cx)
        {
            let sending = upload.take();
            if let Err(error) = sent {
                // The response reports the outcome, or fails with the same error.
                tracing::debug!(%error, "Request body could not be sent completely");
                failed = sending;
                if matches!(error, SendBodyError::Body(_)) {
                    // The client has disconnected. The task that serves it must report this first,
                    // so that the endpoint is not counted as failed.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        poll_response(response_future, interim.as_ref(), cx)
    })
    .await;
    let response = match response {
        Ok(response) => response,
        Err(error) => {
            let body = failed
                .or(upload)
                .and_then(OutgoingBody::into_untouched_body);
            *untouched = body.unwrap_or_default();
            return Err(error);
        }
    };
    // A client that waits for a 100 and receives the final response does not send the body.
    let is_awaiting = interim.is_some_and(|interim| interim.is_continue_awaited());
    if let Some(upload) = upload.filter(|upload| !(is_awaiting && upload.is_untouched())) {
        stream.upload(upload);
    }
    Ok(response)
}

/// Linkerd's 16 KiB are too small for large gRPC status details and long cookies. The server
/// accepts as much.
const MAX_HEADER_LIST_SIZE: u32 = 256 * 1024;

fn role_config(params: &Http2Params, limits: &HttpLimits) -> RoleConfig {
    RoleConfig {
        role: Role::Client,
        limits: *limits,
        max_header_list_size: MAX_HEADER_LIST_SIZE.saturating_add(limits.added_bytes),
        max_streams: MAX_STREAMS,
        // Servers open no streams.
        max_pending_accept_resets: 0,
        field_lines: FIELD_LINES,
        stream_window: params.stream_window.unwrap_or(DEFAULT_STREAM_WINDOW),
        connection_window: params.connection_window.unwrap_or_default(),
        adaptive_window: params.adaptive_window,
        max_frame_size: params.max_frame_size,
        send_buffer: params.max_send_buf_size.map(|size| size as usize),
        keep_alive: params.keep_alive,
    }
}
