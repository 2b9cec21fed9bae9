//! The HTTP/2 connections to one endpoint: one that all requests of this thread share, and more
//! only while the peer's limit of concurrent streams keeps requests waiting. With a single
//! connection, a few hundred long-lived streams would block every other request for as long as they
//! last.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use http::StatusCode;
use mesh_core::endpoint::Http2Params;
use mesh_http2::Role;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{Dial, Lease, Params, SendError, WatchServer};
use crate::config::{DEFAULT_STREAM_WINDOW, HttpLimits};
use crate::error::DialError;
use crate::http::http2::{
    Call, Driver, Interrupted, Link, Outgoing, Terms, declared_length, prepare_request,
};
use crate::http::interim::Interim;
use crate::http::{Body, Protocol, Request, Response};

/// The connections of one endpoint.
pub(super) struct Multiplexed<D> {
    maker: Maker<D>,
    state: Rc<RefCell<State>>,
    /// How long connections are kept that a burst has added.
    idle_timeout: Duration,
}

/// Makes the connections of one endpoint.
struct Maker<D> {
    dial: Rc<D>,
    params: Http2Params,
    limits: HttpLimits,
    state: Weak<RefCell<State>>,
    watch: Option<Rc<dyn WatchServer>>,
}

#[derive(Default)]
struct State {
    /// In the order of their making. Earlier ones are filled first, so that those which a burst has
    /// added run empty and are closed.
    connections: Vec<Open>,
    /// Everybody who needs a connection meanwhile waits for the same attempt and shares its
    /// outcome.
    connecting: Option<Attempt>,
}

/// One connection. Dropped, it lets its streams end and closes.
struct Open {
    link: Link,
    /// Streams that are open, or will be.
    load: Rc<Cell<usize>>,
    /// When it was made, or, if it is not the first, got its last stream.
    used: Cell<Instant>,
}

/// A stream to be.
pub(super) struct Slot {
    link: Link,
    stream: Stream,
}

/// The place of an open stream. Dropping it gives the place back, and ends the request if its body
/// is still being sent.
pub struct Stream {
    load: Rc<Cell<usize>>,
    upload: Option<AbortHandle>,
}

type Attempt = Shared<LocalBoxFuture<'static, Result<(), DialError>>>;

/// Connections to one endpoint from one thread. With [`MAX_STREAMS`] on each this is three times
/// the 4,000 clients that may read slowly, and hold a stream for as long, without keeping the
/// requests of others from being sent; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Streams on one connection, also to peers that would allow more. The connection's window holds
/// what all of them may receive before it is read.
const MAX_STREAMS: u32 = 200;

impl<D: Dial + 'static> Multiplexed<D> {
    pub(super) fn new(dial: Rc<D>, params: &Params, watch: Option<Rc<dyn WatchServer>>) -> Self {
        let state = Rc::default();
        let maker = Maker {
            dial,
            watch,
            params: params.http2,
            limits: params.pool.limits,
            state: Rc::downgrade(&state),
        };
        Self {
            maker,
            state,
            idle_timeout: params.pool.idle_timeout,
        }
    }

    /// A place for one stream.
    pub(super) async fn slot(&self) -> Result<Slot, DialError> {
        loop {
            let attempt = {
                let mut state = self.state.borrow_mut();
                match state.place(self.idle_timeout) {
                    Some(slot) => return Ok(slot),
                    None => state
                        .connecting
                        .get_or_insert_with(|| self.maker.start())
                        .clone(),
                }
            };
            if let Err(error) = attempt.await {
                // A full connection is better than none: the stream waits for its turn.
                let mut state = self.state.borrow_mut();
                state.drop_unusable();
                return state.least_loaded().map(Open::slot).ok_or(error);
            }
        }
    }
}

impl<D> Clone for Maker<D> {
    fn clone(&self) -> Self {
        Self {
            dial: self.dial.clone(),
            params: self.params,
            limits: self.limits,
            state: self.state.clone(),
            watch: self.watch.clone(),
        }
    }
}

