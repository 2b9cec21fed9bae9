//! Moves the bytes of a connection. Polled by the connection's task.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mesh_http2::{Accepted, Awaited, Connection, Error, Reason};
use tokio::io::AsyncWrite as _;
use tokio::time::{Sleep, sleep};

use super::{Beat, Link, Pulse, Terms};
use crate::http::buffers;
use crate::transport::Io;

pub(in crate::http) struct Driver {
    io: Io,
    link: Link,
    terms: Terms,
    pulse: Pulse,
    /// Runs while something is awaited that must not take for ever.
    head_timer: Option<(Awaited, Pin<Box<Sleep>>)>,
    /// Bytes have been given to the stream that a TLS session may still hold.
    must_flush: bool,
}

/// One system call writes as many pieces.
const SLICES: usize = 64;

impl Driver {
    pub(in crate::http) fn new(io: Io, terms: Terms) -> Self {
        let link = Link::new(Connection::new(&terms.config()));
        let adapted = terms.adapts_windows.then(|| terms.first_stream_window());
        Self {
            io,
            link,
            pulse: Pulse::new(terms.keep_alive, adapted),
            terms,
            head_timer: None,
            must_flush: false,
        }
    }

    pub(in crate::http) fn link(&self) -> &Link {
        &self.link
    }

    /// Writes what there is, and reads once; hands on the streams that the other side has opened. Ready when the connection is over.
    ///
    /// What was read wakes the tasks of streams, and they will have something to write. So this task runs once more behind them, rather than to write by itself the little that it has by now.
    pub(in crate::http) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        accept: &mut impl FnMut(&Link, Accepted),
    ) -> Poll<Result<(), Error>> {
        let polled = self.poll_bytes(cx, accept);
        if polled.is_pending() {
            self.link.connection().register_driver(cx.waker());
        } else {
            // Nobody moves its bytes any more.
            self.link.connection().closed(None);
        }
        polled
    }

    fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
        accept: &mut impl FnMut(&Link, Accepted),
    ) -> Poll<Result<(), Error>> {
        let written = match self.poll_write(cx) {
            Poll::Ready(Err(error)) => return Poll::Ready(self.broken(error)),
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
        };
        let (is_over, failure, is_congested) = {
            let connection = self.link.connection();
            let failure = connection.failure().cloned();
            (connection.is_over(), failure, connection.is_congested())
        };
        if is_over {
            // Who has failed is not waited for.
            if !written && failure.is_none() {
                return Poll::Pending;
            }
            let closed = Pin::new(&mut self.io).poll_shutdown(cx);
            return match failure {
                Some(Error::Closed) => Poll::Ready(Ok(())),
                Some(failure) => Poll::Ready(Err(failure)),
                None => {
                    // It is closed all the same.
                    let _best_effort = ready!(closed);
                    Poll::Ready(Ok(()))
                }
            };
        }
        if !is_congested {
            match self.poll_read(cx) {
                Poll::Ready(Ok(())) => {
                    self.accept(accept);
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(self.broken(error)),
                Poll::Pending => {}
            }
        }
        self.poll_time(cx);
        Poll::Pending
    }

    /// The socket is of no more use.
    fn broken(&self, error: Option<io::Error>) -> Result<(), Error> {
        let mut connection = self.link.connection();
        connection.closed(error);
        match connection.failure() {
            None | Some(Error::Closed) => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<io::Error>>> {
        let mut connection = self.link.connection();
        while !connection.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = connection.output().slices(&mut slices);
            let io = Pin::new(&mut self.io);
            let written = match &slices[..count] {
                [one] => io.poll_write(cx, one),
                several => io.poll_write_vectored(cx, several),
            };
            match ready!(written) {
                Ok(0) => return Poll::Ready(Err(Some(io::ErrorKind::WriteZero.into()))),
                Ok(n) => connection.written(n),
                Err(error) => return Poll::Ready(Err(Some(error))),
            }
            self.must_flush = true;
        }
        if self.must_flush {
            ready!(Pin::new(&mut self.io).poll_flush(cx)).map_err(Some)?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once. An error without a cause is the end of what there is to read.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<io::Error>>> {
        let link = &self.link;
        let io = &mut self.io;
        let read = buffers::with_room(|room| {
            io.poll_lend(cx, room, |bytes| {
                // The connection tells its failure itself, when it is asked whether it is over.
                let _told_later = link.connection().receive(bytes);
            })
        });
        match ready!(read) {
            Ok(0) => Poll::Ready(Err(None)),
            Ok(_) => {
                self.pulse.was_read();
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(Some(error))),
        }
    }

    fn accept(&self, accept: &mut impl FnMut(&Link, Accepted)) {
        loop {
            // In a statement of its own, because the other side of it borrows the connection, too.
            let next = self.link.connection().next_request();
            match next {
                Some(accepted) => accept(&self.link, accepted),
                None => return,
            }
        }
    }

    /// What happens when nothing happens.
    fn poll_time(&mut self, cx: &mut Context<'_>) {
        let awaited = self.link.connection().awaited();
        if self.head_timer.as_ref().map(|(of, _)| *of) != awaited {
            let head_time = self.terms.limits.head_time;
            self.head_timer = awaited.map(|of| (of, Box::pin(sleep(head_time))));
        }
        if let Some((_, timer)) = &mut self.head_timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.link.connection().too_late();
            cx.waker().wake_by_ref();
        }
        let mut connection = self.link.connection();
        while let Poll::Ready(beat) = self.pulse.poll(cx, &mut connection) {
            match beat {
                Beat::Window(size) => {
                    connection.set_windows(size, self.terms.window_for(size));
                }
                Beat::Dead => {
                    tracing::info!(
                        "The other side of an HTTP/2 connection answers no pings; the connection is closed"
                    );
                    connection.abort(Reason::NO_ERROR);
                }
            }
        }
        if !connection.output().is_empty() {
            cx.waker().wake_by_ref();
        }
    }
}
