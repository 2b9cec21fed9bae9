//! The pool of idle HTTP/1 connections to one endpoint, used by [`crate::http::client`].
//! Connections are reused last in, first out, so that the surplus of a burst becomes old and is
//! closed.
//!
//! An idle connection is polled only when it is taken, except for the oldest one if the server is
//! watched ([`ServerWatcher`]). All of them are closed when the trust in the server ends.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::{Connection, Error, OutgoingBody};
use crate::config::{Http1Limits, Http1Pool};
use crate::http::upload::{BodySender, Upload};
use crate::transport::Io;

/// The idle connections of one endpoint.
pub(in crate::http) struct Pool {
    idle: RefCell<Vec<IdleConnection>>,
    settings: Http1Pool,
    /// Whether the maintenance task runs. It ends when there are no idle connections.
    has_maintenance_task: Cell<bool>,
    /// The maintenance task, while it waits for connections to end.
    maintenance_waker: RefCell<Option<Waker>>,
    watcher: Option<Rc<dyn ServerWatcher>>,
    /// Whether the server has ever kept a connection open after a response. If not, closed
    /// connections do not indicate that it shuts down.
    server_keeps_alive: Cell<bool>,
}

/// A weak handle to a pool, to which an unused connection can be added.
pub(crate) struct PoolHandle(Weak<Pool>);

/// Is notified when a server closes idle connections, as servers do when they shut down.
pub(crate) trait ServerWatcher {
    /// The server has closed a connection, or has announced it. If the watcher connects to the
    /// server to find out whether it still listens, it can add the connection to `pool`.
    fn connection_closed(self: Rc<Self>, pool: Option<PoolHandle>);

    /// Whether the last idle connection is kept although no request will use it, because its end
    /// shows that the server shuts down.
    fn keeps_last_idle(&self) -> bool;
}

/// Returns a connection to the pool when the response on it has been read. Dropping the guard
/// closes the connection.
pub(in crate::http) struct PoolGuard {
    connection: Rc<Connection>,
    pool: Weak<Pool>,
    /// Whether both peers want to keep the connection.
    keeps_alive: bool,
    /// The rest of the request.
    upload: Option<Upload<ConnectionUpload>>,
}

/// Sends the rest of a request's body.
struct ConnectionUpload {
    connection: Rc<Connection>,
    body: OutgoingBody,
}

struct IdleConnection {
    connection: Rc<Connection>,
    since: Instant,
}