impl<D: Dial + 'static> Maker<D> {
    /// Connects in a task of its own, so that the attempt does not depend on the patience of the
    /// request that began it.
    fn start(&self) -> Attempt {
        let maker = self.clone();
        let attempt = async move {
            let connected = maker.connect().await;
            let Some(state) = maker.state.upgrade() else {
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

    /// Connects before a request asks for it, if no connection has room.
    fn start_ahead(&self) {
        let Some(state) = self.state.upgrade() else {
            return;
        };
        let mut state = state.borrow_mut();
        state.drop_unusable();
        if state.connecting.is_none() && state.connections.iter().all(Open::is_full) {
            state.connecting = Some(self.start());
        }
    }

    /// A connection can take no more streams. If it is still in use, that is the server's doing.
    fn tell_watch(&self, load: &Rc<Cell<usize>>) {
        if let (Some(watch), Some(state)) = (&self.watch, self.state.upgrade()) {
            let state = state.borrow();
            if state
                .connections
                .iter()
                .any(|open| Rc::ptr_eq(&open.load, load))
            {
                watch.clone().connection_closed(None);
            }
        }
    }

    async fn connect(&self) -> Result<Open, DialError> {
        let io = self.dial.dial(Protocol::Http2).await?;
        let driver = Driver::new(io, terms(&self.params, &self.limits));
        let open = Open {
            link: driver.link().clone(),
            load: Rc::default(),
            used: Cell::new(Instant::now()),
        };
        tokio::task::spawn_local(drive(
            driver,
            open.link.clone(),
            open.load.clone(),
            self.clone(),
        ));
        Ok(open)
    }
}

/// Moves a connection's bytes. When it can take no more streams while there are some on it, its
/// endpoint is in use: the next connection is begun at once, so that the next request does not have
/// to wait for it.
///
/// No `async fn`, for the reason that the server's `serve` is none.
fn drive<D: Dial + 'static>(
    mut driver: Driver,
    link: Link,
    load: Rc<Cell<usize>>,
    maker: Maker<D>,
) -> impl Future<Output = ()> {
    let mut maker = Some(maker);
    async move {
        let ended = poll_fn(|cx| {
            let polled = driver.poll(cx, &mut |_link, _no_server_opens_any| {});
            if maker.is_some()
                && !link.is_usable()
                && let Some(maker) = maker.take()
            {
                maker.tell_watch(&load);
                if load.get() > 0 {
                    maker.start_ahead();
                }
            }
            polled
        })
        .await;
        if let Some(violation) = link.take_limit_exceeded() {
            tracing::info!(reason = %violation, "HTTP/2 connection to an endpoint ended or replaced");
        }
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP/2 connection to an endpoint failed");
        }
    }
}

impl State {
    /// A place on a connection that exists; `None` when there should be another one.
    fn place(&mut self, idle_timeout: Duration) -> Option<Slot> {
        self.drop_unusable();
        let free = self.connections.iter().position(|open| !open.is_full());
        if let Some(free) = free {
            let open = &self.connections[free];
            let (slot, is_easy) = (open.slot(), open.is_easy());
            if self.connections.len() > 1 {
                let now = Instant::now();
                open.used.set(now);
                if is_easy {
                    self.close_surplus(free, now, idle_timeout);
                }
            }
            return Some(slot);
        }
        if self.connections.len() < MAX_CONNECTIONS {
            return None;
        }
        self.least_loaded().map(Open::slot)
    }

    fn drop_unusable(&mut self) {
        self.connections.retain(Open::is_usable);
    }

    fn least_loaded(&self) -> Option<&Open> {
        let open = self.connections.iter();
        open.min_by_key(|open| open.load.get())
    }

    /// Connections behind the one `in_use` that nothing has run on for a while are not needed.
    /// Bursts come again: to close them at once would mean a handshake for each wave.
    fn close_surplus(&mut self, in_use: usize, now: Instant, idle_timeout: Duration) {
        let mut index = 0;
        self.connections.retain(|open| {
            let keep =
                index <= in_use || open.load.get() > 0 || open.used.get() + idle_timeout > now;
            index += 1;
            keep
        });
    }
}

impl Open {
    fn is_usable(&self) -> bool {
        self.link.is_usable()
    }

