//! HTTP/1 connections to one endpoint, reused last in, first out, so that a burst's surplus grows
//! old and is closed.
//!
//! A connection is driven by the request on it, in the request's own task; an idle one is only
//! looked at when it is taken, except for the first where the server is watched ([`WatchServer`]).
//! When a response begins before the
//! request has been sent completely, the rest is sent by a task that ends with the response.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::mem;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Dial, Lease, SendError, WatchServer};
use crate::config::{Http1Limits, Http1Pool};
use crate::error::DialError;
use crate::http::headers::strip_connection_headers;
use crate::http::http1::{
    Asked, BodyLength, Connection, Error, MAX_INTERIM_RESPONSES, Outgoing, Refused, ResponseHead,
    begin_request, read_response,
};
use crate::http::interim::Interim;
use crate::http::{Body, Protocol, Request, Response, upgrade};
use crate::transport::Io;

/// The idle connections of one endpoint.
pub(super) struct Pool {
    idle: RefCell<Vec<Idle>>,
    settings: Http1Pool,
    /// Whether the task that looks after idle connections runs; it ends when there are none.
    is_tended: Cell<bool>,
    /// That task, while it waits for the first connection to end.
    tender: RefCell<Option<Waker>>,
    watch: Option<Rc<dyn WatchServer>>,
    /// Whether the server has ever kept a connection open after a response. What it closes says
    /// nothing of one that never does.
    has_kept: Cell<bool>,
}

/// Where a connection can be put that carries nothing yet.
pub struct Spare(Weak<Pool>);

struct Idle {
    connection: Rc<Connection>,
    since: Instant,
}

/// A connection in use.
pub(super) struct Conn {
    connection: Rc<Connection>,
    pub(super) reused: bool,
}

/// The right to put a connection back once the response on it has been read. Dropping it closes the
/// connection.
pub struct Loan {
    connection: Rc<Connection>,
    pool: Weak<Pool>,
    /// Both sides want to go on with the connection.
    keeps_alive: bool,
    /// Sends the rest of the request.
    upload: Option<AbortOnDropHandle<Result<(), Error>>>,
}

impl Pool {
    pub(super) fn new(settings: Http1Pool, watch: Option<Rc<dyn WatchServer>>) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            settings,
            is_tended: Cell::new(false),
            tender: RefCell::default(),
            watch,
            has_kept: Cell::new(false),
        })
    }

    /// What a response may cost.
    pub(super) fn limits(&self) -> Http1Limits {
        self.settings.limits.http1
    }

    /// The connection used last that can be used now.
    pub(super) fn take(self: &Rc<Self>) -> Option<Conn> {
        let now = Instant::now();
        let mut was_closed = false;
        let mut taken = None;
        while let Some(Idle { connection, since }) = self.pop() {
            let is_alive = connection.is_alive();
            if is_alive && since + self.settings.idle_timeout > now {
                taken = Some(Conn {
                    connection,
                    reused: true,
                });
                break;
            }
            was_closed |= !is_alive;
            connection.say_goodbye();
        }
        if was_closed {
            self.closed_by_server();
        }
        taken
    }

    fn pop(&self) -> Option<Idle> {
        self.idle.borrow_mut().pop()
    }

    fn put(self: &Rc<Self>, connection: Rc<Connection>) {
        if self.idle.borrow().len() >= self.settings.max_idle {
            connection.say_goodbye();
            return;
        }
        let since = Instant::now();
        let mut idle = self.idle.borrow_mut();
        idle.push(Idle { connection, since });
        let is_first = idle.len() == 1;
        drop(idle);
        if !self.is_tended.replace(true) {
            tokio::task::spawn_local(tend(Rc::downgrade(self), self.settings.idle_timeout));
        } else if is_first && let Some(tender) = &*self.tender.borrow() {
            let mut cx = Context::from_waker(tender);
            if self.poll_first_ended(&mut cx).is_ready() {
                tender.wake_by_ref();
            }
        }
    }

    /// Ready when the first of the idle connections, which is idle for longest, has ended; only
    /// where the server is watched. One is enough: a server that goes away ends them all, and to be
    /// told of each would cost every request something.
    fn poll_first_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.idle.borrow().first() {
            Some(first) if self.watch.is_some() => first.connection.poll_ended(cx),
            _ => Poll::Pending,
        }
    }

    /// Closes what is too old, or has been closed by the other side; returns whether anything is
    /// left.
    fn close_aged(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        let keeps_last = self.watch.as_ref().is_some_and(|w| w.keeps_last_idle());
        let mut was_closed = false;
        let mut idle = self.idle.borrow_mut();
        let mut behind = idle.len();
        idle.retain(|idle| {
            behind -= 1;
            let is_alive = idle.connection.is_alive();
            let is_young = idle.since + self.settings.idle_timeout > now;
            let keep = is_alive && (is_young || (keeps_last && behind == 0));
            if !keep {
                idle.connection.say_goodbye();
            }
            was_closed |= !is_alive;
            keep
        });
        idle.shrink_to(8);
        let is_left = !idle.is_empty();
        drop(idle);
        if was_closed {
            self.closed_by_server();
        }
        is_left
    }

    /// The server has closed a connection, or said that it will.
    fn closed_by_server(self: &Rc<Self>) {
        if self.has_kept.get()
            && let Some(watch) = &self.watch
        {
            let spare = Spare(Rc::downgrade(self));
            watch.clone().connection_closed(Some(spare));
        }
    }
}

