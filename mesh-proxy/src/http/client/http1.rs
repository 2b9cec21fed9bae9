//! HTTP/1 connections to one endpoint, reused last in, first out, so that a burst's surplus grows old and is closed.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::{Dial, MAX_UNSENT, SendError, is_replayable, replay};
use crate::config::Http1Pool;
use crate::error::DialError;
use crate::http::{Body, Protocol, Request, Response};

/// The idle connections of one endpoint.
pub(super) struct Pool {
    idle: RefCell<Vec<Idle>>,
    settings: Http1Pool,
    /// Whether the task that closes aged connections runs; it ends when there are none.
    sweeping: Cell<bool>,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// The right to put a connection back once the response on it has been read. Dropping it closes the connection.
pub struct Lease {
    sender: SendRequest<Body>,
    pool: Weak<Pool>,
}

impl Pool {
    pub(super) fn new(settings: Http1Pool) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            settings,
            sweeping: Cell::new(false),
        })
    }

    /// Sends on an idle connection, or a new one. A connection that the server closed at the same moment is replaced without anybody noticing, when the
    /// request was not written or can be written twice.
    pub(super) async fn send<D: Dial>(
        self: &Rc<Self>,
        dial: &D,
        mut request: Request,
    ) -> Result<Response, SendError> {
        let mut may_reuse = true;
        let mut unsent = 0;
        loop {
            let reused = if may_reuse { self.take() } else { None };
            let was_reused = reused.is_some();
            let mut sender = match reused {
                Some(sender) => sender,
                None => match Box::pin(connect(dial)).await {
                    Ok(sender) => sender,
                    Err(error) => {
                        let request = Box::new(request);
                        return Err(SendError::Dial { error, request });
                    }
                },
            };
            let again = (was_reused && is_replayable(&request)).then(|| replay(&request));
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let pool = Rc::downgrade(self);
                    let lease = Lease { sender, pool };
                    return Ok(response.map(|body| Body::incoming(body).leased(lease)));
                }
                Err(mut error) => match (error.take_message(), again) {
                    (Some(back), _) if unsent < MAX_UNSENT => {
                        unsent += 1;
                        request = back;
                    }
                    (Some(back), _) => return Err(closed(back)),
                    (None, Some(again)) => {
                        may_reuse = false;
                        request = again;
                    }
                    (None, None) => return Err(SendError::Exchange(error.into_error())),
                },
            }
        }
    }

    /// The connection used last that can be used now.
    fn take(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let candidate = &idle[at];
            if candidate.sender.is_closed() || candidate.since + self.settings.idle_timeout <= now {
                idle.remove(at);
            } else if candidate.sender.is_ready() {
                return Some(idle.remove(at).sender);
            }
            // Otherwise it is still finishing its last exchange: a later request may have it.
        }
        None
    }

    fn put(self: &Rc<Self>, sender: SendRequest<Body>) {
        if sender.is_closed() || self.idle.borrow().len() >= self.settings.max_idle {
            return;
        }
        let since = Instant::now();
        self.idle.borrow_mut().push(Idle { sender, since });
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self), self.settings.idle_timeout));
        }
    }

    /// Closes what is too old; returns whether anything is left.
    fn close_aged(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|idle| {
            !idle.sender.is_closed() && idle.since + self.settings.idle_timeout > now
        });
        idle.shrink_to(8);
        !idle.is_empty()
    }
}

impl Lease {
    /// The response has been read to its end.
    pub(in crate::http) fn give_back(self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.put(self.sender);
        }
    }
}

/// Closes connections once they have been idle for `timeout`, at most twice that.
async fn sweep(pool: Weak<Pool>, timeout: Duration) {
    loop {
        tokio::time::sleep(timeout).await;
        let Some(pool) = pool.upgrade() else { return };
        if !pool.close_aged() {
            pool.sweeping.set(false);
            return;
        }
    }
}

async fn connect<D: Dial>(dial: &D) -> Result<SendRequest<Body>, DialError> {
    let io = dial.dial(Protocol::Http1).await?;
    let (sender, connection) = Builder::new()
        .handshake(TokioIo::new(io))
        .await
        .map_err(DialError::from)?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP/1 connection to an endpoint failed");
        }
    });
    Ok(sender)
}

/// Sends on a connection that serves this one request, and may become a tunnel.
pub(super) async fn send_once<D: Dial>(dial: &D, request: Request) -> Result<Response, SendError> {
    let connected = Box::pin(async {
        let io = dial.dial(Protocol::Http1).await?;
        Builder::new()
            .handshake(TokioIo::new(io))
            .await
            .map_err(DialError::from)
    });
    let (mut sender, connection) = match connected.await {
        Ok(connected) => connected,
        Err(error) => {
            let request = Box::new(request);
            return Err(SendError::Dial { error, request });
        }
    };
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "HTTP/1 connection to an endpoint failed");
        }
    });
    match sender.try_send_request(request).await {
        Ok(response) => Ok(response.map(Body::incoming)),
        Err(mut error) => match error.take_message() {
            Some(request) => Err(closed(request)),
            None => Err(SendError::Exchange(error.into_error())),
        },
    }
}

/// The endpoint closes its connections before anything can be sent on them.
pub(super) fn closed(request: Request) -> SendError {
    SendError::Dial {
        error: DialError::Closed,
        request: Box::new(request),
    }
}