impl Pool {
    pub(in crate::http) fn new(
        settings: Http1Pool,
        watcher: Option<Rc<dyn ServerWatcher>>,
    ) -> Rc<Self> {
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
    pub(in crate::http) fn limits(&self) -> Http1Limits {
        self.settings.limits.http1
    }

    /// Takes the most recently used connection that is still open.
    pub(in crate::http) fn take(self: &Rc<Self>) -> Option<Rc<Connection>> {
        let now = Instant::now();
        let mut was_closed = false;
        let mut taken = None;
        while let Some(IdleConnection { connection, since }) = self.pop() {
            let is_idle = connection.is_idle();
            if is_idle && since + self.settings.idle_timeout > now {
                taken = Some(connection);
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
        } else if let Some(maintenance_waker) = &*self.maintenance_waker.borrow() {
            let mut cx = Context::from_waker(maintenance_waker);
            let has_ended = is_first && self.poll_oldest_end(&mut cx).is_ready();
            if has_ended || self.poll_newest_revoked(&cx).is_ready() {
                maintenance_waker.wake_by_ref();
            }
        }
    }

    fn poll_newest_revoked(&self, cx: &Context<'_>) -> Poll<()> {
        match self.idle.borrow().last() {
            Some(newest) => newest.connection.poll_revoked(cx),
            None => Poll::Pending,
        }
    }

    /// Ready when the trust in the server has ended.
    fn poll_revoked(&self, cx: &Context<'_>) -> Poll<()> {
        let idle = self.idle.borrow();
        let revoked = idle.iter().map(|idle| idle.connection.poll_revoked(cx));
        // All of them have to know the task.
        let revoked = revoked.filter(Poll::is_ready).count();
        if revoked == 0 {
            Poll::Pending
        } else {
            Poll::Ready(())
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
    pub(in crate::http) fn report_server_close(self: &Rc<Self>) {
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
    pub(crate) fn put(&self, io: Io) {
        if let Some(pool) = self.0.upgrade() {
            pool.put(Connection::new(io, pool.limits()));
        }
    }
}

impl PoolGuard {
    /// Without a `pool`, the connection is used for one request only. `rest` of the request is sent
    /// in a task of its own, because the client may not read the response before it has sent
    /// everything.
    pub(in crate::http) fn new(
        connection: Rc<Connection>,
        pool: Option<&Rc<Pool>>,
        keeps_alive: bool,
        rest: Option<OutgoingBody>,
    ) -> Self {
        let upload = rest.map(|body| {
            let connection = connection.clone();
            Upload::start(ConnectionUpload { connection, body })
        });
        Self {
            connection,
            pool: pool.map(Rc::downgrade).unwrap_or_default(),
            keeps_alive,
            upload,
        }
    }

    /// Returns the connection to the pool after the response has been read. A server that has
    /// responded completely before it has read the request does not want the rest of it.
    pub(in crate::http) fn release(self) {
        self.connection.end_exchange();
        if self.upload.as_ref().is_none_or(Upload::is_sent)
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

impl BodySender for ConnectionUpload {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let sent = ready!(self.body.poll(&self.connection, cx));
        if sent.as_ref().is_err_and(Error::is_close_of_sender) {
            self.connection.close_incomplete(cx);
        }
        Poll::Ready(sent.is_ok())
    }

    fn poll_superseded(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.body.poll_superseded(cx)
    }

    fn progress(&self) -> u64 {
        self.body.frames()
    }
}

/// Closes connections after they have been idle for between one and two times `timeout`, as soon as
/// the server has closed the oldest, and as soon as the trust in the server ends.
async fn maintain_idle(pool: Weak<Pool>, timeout: Duration) {
    let mut timer = pin!(tokio::time::sleep(timeout));
    loop {
        poll_fn(|cx| {
            let Some(pool) = pool.upgrade() else {
                return Poll::Ready(());
            };
            if pool.poll_oldest_end(cx).is_ready() || pool.poll_revoked(cx).is_ready() {
                return Poll::Ready(());
            }
            *pool.maintenance_waker.borrow_mut() = Some(cx.waker().clone());
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Counts the reports of closed connections.
    #[derive(Default)]
    struct Reports(Cell<usize>);

    impl ServerWatcher for Reports {
        fn connection_closed(self: Rc<Self>, _: Option<PoolHandle>) {
            self.0.set(self.0.get() + 1);
        }

        fn keeps_last_idle(&self) -> bool {
            false
        }
    }

    fn pool() -> (Rc<Pool>, Rc<Reports>) {
        let reports = Rc::new(Reports::default());
        let settings = Http1Pool {
            max_idle: 2,
            idle_timeout: TIMEOUT,
            limits: crate::config::HttpLimits::DEFAULT,
        };
        let pool = Pool::new(settings, Some(reports.clone()));
        pool.server_keeps_alive.set(true);
        (pool, reports)
    }

    /// Adds an idle connection, and returns the server's end of it.
    async fn add(pool: &Rc<Pool>) -> TcpStream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let dial = TcpStream::connect(listener.local_addr().unwrap());
        let (dialled, accepted) = tokio::join!(dial, listener.accept());
        PoolHandle(Rc::downgrade(pool)).put(Io::plain(dialled.unwrap()));
        accepted.unwrap().0
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_is_used_until_it_is_too_old() {
        let test = async {
            let (pool, reports) = pool();
            let _first = add(&pool).await;
            tokio::time::sleep(TIMEOUT * 6 / 10).await;
            let _second = add(&pool).await;
            assert_eq!(pool.idle.borrow().len(), 2);
            // The first is closed after the timeout, and the second is kept.
            tokio::time::sleep(TIMEOUT / 2).await;
            assert_eq!(pool.idle.borrow().len(), 1);
            let taken = pool.take().unwrap();
            assert!(pool.take().is_none());
            pool.put(taken);
            tokio::time::sleep(TIMEOUT / 2).await;
            assert!(pool.take().is_some(), "its time began again");
            // Too old, although it is closed later.
            let _third = add(&pool).await;
            pool.idle.borrow_mut()[0].since -= TIMEOUT;
            assert!(pool.take().is_none());
            assert_eq!(reports.0.get(), 0, "the server has closed none");
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_the_server_has_closed_is_not_used_and_reported() {
        let test = async {
            let (pool, reports) = pool();
            let open = add(&pool).await;
            drop(add(&pool).await);
            // The kernel passes the close on.
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(pool.take().is_some(), "the other one");
            assert_eq!(reports.0.get(), 1);
            assert!(pool.take().is_none());
            drop(open);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_unsolicited_bytes_is_not_used() {
        let test = async {
            let (pool, reports) = pool();
            let mut server = add(&pool).await;
            // The maintenance task waits for its end, and gets the bytes.
            tokio::time::sleep(TIMEOUT / 10).await;
            server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            tokio::time::sleep(TIMEOUT / 10).await;
            assert!(pool.take().is_none());
            assert_eq!(reports.0.get(), 1);
        };
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test(start_paused = true)]
    async fn surplus_connections_are_closed() {
        let test = async {
            let (pool, _) = pool();
            let _servers = [add(&pool).await, add(&pool).await, add(&pool).await];
            assert_eq!(pool.idle.borrow().len(), 2);
        };
        LocalSet::new().run_until(test).await;
    }
}