impl Spare {
    /// Keeps a new connection for the next request.
    pub fn put(&self, io: Io) {
        if let Some(pool) = self.0.upgrade() {
            pool.put(Connection::new(io, pool.limits()));
        }
    }
}

impl Loan {
    /// The response has been read to its end. A server that has answered completely before it has
    /// read the request does not want the rest.
    pub(super) fn give_back(self) {
        let is_sent = match self.upload {
            None => true,
            Some(rest) => matches!(rest.now_or_never(), Some(Ok(Ok(())))),
        };
        if is_sent
            && self.keeps_alive
            && self.connection.is_clean()
            && let Some(pool) = self.pool.upgrade()
        {
            pool.has_kept.set(true);
            pool.put(self.connection);
        } else {
            self.connection.say_goodbye();
        }
    }
}

/// Closes connections once they have been idle for `timeout`, at most twice that, and as soon as
/// the server has closed the first.
async fn tend(pool: Weak<Pool>, timeout: Duration) {
    let mut timer = pin!(tokio::time::sleep(timeout));
    loop {
        poll_fn(|cx| {
            let Some(pool) = pool.upgrade() else {
                return Poll::Ready(());
            };
            if pool.poll_first_ended(cx).is_ready() {
                return Poll::Ready(());
            }
            if pool.watch.is_some() {
                *pool.tender.borrow_mut() = Some(cx.waker().clone());
            }
            timer.as_mut().poll(cx)
        })
        .await;
        let Some(pool) = pool.upgrade() else { return };
        if timer.is_elapsed() {
            timer.as_mut().reset(Instant::now() + timeout);
        }
        if !pool.close_aged() {
            pool.is_tended.set(false);
            *pool.tender.borrow_mut() = None;
            return;
        }
    }
}

/// A new connection.
pub(super) async fn connect<D: Dial>(dial: &D, limits: Http1Limits) -> Result<Conn, DialError> {
    let io = dial.dial(Protocol::Http1).await?;
    Ok(Conn {
        connection: Connection::new(io, limits),
        reused: false,
    })
}

