//! HTTP/1 connections to one endpoint, reused last in, first out, so that a burst's surplus grows old and is closed.
//!
//! A connection is driven by the request on it, in the request's own task; an idle one is only looked at when it is taken. When a response begins before the
//! request has been sent completely, the rest is sent by a task that ends with the response.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Dial, Lease, SendError};
use crate::config::{Http1Limits, Http1Pool};
use crate::error::DialError;
use crate::http::headers::strip_connection_headers;
use crate::http::http1::{
    Asked, BodyLength, Connection, Error, MAX_INTERIM_RESPONSES, Outgoing, Refused, ResponseHead,
    begin_request, read_response,
};
use crate::http::interim::Interim;
use crate::http::{Body, Protocol, Request, Response, upgrade};

/// The idle connections of one endpoint.
pub(super) struct Pool {
    idle: RefCell<Vec<Idle>>,
    settings: Http1Pool,
    /// Whether the task that closes aged connections runs; it ends when there are none.
    sweeping: Cell<bool>,
}

struct Idle {
    connection: Rc<Connection>,
    since: Instant,
}

/// A connection in use.
pub(super) struct Conn {
    connection: Rc<Connection>,
    pub(super) reused: bool,
}

/// The right to put a connection back once the response on it has been read. Dropping it closes the connection.
pub struct Loan {
    connection: Rc<Connection>,
    pool: Weak<Pool>,
    /// Both sides want to go on with the connection.
    keeps_alive: bool,
    /// Sends the rest of the request.
    upload: Option<AbortOnDropHandle<Result<(), Error>>>,
}

impl Pool {
    pub(super) fn new(settings: Http1Pool) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            settings,
            sweeping: Cell::new(false),
        })
    }

    /// What a response may cost.
    pub(super) fn limits(&self) -> Http1Limits {
        self.settings.limits.http1
    }

    /// The connection used last that can be used now.
    pub(super) fn take(&self) -> Option<Conn> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        while let Some(Idle { connection, since }) = idle.pop() {
            if since + self.settings.idle_timeout > now && connection.is_alive() {
                return Some(Conn {
                    connection,
                    reused: true,
                });
            }
            connection.say_goodbye();
        }
        None
    }

    fn put(self: &Rc<Self>, connection: Rc<Connection>) {
        if self.idle.borrow().len() >= self.settings.max_idle {
            connection.say_goodbye();
            return;
        }
        let since = Instant::now();
        self.idle.borrow_mut().push(Idle { connection, since });
        if !self.sweeping.replace(true) {
            tokio::task::spawn_local(sweep(Rc::downgrade(self), self.settings.idle_timeout));
        }
    }

    /// Closes what is too old, or has been closed by the other side; returns whether anything is left.
    fn close_aged(&self) -> bool {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|idle| {
            let keep = idle.since + self.settings.idle_timeout > now && idle.connection.is_alive();
            if !keep {
                idle.connection.say_goodbye();
            }
            keep
        });
        idle.shrink_to(8);
        !idle.is_empty()
    }
}

impl Loan {
    /// The response has been read to its end. A server that has answered completely before it has read the request does not want the rest.
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
            pool.put(self.connection);
        } else {
            self.connection.say_goodbye();
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
            Ok(head) => Ok(call.receive(head, pool)?),
            Err(error) => Err(call.failed(error, request)),
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
