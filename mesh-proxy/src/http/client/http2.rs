//! The HTTP/2 connections to one endpoint: one that all requests of this thread share, and more only while the peer's limit of concurrent streams keeps
//! requests waiting. With a single connection, a few hundred long-lived streams would block every other request for as long as they last.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use mesh_core::endpoint::Http2Params;
use tokio::task::AbortHandle;

use super::{Dial, Lease, SendError};
use crate::config::{DEFAULT_STREAM_WINDOW, HttpLimits};
use crate::error::DialError;
use crate::http::http2::{
    Beat, Failed, Guarded, Incoming, Interrupted, Of, Outgoing, Pulse, Role, Standing,
    connection_window, declared_length, first_stream_window, prepare_request,
};
use crate::http::{Body, Protocol, Request, Response};

/// The connections of one endpoint.
pub(super) struct Multiplexed {
    params: Http2Params,
    limits: HttpLimits,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    /// In the order of their making. Earlier ones are filled first, so that those which a burst has added run empty and are closed.
    connections: Vec<Link>,
    /// Everybody who needs a connection meanwhile waits for the same attempt and shares its outcome.
    connecting: Option<Attempt>,
}

/// One connection.
struct Link {
    sender: SendRequest<Bytes>,
    load: Rc<Load>,
}

struct Load {
    streams: Cell<usize>,
    /// How many streams the peer allows, and we want.
    limit: Cell<usize>,
    /// No more streams are to be opened on it.
    is_retired: Cell<bool>,
}

/// A stream to be.
pub(super) struct Slot {
    sender: SendRequest<Bytes>,
    stream: Stream,
}

/// The place of an open stream. Dropping it gives the place back, and ends the request if its body is still being sent.
pub struct Stream {
    load: Rc<Load>,
    upload: Option<AbortHandle>,
}

type Attempt = Shared<LocalBoxFuture<'static, Result<(), DialError>>>;

/// Connections to one endpoint from one thread. With [`MAX_STREAMS`] on each this is three times the 4,000 clients that may read slowly, and hold a stream for as
/// long, without keeping the requests of others from being sent; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Streams on one connection, also to peers that would allow more. The connection's window holds what all of them may receive before it is read (see [`window`]).
const MAX_STREAMS: usize = 200;

impl Multiplexed {
    pub(super) fn new(params: Http2Params, limits: HttpLimits) -> Self {
        Self {
            params,
            limits,
            state: Rc::default(),
        }
    }