impl Conn {
    /// Sends, and lets the response take the connection back to `pool`.
    pub(super) async fn send(
        self,
        request: &mut Request,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, SendError> {
        let mut call = Call::begin(self.connection, request)?;
        match poll_fn(|cx| call.poll(cx)).await {
            Ok(head) => {
                if !head.keeps_alive
                    && let Some(pool) = pool
                {
                    pool.closed_by_server();
                }
                Ok(call.receive(head, pool)?)
            }
            Err(error) => {
                if let (Error::NoResponse | Error::Read(_), Some(pool)) = (&error, pool) {
                    pool.closed_by_server();
                }
                Err(call.failed(error, request))
            }
        }
    }
}

/// One request on its way, until the response's head.
struct Call {
    connection: Rc<Connection>,
    asked: Asked,
    /// Another protocol was asked for.
    may_switch: bool,
    body: Outgoing,
    sent: Sent,
    /// The client, when it can take interim responses.
    interim: Option<Interim>,
    interims: u32,
}

/// How far the request has been sent.
enum Sent {
    Partly,
    Completely,
    /// The server may have answered before it stopped reading.
    Failed(Error),
}

impl Call {
    /// Puts the head together with what will be written first.
    fn begin(connection: Rc<Connection>, request: &mut Request) -> Result<Self, SendError> {
        let may_switch = upgrade::is_requested(request);
        let body = mem::take(request.body_mut());
        let interim = body.interim();
        if let Some(interim) = &interim
            && request.headers().contains_key(EXPECT)
        {
            interim.leave_expectation_to_server();
        }
        let encoder = begin_request(&connection, request, &body)?;
        Ok(Self {
            body: Outgoing::new(body, encoder),
            sent: Sent::Partly,
            interims: 0,
            connection,
            asked: Asked::by(request.method()),
            may_switch,
            interim,
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, Error>> {
        if let Sent::Partly = self.sent {
            match self.body.poll(&self.connection, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.sent = Sent::Completely,
                // Nothing can be sent to the end without its body.
                Poll::Ready(Err(error @ (Error::Body(_) | Error::WrongLength))) => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(error)) => self.sent = Sent::Failed(error),
            }
        }
        loop {
            let head = match ready!(self.connection.poll_head(cx)) {
                Ok(Some(head)) => read_response(&head, &self.connection.limits())?,
                Ok(None) => return Poll::Ready(Err(self.cause(Error::NoResponse))),
                Err(error) => return Poll::Ready(Err(self.cause(error))),
            };
            let is_final =
                !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS;
            if is_final {
                return Poll::Ready(Ok(head));
            }
            // It has no body, but others must not believe that it has one.
            head.body(self.asked)?;
            self.interims += 1;
            if self.interims > MAX_INTERIM_RESPONSES {
                return Poll::Ready(Err(Refused::TooManyInterim.into()));
            }
            if let Some(interim) = &self.interim {
                let mut headers = head.headers;
                strip_connection_headers(&mut headers);
                interim.send(head.status, headers);
            }
        }
    }

    /// Why there is no response: what went wrong first.
    fn cause(&mut self, error: Error) -> Error {
        match mem::replace(&mut self.sent, Sent::Partly) {
            Sent::Failed(first) => first,
            _ => error,
        }
    }

    /// A request of which nothing was written gets its body back.
    fn failed(self, error: Error, request: &mut Request) -> SendError {
        let unsent = matches!(error, Error::Write(_)) && self.connection.has_written_nothing();
        match self.body.into_unbegun() {
            Some(body) if unsent => {
                *request.body_mut() = body;
                SendError::Dial(DialError::Closed)
            }
            _ => SendError::Http1(error),
        }
    }

    /// The response, whose body is read from the connection.
    fn receive(self, head: ResponseHead, pool: Option<&Rc<Pool>>) -> Result<Response, Error> {
        let length = head.body(self.asked)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = head.status;
        *response.version_mut() = head.version;
        *response.headers_mut() = head.headers;
        if let Some(reason) = head.reason {
            response.extensions_mut().insert(reason);
        }
        if let BodyLength::Bytes(length) = length
            && response
                .headers()
                .get_all(CONTENT_LENGTH)
                .iter()
                .nth(1)
                .is_some()
        {
            // All are equal.
            let length = HeaderValue::from(length);
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let switched = head.status == StatusCode::SWITCHING_PROTOCOLS;
        if switched || (self.asked == Asked::Connect && head.status.is_success()) {
            if switched && !self.may_switch {
                return Err(Refused::UnexpectedSwitch.into());
            }
            *response.body_mut() = self.into_tunnel()?;
            return Ok(response);
        }
        let body = match self.connection.begin_body(length, false) {
            Some(incoming) => Body::http1(incoming),
            None => Body::empty(),
        };
        let keeps_alive = head.keeps_alive && length != BodyLength::UntilClose;
        *response.body_mut() = body.leased(Lease::Http1(self.into_loan(pool, keeps_alive)));
        Ok(response)
    }

    fn into_tunnel(self) -> Result<Body, Error> {
        let Sent::Completely = self.sent else {
            return Err(Error::Busy);
        };
        let io = self.connection.into_io().ok_or(Error::Busy)?;
        Ok(Body::tunnel(Box::new(io)))
    }

    fn into_loan(self, pool: Option<&Rc<Pool>>, keeps_alive: bool) -> Loan {
        // A client that waits for a word of the server has got it: the response.
        let is_refused = self.interim.as_ref().is_some_and(Interim::is_awaited);
        let upload = match self.sent {
            Sent::Partly if !is_refused => {
                let (connection, mut body) = (self.connection.clone(), self.body);
                let rest = async move { poll_fn(|cx| body.poll(&connection, cx)).await };
                Some(AbortOnDropHandle::new(tokio::task::spawn_local(rest)))
            }
            _ => None,
        };
        let is_sent = matches!(self.sent, Sent::Completely) || upload.is_some();
        Loan {
            connection: self.connection,
            pool: pool.map(Rc::downgrade).unwrap_or_default(),
            keeps_alive: keeps_alive && is_sent,
            upload,
        }
    }
}
