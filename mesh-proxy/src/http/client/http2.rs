//! The HTTP/2 connections to one endpoint: one that all requests of this thread share, and more only while the peer's limit of concurrent streams keeps
//! requests waiting. With a single connection, a few hundred long-lived streams would block every other request for as long as they last.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_core::endpoint::Http2Params;

use super::{Dial, Lease, SendError, unsent_or_failed};
use crate::config::{DEFAULT_STREAM_WINDOW, HttpLimits};
use crate::error::DialError;
use crate::http::executor::LocalExecutor;
use crate::http::http2::{Guarded, Role, Standing};
use crate::http::server::MAX_WINDOW;
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
#[derive(Clone)]
struct Link {
    sender: SendRequest<Body>,
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
    sender: SendRequest<Body>,
    stream: Stream,
}

/// The place of an open stream. Dropping it gives the place back.
pub struct Stream(Rc<Load>);

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
                let state = self.state.borrow();
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
        self.connections.retain(Link::is_usable);
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

    fn least_loaded(&self) -> Option<&Link> {
        let open = self.connections.iter().filter(|link| link.is_usable());
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
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.load.is_retired.get()
    }

    fn slot(&self) -> Slot {
        self.load.streams.set(self.load.streams.get() + 1);
        Slot {
            sender: self.sender.clone(),
            stream: Stream(self.load.clone()),
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get() - 1);
    }
}

impl Slot {
    /// Sends; the response's body keeps the place.
    pub(super) async fn send(mut self, request: Request) -> Result<Response, SendError> {
        let sent = self.sender.try_send_request(request).await;
        let response = sent.map_err(unsent_or_failed)?;
        Ok(response.map(|body| Body::incoming(body).leased(Lease::Http2(self.stream))))
    }
}

async fn connect<D: Dial>(
    dial: &D,
    params: &Http2Params,
    limits: &HttpLimits,
) -> Result<Link, DialError> {
    let io = dial.dial(Protocol::Http2).await?;
    let io = Guarded::new(io, Role::Client, limits);
    let standing = io.standing();
    let (sender, connection) = builder(params).handshake(TokioIo::new(io)).await?;
    let load = Rc::new(Load {
        streams: Cell::new(0),
        limit: Cell::new(MAX_STREAMS),
        is_retired: Cell::new(false),
    });
    let driver = Driver {
        connection,
        standing,
        load: load.clone(),
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
    connection: Connection<TokioIo<Guarded>, Body, LocalExecutor>,
    standing: Rc<Standing>,
    load: Rc<Load>,
}

impl Future for Driver {
    type Output = Result<(), hyper::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.connection).poll(cx);
        if polled.is_pending() {
            let limit = self.connection.current_max_send_streams();
            // A peer that allows none for now means "later", not "elsewhere".
            self.load.limit.set(limit.clamp(1, MAX_STREAMS));
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

/// Room for what every stream may receive before it is read: clients that do not read their responses must not keep those of others from arriving, which come on the
/// same connection.
fn window(params: &Http2Params) -> u32 {
    let all = stream_window(params).saturating_mul(MAX_STREAMS as u32);
    let window = params.connection_window.unwrap_or_default().max(all);
    window.min(MAX_WINDOW)
}

fn stream_window(params: &Http2Params) -> u32 {
    params.stream_window.unwrap_or(DEFAULT_STREAM_WINDOW)
}

fn builder(params: &Http2Params) -> Builder<LocalExecutor> {
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(stream_window(params))
        .initial_connection_window_size(window(params))
        .max_header_list_size(MAX_HEADER_LIST_SIZE)
        .max_frame_size(params.max_frame_size)
        .max_send_buf_size(
            params
                .max_send_buf_size
                .map_or(MAX_SEND_BUF_SIZE, |size| size as usize),
        );
    if params.adaptive_window {
        builder.adaptive_window(true);
    }
    if let Some(keep_alive) = params.keep_alive {
        builder
            .keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(keep_alive.while_idle);
    }
    if let Some(max) = params.max_concurrent_reset_streams {
        builder.max_concurrent_reset_streams(max as usize);
    }
    builder
}
