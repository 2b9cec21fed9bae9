//! The pool of HTTP/1 connections to one endpoint. Connections are reused last in, first out, so
//! that the surplus of a burst becomes old and is closed.
//!
//! The task of a request drives its connection. An idle connection is polled only when it is taken,
//! except for the oldest one if the server is watched ([`ServerWatcher`]). If a response begins
//! before the request has been sent completely, a task that ends with the response sends the rest.

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

use super::{Dial, ResponseGuard, SendError, ServerWatcher};
use crate::config::{Http1Limits, Http1Pool};
use crate::error::DialError;
use crate::http::headers::strip_connection_headers;
use crate::http::http1::{
    BodyLength, Connection, Error, MAX_INTERIM_RESPONSES, MessageError, OutgoingBody,
    ParsedResponse, RequestMethod, begin_request, parse_response,
};
use crate::http::interim::InterimSender;
use crate::http::message_context::MessageContext;
use crate::http::{Body, Protocol, Request, Response};
use crate::transport::Io;

/// The idle connections of one endpoint.
pub(super) struct Pool {
    idle: RefCell<Vec<IdleConnection>>,
    settings: Http1Pool,
    /// Whether the maintenance task runs. It ends when there are no idle connections.
    has_maintenance_task: Cell<bool>,
    /// The maintenance task, while it waits for the oldest connection to end.
    maintenance_waker: RefCell<Option<Waker>>,
    watcher: Option<Rc<dyn ServerWatcher>>,
    /// Whether the server has ever kept a connection open after a response. If not, closed
    /// connections do not indicate that it shuts down.
    server_keeps_alive: Cell<bool>,
}

/// A weak handle to a pool, to which an unused connection can be added.
pub struct PoolHandle(Weak<Pool>);

struct IdleConnection {
    connection: Rc<Connection>,
    since: Instant,
}

/// A connection in use.
pub(super) struct PooledConnection {
    connection: Rc<Connection>,
    pub(super) reused: bool,
}

/// Returns a connection to the pool when the response on it has been read. Dropping the guard
/// closes the connection.
pub struct PoolGuard {
    connection: Rc<Connection>,
    pool: Weak<Pool>,
    /// Whether both peers want to keep the connection.
    keeps_alive: bool,
    /// The task that sends the rest of the request.
    upload: Option<AbortOnDropHandle<Result<(), Error>>>,
}

impl Pool {
    pub(super) fn new(settings: Http1Pool, watcher: Option<Rc<dyn ServerWatcher>>) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            settings,
            has_maintenance_task: Cell::new(false),
            maintenance_waker: RefCell::default(),
            watcher,
            server_keeps_alive: Cell::new(false),
        })
    }

    /// The limits for responses.
    pub(super) fn limits(&self) -> Http1Limits {
        self.settings.limits.http1
    }

    /// Takes the most recently used connection that is still open.
    pub(super) fn take(self: &Rc<Self>) -> Option<PooledConnection> {
        let now = Instant::now();
        let mut was_closed = false;
        let mut taken = None;
        while let Some(IdleConnection { connection, since }) = self.pop() {
            let is_idle = connection.is_idle();
            if is_idle && since + self.settings.idle_timeout > now {
                taken = Some(PooledConnection {
                    connection,
                    reused: true,
                });
                break;
            }
            was_closed |= !is_idle;
            connection.send_close_notify();
        }
        if was_closed {
            self.report_server_close();
        }
        taken
    }

    fn pop(&self) -> Option<IdleConnection> {
        self.idle.borrow_mut().pop()
    }

    fn put(self: &Rc<Self>, connection: Rc<Connection>) {
        if self.idle.borrow().len() >= self.settings.max_idle {
            connection.send_close_notify();
            return;
        }
        let since = Instant::now();
        let mut idle = self.idle.borrow_mut();
        idle.push(IdleConnection { connection, since });
        let is_first = idle.len() == 1;
        drop(idle);
        if !self.has_maintenance_task.replace(true) {
            tokio::task::spawn_local(maintain_idle(
                Rc::downgrade(self),
                self.settings.idle_timeout,
            ));
        } else if is_first && let Some(maintenance_waker) = &*self.maintenance_waker.borrow() {
            let mut cx = Context::from_waker(maintenance_waker);
            if self.poll_oldest_end(&mut cx).is_ready() {
                maintenance_waker.wake_by_ref();
            }
        }
    }

    /// Ready when the oldest idle connection has ended; only if the server is watched. One
    /// connection is enough, because a server that shuts down closes all of them, and polling each
    /// would make every request more expensive.
    fn poll_oldest_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.idle.borrow().first() {
            Some(first) if self.watcher.is_some() => first.connection.poll_idle_end(cx),
            _ => Poll::Pending,
        }
    }

    /// Closes connections that are too old or that the server has closed. Returns whether any are
    /// left.
    fn close_expired(self: &Rc<Self>) -> bool {
        let now = Instant::now();
        let keeps_last = self.watcher.as_ref().is_some_and(|w| w.keeps_last_idle());
        let mut was_closed = false;
        let mut idle = self.idle.borrow_mut();
        let mut younger = idle.len();
        idle.retain(|idle| {
            younger -= 1;
            let is_idle = idle.connection.is_idle();
            let is_young = idle.since + self.settings.idle_timeout > now;
            let keep = is_idle && (is_young || (keeps_last && younger == 0));
            if !keep {
                idle.connection.send_close_notify();
            }
            was_closed |= !is_idle;
            keep
        });
        idle.shrink_to(8);
        let is_left = !idle.is_empty();
        drop(idle);
        if was_closed {
            self.report_server_close();
        }
        is_left
    }

    /// Notifies the watcher that the server has closed a connection, or announced it.
    fn report_server_close(self: &Rc<Self>) {
        if self.server_keeps_alive.get()
            && let Some(watcher) = &self.watcher
        {
            let pool = PoolHandle(Rc::downgrade(self));
            watcher.clone().connection_closed(Some(pool));
        }
    }
}

