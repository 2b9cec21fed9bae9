//! HTTP/1 connections to one endpoint, reused last in, first out, so that a burst's surplus grows old and is closed.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::{Dial, Lease, SendError, unsent_or_failed};
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

/// A connection in use.
pub(super) struct Conn {
    sender: SendRequest<Body>,
    pub(super) reused: bool,
}

/// Whether the one request on a connection may turn it into something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrades {
    None,
    Allowed,
}

/// The right to put a connection back once the response on it has been read. Dropping it closes the connection.
pub struct Loan {
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

    /// The connection used last that can be used now.
    pub(super) fn take(&self) -> Option<Conn> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let candidate = &idle[at];
            if candidate.sender.is_closed() || candidate.since + self.settings.idle_timeout <= now {
                idle.remove(at);
            } else if candidate.sender.is_ready() {
                return Some(Conn {
                    sender: idle.remove(at).sender,
                    reused: true,
                });
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

impl Loan {
    /// The response has been read to its end.
    pub(super) fn give_back(self) {
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

/// A new connection.
pub(super) async fn connect<D: Dial>(dial: &D, upgrades: Upgrades) -> Result<Conn, DialError> {
    let io = dial.dial(Protocol::Http1).await?;
    let (sender, connection) = Builder::new().handshake(TokioIo::new(io)).await?;
    tokio::task::spawn_local(async move {
        let ended = match upgrades {
            Upgrades::None => connection.await,
            Upgrades::Allowed => connection.with_upgrades().await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "HTTP/1 connection to an endpoint failed");
        }
    });
    Ok(Conn {
        sender,
        reused: false,
    })
}

impl Conn {
    /// Sends, and lets the response take the connection back to `pool`.
    pub(super) async fn send(
        mut self,
        request: Request,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, SendError> {
        let response = self
            .sender
            .try_send_request(request)
            .await
            .map_err(unsent_or_failed)?;
        let response = response.map(Body::incoming);
        Ok(match pool {
            None => response,
            Some(pool) => {
                let lease = Lease::Http1(Loan {
                    sender: self.sender,
                    pool: Rc::downgrade(pool),
                });
                response.map(|body| body.leased(lease))
            }
        })
    }
}
