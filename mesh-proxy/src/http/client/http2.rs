//! The one HTTP/2 connection to an endpoint that all requests of this thread share. It is made when first needed, and again after it has ended.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioIo, TokioTimer};
use mesh_core::endpoint::Http2Params;

use super::Dial;
use crate::error::DialError;
use crate::http::executor::LocalExecutor;
use crate::http::{Body, Protocol};

/// A connection, or the attempt to make one.
pub(super) struct Multiplexed {
    params: Http2Params,
    state: Rc<RefCell<State>>,
}

enum State {
    Idle,
    /// Everybody who came meanwhile waits for the same attempt and shares its outcome.
    Connecting(Attempt),
    Connected(Sender),
}

/// Clones of it share the connection.
pub(super) type Sender = SendRequest<Body>;

type Attempt = Shared<LocalBoxFuture<'static, Result<Sender, DialError>>>;

impl Multiplexed {
    pub(super) fn new(params: Http2Params) -> Self {
        Self {
            params,
            state: Rc::new(RefCell::new(State::Idle)),
        }
    }

    pub(super) async fn sender<D: Dial + 'static>(
        &self,
        dial: &Rc<D>,
    ) -> Result<Sender, DialError> {
        let attempt = {
            let mut state = self.state.borrow_mut();
            match &*state {
                State::Connected(sender) if !sender.is_closed() => return Ok(sender.clone()),
                State::Connecting(attempt) => attempt.clone(),
                _ => {
                    let attempt = self.start(dial.clone());
                    *state = State::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        attempt.await
    }

    /// Connects in a task of its own, so that the attempt does not depend on the patience of the request that began it.
    fn start<D: Dial + 'static>(&self, dial: Rc<D>) -> Attempt {
        let params = self.params;
        let state = Rc::downgrade(&self.state);
        let attempt = async move {
            let connected = connect(&*dial, &params).await;
            if let Some(state) = state.upgrade() {
                *state.borrow_mut() = match &connected {
                    Ok(sender) => State::Connected(sender.clone()),
                    Err(_) => State::Idle,
                };
            }
            connected
        };
        let attempt = attempt.boxed_local().shared();
        tokio::task::spawn_local(attempt.clone());
        attempt
    }
}

async fn connect<D: Dial>(dial: &D, params: &Http2Params) -> Result<Sender, DialError> {
    let io = dial.dial(Protocol::Http2).await?;
    let (sender, connection) = builder(params).handshake(TokioIo::new(io)).await?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP/2 connection to an endpoint failed");
        }
    });
    Ok(sender)
}

/// Linkerd's 1 MiB.
const MAX_SEND_BUF_SIZE: usize = 1024 * 1024;

/// Linkerd's 16 KiB are too few for large gRPC status details and long cookies; the server side accepts as much.
const MAX_HEADER_LIST_SIZE: u32 = 256 * 1024;

fn builder(params: &Http2Params) -> Builder<LocalExecutor> {
    let mut builder = Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(params.stream_window)
        .initial_connection_window_size(params.connection_window)
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