impl PoolHandle {
    /// Adds a new connection for the next request.
    pub fn put(&self, io: Io) {
        if let Some(pool) = self.0.upgrade() {
            pool.put(Connection::new(io, pool.limits()));
        }
    }
}

impl PoolGuard {
    /// Returns the connection to the pool after the response has been read. A server that has
    /// responded completely before it has read the request does not want the rest of it.
    pub(super) fn release(self) {
        let is_sent = match self.upload {
            None => true,
            Some(rest) => matches!(rest.now_or_never(), Some(Ok(Ok(())))),
        };
        if is_sent
            && self.keeps_alive
            && self.connection.is_reusable()
            && let Some(pool) = self.pool.upgrade()
        {
            pool.server_keeps_alive.set(true);
            pool.put(self.connection);
        } else {
            self.connection.send_close_notify();
        }
    }
}

/// Closes connections after they have been idle for between one and two times `timeout`, and as
/// soon as the server has closed the oldest.
async fn maintain_idle(pool: Weak<Pool>, timeout: Duration) {
    let mut timer = pin!(tokio::time::sleep(timeout));
    loop {
        poll_fn(|cx| {
            let Some(pool) = pool.upgrade() else {
                return Poll::Ready(());
            };
            if pool.poll_oldest_end(cx).is_ready() {
                return Poll::Ready(());
            }
            if pool.watcher.is_some() {
                *pool.maintenance_waker.borrow_mut() = Some(cx.waker().clone());
            }
            timer.as_mut().poll(cx)
        })
        .await;
        let Some(pool) = pool.upgrade() else { return };
        if timer.is_elapsed() {
            timer.as_mut().reset(Instant::now() + timeout);
        }
        if !pool.close_expired() {
            pool.has_maintenance_task.set(false);
            *pool.maintenance_waker.borrow_mut() = None;
            return;
        }
    }
}

/// Makes a new connection.
pub(super) async fn connect<D: Dial>(
    dial: &D,
    limits: Http1Limits,
) -> Result<PooledConnection, DialError> {
    let io = dial.dial(Protocol::Http1).await?;
    Ok(PooledConnection {
        connection: Connection::new(io, limits),
        reused: false,
    })
}