    /// A place for one stream.
    pub(super) async fn slot<D: Dial + 'static>(&self, dial: &Rc<D>) -> Result<Slot, DialError> {
        loop {
            let attempt = {
                let mut state = self.state.borrow_mut();
                match state.place() {
                    Some(slot) => return Ok(slot),
                    None => state
                        .connecting
                        .get_or_insert_with(|| self.start(dial.clone()))
                        .clone(),
                }
            };
            if let Err(error) = attempt.await {
                // A full connection is better than none: the stream waits for its turn.
                let mut state = self.state.borrow_mut();
                state.drop_unusable();
                return state.least_loaded().map(Link::slot).ok_or(error);
            }
        }
    }

    /// Connects in a task of its own, so that the attempt does not depend on the patience of the request that began it.
    fn start<D: Dial + 'static>(&self, dial: Rc<D>) -> Attempt {
        let (params, limits) = (self.params, self.limits);
        let state = Rc::downgrade(&self.state);
        let attempt = async move {
            let connected = connect(&*dial, &params, &limits).await;
            let Some(state) = state.upgrade() else {
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
}

impl State {
    /// A place on a connection that exists; `None` when there should be another one.
    fn place(&mut self) -> Option<Slot> {
        self.drop_unusable();
        let free = self
            .connections
            .iter()
            .position(|link| !link.load.is_full());
        if let Some(free) = free {
            let slot = self.connections[free].slot();
            if self.connections[free].load.is_easy() {
                self.close_surplus(free);
            }
            return Some(slot);
        }
        if self.connections.len() < MAX_CONNECTIONS {
            return None;
        }
        self.least_loaded().map(Link::slot)
    }

    fn drop_unusable(&mut self) {
        self.connections.retain_mut(Link::is_usable);
    }

    fn least_loaded(&self) -> Option<&Link> {
        let open = self.connections.iter();
        open.min_by_key(|link| link.load.streams.get())
    }

    /// Connections behind the one `in_use` that nothing runs on any more are not needed.
    fn close_surplus(&mut self, in_use: usize) {
        let mut index = 0;
        self.connections.retain(|link| {
            let keep = index <= in_use || link.load.streams.get() > 0;
            index += 1;
            keep
        });
    }
}

impl Link {
    /// Also asks the library, which knows first that the peer wants no more streams, or is gone.
    fn is_usable(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        !self.load.is_retired.get()
            && matches!(self.sender.poll_ready(&mut nobody), Poll::Ready(Ok(())))
    }

    fn slot(&self) -> Slot {
        self.load.streams.set(self.load.streams.get() + 1);
        Slot {
            sender: self.sender.clone(),
            stream: Stream {
                load: self.load.clone(),
                upload: None,
            },
        }
    }
}

impl Load {
    fn is_full(&self) -> bool {
        self.streams.get() >= self.limit.get()
    }

    /// So far from full that another connection will not be needed again at once.
    fn is_easy(&self) -> bool {
        self.streams.get() < self.limit.get() / 2
    }
}

impl Stream {
    /// The response has been read to its end. The server may still want the rest of the request.
    pub(super) fn give_back(mut self) {
        self.upload = None;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.load.streams.set(self.load.streams.get() - 1);
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}

impl Slot {
    /// Sends; the response's body keeps the place.
    pub(super) async fn send(mut self, request: Request) -> Result<Response, SendError> {
        let ready = poll_fn(|cx| self.sender.poll_ready(cx)).await;
        if ready.is_err() {
            return Err(SendError::dead(request));
        }
        let (mut head, body) = request.into_parts();
        prepare_request(&mut head.headers, &body);
        let is_last = http_body::Body::is_end_stream(&body);
        let head = http::Request::from_parts(head, ());
        let (answer, stream) = self
            .sender
            .send_request(head, is_last)
            .map_err(SendError::Http2)?;
        let response = if is_last {
            drop(stream);
            answer.await
        } else {
            converse(answer, Outgoing::new(body, stream), &mut self.stream).await
        };
        let response = response.map_err(SendError::Http2)?;
        let length = declared_length(response.headers());
        Ok(response.map(|body| {
            let body = Incoming::new(body, Of::Response, length);
            Body::http2(body).leased(Lease::Http2(self.stream))
        }))
    }
}

/// Sends a request's body until the response's head has come. A body that goes on longer gets a task, so that it does not depend on who reads the response.
async fn converse(
    mut answer: ResponseFuture,
    upload: Outgoing,
    stream: &mut Stream,
) -> Result<http::Response<h2::RecvStream>, h2::Error> {
    let mut upload = Some(upload);
    let response = poll_fn(|cx| {
        if let Some(sending) = &mut upload
            && let Poll::Ready(sent) = Pin::new(sending).poll(cx)
        {
            upload = None;
            if let Err(error) = sent {
                // The response says the rest, or ends with the same error.
                tracing::debug!(%error, "A request could not be sent to its end");
                if matches!(error, Interrupted::Body(_)) {
                    // The client is gone. Whoever serves it shall notice first: no server has failed.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        Pin::new(&mut answer).poll(cx)
    })
    .await?;
    if let Some(upload) = upload {
        let task = tokio::task::spawn_local(async move {
            if let Err(error) = upload.await {
                tracing::debug!(%error, "A request could not be sent to its end");
            }
        });
        stream.upload = Some(task.abort_handle());
    }
    Ok(response)
}

async fn connect<D: Dial>(
    dial: &D,
    params: &Http2Params,
    limits: &HttpLimits,
) -> Result<Link, DialError> {
    let io = dial.dial(Protocol::Http2).await?;
    let io = Guarded::new(io, Role::Client, limits);
    let standing = io.standing();
    let (sender, mut connection) = builder(params).handshake(io).await?;
    let load = Rc::new(Load {
        streams: Cell::new(0),
        limit: Cell::new(MAX_STREAMS),
        is_retired: Cell::new(false),
    });
    let adapted = params.adaptive_window.then_some(stream_window(params));
    let driver = Driver {
        pulse: Pulse::new(
            connection.ping_pong(),
            &standing,
            params.keep_alive,
            adapted,
        ),
        connection,
        standing,
        load: load.clone(),
        params: *params,
    };
    tokio::task::spawn_local(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "HTTP/2 connection to an endpoint failed");
        }
    });
    Ok(Link { sender, load })
}

/// Runs a connection and notes how many streams its peer allows, which only the connection itself can tell.
struct Driver {
    connection: Connection<Guarded, Bytes>,
    pulse: Pulse,
    standing: Rc<Standing>,
    load: Rc<Load>,
    params: Http2Params,
}

impl Driver {
    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(cx) {
                return Poll::Ready(ended);
            }
            match self.pulse.poll(cx, || self.load.streams.get() > 0) {
                Poll::Pending => match self.standing.poll_send(cx) {
                    Poll::Ready(Err(Failed)) => {}
                    _ => return Poll::Pending,
                },
                Poll::Ready(Beat::Window(size)) => {
                    self.connection
                        .set_target_window_size(window(&self.params, size));
                    // Fails only while the last change is not acknowledged: the next sample says the same.
                    let _later = self.connection.set_initial_window_size(size);
                }
                Poll::Ready(Beat::Dead) => {
                    tracing::info!(
                        "An endpoint does not answer HTTP/2 pings; its connection is closed"
                    );
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Future for Driver {
    type Output = Result<(), h2::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_connection(cx);
        match polled {
            Poll::Ready(_) => self.load.is_retired.set(true),
            Poll::Pending => {
                let limit = self.connection.max_concurrent_send_streams();
                // A peer that allows none for now means "later", not "elsewhere".
                self.load.limit.set(limit.clamp(1, MAX_STREAMS));
            }
        }
        if let Some(violation) = self.standing.take_violation() {
            tracing::info!(reason = %violation, "HTTP/2 connection to an endpoint ended or replaced");
            self.load.is_retired.set(true);
        }
        polled
    }
}

/// Linkerd's 1 MiB.
const MAX_SEND_BUF_SIZE: usize = 1024 * 1024;

/// Linkerd's 16 KiB are too few for large gRPC status details and long cookies; the server side accepts as much.
const MAX_HEADER_LIST_SIZE: u32 = 256 * 1024;

/// Until the peer has said how many it allows. RFC 9113 recommends no smaller limit (section 6.5.2).
const FIRST_STREAMS: usize = 100;

fn window(params: &Http2Params, stream_window: u32) -> u32 {
    let configured = params.connection_window.unwrap_or_default();
    connection_window(stream_window, MAX_STREAMS as u32, configured)
}

fn stream_window(params: &Http2Params) -> u32 {
    let configured = params.stream_window.unwrap_or(DEFAULT_STREAM_WINDOW);
    first_stream_window(configured, params.adaptive_window)
}

fn builder(params: &Http2Params) -> Builder {
    let stream_window = stream_window(params);
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_max_send_streams(FIRST_STREAMS)
        .initial_window_size(stream_window)
        .initial_connection_window_size(window(params, stream_window))
        .max_header_list_size(MAX_HEADER_LIST_SIZE)
        .max_send_buffer_size(
            params
                .max_send_buf_size
                .map_or(MAX_SEND_BUF_SIZE, |size| size as usize),
        );
    if let Some(size) = params.max_frame_size {
        builder.max_frame_size(size);
    }
    if let Some(max) = params.max_concurrent_reset_streams {
        builder.max_concurrent_reset_streams(max as usize);
    }
    builder
}