    fn slot(&self) -> Slot {
        self.load.set(self.load.get() + 1);
        Slot {
            link: self.link.clone(),
            stream: Stream {
                load: self.load.clone(),
                upload: None,
            },
        }
    }

    fn is_full(&self) -> bool {
        self.load.get() >= self.limit()
    }

    /// So far from full that another connection will not be needed again at once.
    fn is_easy(&self) -> bool {
        self.load.get() < self.limit() / 2
    }

    /// How many streams the peer allows, and we want. A peer that allows none for now means
    /// "later", not "elsewhere".
    fn limit(&self) -> usize {
        self.link.max_streams().clamp(1, MAX_STREAMS) as usize
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.link.leave();
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
        self.load.set(self.load.get() - 1);
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}

impl Slot {
    /// Sends; the response's body keeps the place.
    pub(super) async fn send(mut self, request: &mut Request) -> Result<Response, SendError> {
        let ready = poll_fn(|cx| self.link.poll_ready(cx)).await;
        if ready.is_err() {
            return Err(SendError::Dial(DialError::Closed));
        }
        let body = mem::take(request.body_mut());
        let interim = body.interim();
        prepare_request(request.headers_mut(), &body);
        let is_last = body.is_head_only();
        let (call, writer) = Call::begin(&self.link, request, is_last);
        let response = if is_last {
            // Its own half is over.
            drop(writer);
            poll_fn(|cx| poll_response(&call, interim.as_ref(), cx)).await
        } else {
            let upload = Outgoing::new(body, writer);
            converse(&call, upload, interim, &mut self.stream).await
        };
        let response = response.map_err(SendError::Http2)?;
        let length = declared_length(response.headers());
        let incoming = call.into_body(length);
        Ok(response.map(|()| Body::http2(incoming).leased(Lease::Http2(self.stream))))
    }
}

/// The response. What comes ahead of it goes to the client, but a 100 only if he has not been told
/// to go on: over HTTP/1 he was, with the first look at his body.
fn poll_response(
    call: &Call,
    interim: Option<&Interim>,
    cx: &Context<'_>,
) -> Poll<Result<http::Response<()>, mesh_http2::Error>> {
    loop {
        let response = ready!(call.poll(cx))?;
        let status = response.status();
        if !status.is_informational() {
            return Poll::Ready(Ok(response));
        }
        if let Some(interim) = interim
            && (status != StatusCode::CONTINUE || interim.is_awaited())
        {
            interim.send(status, response.into_parts().0.headers);
        }
    }
}

/// Sends a request's body until the response's head has come. A body that goes on longer gets a
/// task, so that it does not depend on who reads the response.
async fn converse(
    call: &Call,
    upload: Outgoing,
    interim: Option<Interim>,
    stream: &mut Stream,
) -> Result<http::Response<()>, mesh_http2::Error> {
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
                    // The client is gone. Whoever serves it shall notice first: no server has
                    // failed.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        poll_response(call, interim.as_ref(), cx)
    })
    .await?;
    // A client that waits for a word of the server has got it: the response.
    let is_refused = interim.is_some_and(|interim| interim.is_awaited());
    if let Some(upload) = upload.filter(|_| !is_refused) {
        let task = tokio::task::spawn_local(async move {
            if let Err(error) = upload.await {
                tracing::debug!(%error, "A request could not be sent to its end");
            }
        });
        stream.upload = Some(task.abort_handle());
    }
    Ok(response)
}

/// Linkerd's 16 KiB are too few for large gRPC status details and long cookies; the server side
/// accepts as much.
const MAX_HEADER_LIST_SIZE: u32 = 256 * 1024;

fn terms(params: &Http2Params, limits: &HttpLimits) -> Terms {
    Terms {
        role: Role::Client,
        limits: *limits,
        header_list: MAX_HEADER_LIST_SIZE,
        streams: MAX_STREAMS,
        // Servers open none.
        unseen_resets: 0,
        stream_window: params.stream_window.unwrap_or(DEFAULT_STREAM_WINDOW),
        connection_window: params.connection_window.unwrap_or_default(),
        adapts_windows: params.adaptive_window,
        max_frame: params.max_frame_size,
        collected: params.max_send_buf_size.map(|size| size as usize),
        keep_alive: params.keep_alive,
    }
}