impl PooledConnection {
    /// Sends `request`. The response returns the connection to `pool`.
    pub(super) async fn send(
        self,
        request: &mut Request,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, SendError> {
        let mut response = ResponseFuture::start(self.connection, request)?;
        match poll_fn(|cx| response.poll(cx)).await {
            Ok(parsed) => {
                if !parsed.keeps_alive
                    && let Some(pool) = pool
                {
                    pool.report_server_close();
                }
                Ok(response.into_response(parsed, pool)?)
            }
            Err(error) => {
                if let (Error::NoResponse | Error::Read(_), Some(pool)) = (&error, pool) {
                    pool.report_server_close();
                }
                Err(response.into_send_error(error, request))
            }
        }
    }
}

/// A request being sent, until the response headers have been received.
struct ResponseFuture {
    connection: Rc<Connection>,
    method: RequestMethod,
    /// The request asked for another protocol.
    is_upgrade: bool,
    body: OutgoingBody,
    upload: UploadState,
    /// The client, if it understands interim responses.
    interim: Option<InterimSender>,
    interim_count: u32,
}

/// How far the request has been sent.
enum UploadState {
    InProgress,
    Complete,
    /// The server may have responded before it stopped reading.
    Failed(Error),
}

impl ResponseFuture {
    /// Queues the request's header section, to be written with the beginning of the body.
    fn start(connection: Rc<Connection>, request: &mut Request) -> Result<Self, SendError> {
        let is_upgrade = MessageContext::of(request.extensions()).requests_upgrade;
        let body = mem::take(request.body_mut());
        let interim = body.interim();
        if let Some(interim) = &interim
            && request.headers().contains_key(EXPECT)
        {
            interim.forward_expectation();
        }
        let encoder = begin_request(&connection, request, &body)?;
        Ok(Self {
            body: OutgoingBody::new(body, encoder),
            upload: UploadState::InProgress,
            interim_count: 0,
            connection,
            method: RequestMethod::new(request.method()),
            is_upgrade,
            interim,
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ParsedResponse, Error>> {
        if let UploadState::InProgress = self.upload {
            match self.body.poll(&self.connection, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.upload = UploadState::Complete,
                // The request cannot be completed without its body.
                Poll::Ready(Err(error @ (Error::Body(_) | Error::LengthMismatch))) => {
                    return Poll::Ready(Err(error));
                }
                Poll::Ready(Err(error)) => self.upload = UploadState::Failed(error),
            }
        }
        loop {
            let parsed = match ready!(self.connection.poll_headers(cx)) {
                Ok(Some(headers)) => parse_response(&headers, &self.connection.limits())?,
                Ok(None) => return Poll::Ready(Err(self.first_error(Error::NoResponse))),
                Err(error) => return Poll::Ready(Err(self.first_error(error))),
            };
            let is_final = !parsed.status.is_informational()
                || parsed.status == StatusCode::SWITCHING_PROTOCOLS;
            if is_final {
                return Poll::Ready(Ok(parsed));
            }
            // An interim response has no body. One whose headers declare a body is rejected,
            // because another recipient could wait for that body.
            parsed.body_length(self.method)?;
            self.interim_count += 1;
            if self.interim_count > MAX_INTERIM_RESPONSES {
                return Poll::Ready(Err(MessageError::TooManyInterimResponses.into()));
            }
            if let Some(interim) = &self.interim {
                let mut headers = parsed.headers;
                strip_connection_headers(&mut headers);
                interim.send(parsed.status, headers);
            }
        }
    }

    /// Returns the first error, which explains why there is no response.
    fn first_error(&mut self, error: Error) -> Error {
        match mem::replace(&mut self.upload, UploadState::InProgress) {
            UploadState::Failed(first) => first,
            _ => error,
        }
    }

    /// Returns the body to a request of which nothing was written.
    fn into_send_error(self, error: Error, request: &mut Request) -> SendError {
        let unsent = matches!(error, Error::Write(_)) && self.connection.has_written_nothing();
        match self.body.into_unsent_body() {
            Some(body) if unsent => {
                *request.body_mut() = body;
                SendError::Dial(DialError::Closed)
            }
            _ => SendError::Http1(error),
        }
    }

    /// Returns the response, whose body is read from the connection.
    fn into_response(
        self,
        parsed: ParsedResponse,
        pool: Option<&Rc<Pool>>,
    ) -> Result<Response, Error> {
        let length = parsed.body_length(self.method)?;
        let mut response = Response::new(Body::empty());
        *response.status_mut() = parsed.status;
        *response.version_mut() = parsed.version;
        *response.headers_mut() = parsed.headers;
        if let Some(reason) = parsed.reason {
            MessageContext::of_mut(response.extensions_mut()).reason = Some(reason);
        }
        if let BodyLength::Bytes(length) = length
            && response
                .headers()
                .get_all(CONTENT_LENGTH)
                .iter()
                .nth(1)
                .is_some()
        {
            // All values are equal.
            let length = HeaderValue::from(length);
            response.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let switched = parsed.status == StatusCode::SWITCHING_PROTOCOLS;
        if switched || (self.method == RequestMethod::Connect && parsed.status.is_success()) {
            if switched && !self.is_upgrade {
                return Err(MessageError::UnexpectedSwitchingProtocols.into());
            }
            *response.body_mut() = self.into_tunnel()?;
            return Ok(response);
        }
        let body = match self.connection.begin_body(length, false) {
            Some(incoming) => Body::http1(incoming),
            None => Body::empty(),
        };
        let keeps_alive = parsed.keeps_alive && length != BodyLength::UntilClose;
        *response.body_mut() =
            body.with_guard(ResponseGuard::Http1(self.into_guard(pool, keeps_alive)));
        Ok(response)
    }

    fn into_tunnel(self) -> Result<Body, Error> {
        let UploadState::Complete = self.upload else {
            return Err(Error::ConnectionInUse);
        };
        let io = self.connection.into_io().ok_or(Error::ConnectionInUse)?;
        Ok(Body::tunnel(Box::new(io)))
    }

    fn into_guard(self, pool: Option<&Rc<Pool>>, keeps_alive: bool) -> PoolGuard {
        // A client that waits for a 100 and receives the final response does not send the body.
        let is_body_unwanted = self
            .interim
            .as_ref()
            .is_some_and(InterimSender::is_continue_awaited);
        let upload = match self.upload {
            UploadState::InProgress if !is_body_unwanted => {
                let (connection, mut body) = (self.connection.clone(), self.body);
                let rest = async move { poll_fn(|cx| body.poll(&connection, cx)).await };
                Some(AbortOnDropHandle::new(tokio::task::spawn_local(rest)))
            }
            _ => None,
        };
        let is_sent = matches!(self.upload, UploadState::Complete) || upload.is_some();
        PoolGuard {
            connection: self.connection,
            pool: pool.map(Rc::downgrade).unwrap_or_default(),
            keeps_alive: keeps_alive && is_sent,
            upload,
        }
    }
}
