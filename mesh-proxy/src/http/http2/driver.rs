//! Moves the bytes of a connection. Polled by the connection's task.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use mesh_http2::{AcceptedStream, Connection, Error, ErrorCode, PendingInput, WORK_PER_TURN};
use tokio::io::AsyncWrite as _;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::{Beat, Link, Pulse, Terms};
use crate::http::buffers;
use crate::transport::Io;

pub(in crate::http) struct Driver {
    io: Io,
    link: Link,
    terms: Terms,
    pulse: Pulse,
    /// Bytes that were read and are processed in later turns.
    rest: Option<Box<Bytes>>,
    /// How much is read at a time: so much that little is left for another turn.
    read_size: u32,
    /// Runs while something is awaited that must not take for ever.
    head_timer: Option<(PendingInput, Pin<Box<Sleep>>)>,
    /// Bytes have been given to the stream that a TLS session may still hold.
    must_flush: bool,
}

/// The least that is read at a time.
const MIN_READ: u32 = 16 * 1024;

/// The most that is read at a time.
const MAX_READ: u32 = buffers::ROOM_SIZE as u32;

/// After so much work the runtime polls its sockets before the connection's next turn.
const BUSY: usize = WORK_PER_TURN / 4;

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
            rest: None,
            read_size: MAX_READ,
            head_timer: None,
            must_flush: false,
        }
    }

    pub(in crate::http) fn link(&self) -> &Link {
        &self.link
    }

    /// Writes what there is, and reads once; hands on the streams that the other side has opened.
    /// Ready when the connection is over.
    ///
    /// What was read wakes the tasks of streams, and they will have something to write. So this
    /// task runs once more behind them, rather than to write by itself the little that it has by
    /// now. After much work it runs behind all other tasks, including those whose sockets have
    /// become ready meanwhile.
    pub(in crate::http) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        accept: &mut impl FnMut(&Link, AcceptedStream),
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
        accept: &mut impl FnMut(&Link, AcceptedStream),
    ) -> Poll<Result<(), Error>> {
        let written = match self.poll_write(cx) {
            Poll::Ready(Err(error)) => return Poll::Ready(self.broken(error)),
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
        };
        let (is_over, failure, is_congested) = {
            let connection = self.link.connection();
            let failure = connection.failure().cloned();
            (connection.is_closed(), failure, connection.is_congested())
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
                Poll::Ready(Ok(work)) => {
                    self.accept(accept);
                    if work < BUSY {
                        cx.waker().wake_by_ref();
                    } else {
                        // Wakes this task after the runtime has polled its sockets.
                        let _later = pin!(yield_now()).poll(cx);
                    }
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
                Ok(n) => connection.advance_output(n),
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

    /// Processes what an earlier turn has left, or reads once; returns how much work that was. An
    /// error without a cause is the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Option<io::Error>>> {
        if let Some(rest) = self.rest.take() {
            return Poll::Ready(Ok(self.process_rest(rest)));
        }
        let (link, io) = (&self.link, &mut self.io);
        let (mut work, mut rest) = (0, Vec::new());
        let read = buffers::with_room(|room| {
            let size = room.len().min(self.read_size as usize);
            io.poll_read_with(cx, &mut room[..size], |bytes| {
                if !rest.is_empty() || work >= WORK_PER_TURN {
                    rest.extend_from_slice(bytes);
                    return;
                }
                let mut connection = link.connection();
                // The connection tells its failure itself, when it is asked whether it is over.
                let taken = connection.receive(bytes).unwrap_or(bytes.len());
                work += connection.work();
                rest.extend_from_slice(&bytes[taken..]);
            })
        });
        match ready!(read) {
            Ok(0) => Poll::Ready(Err(None)),
            Ok(length) => {
                self.pulse.was_read();
                self.judge_read(length, rest.len());
                self.rest = (!rest.is_empty()).then(|| Box::new(rest.into()));
                Poll::Ready(Ok(work))
            }
            Err(error) => Poll::Ready(Err(Some(error))),
        }
    }

    fn process_rest(&mut self, mut rest: Box<Bytes>) -> usize {
        let mut connection = self.link.connection();
        let taken = connection.receive(&rest).unwrap_or(rest.len());
        rest.advance(taken);
        self.rest = (!rest.is_empty()).then_some(rest);
        connection.work()
    }

    /// Reads less at a time when some of the last read was `left`, and more when nothing was.
    fn judge_read(&mut self, length: usize, left: usize) {
        let length = u32::try_from(length - left).unwrap_or(MAX_READ);
        if left > 0 {
            self.read_size = length.clamp(MIN_READ, MAX_READ);
        } else if length >= self.read_size / 2 {
            self.read_size = (2 * self.read_size).min(MAX_READ);
        }
    }

    fn accept(&self, accept: &mut impl FnMut(&Link, AcceptedStream)) {
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
        let awaited = self.link.connection().pending_input();
        if self.head_timer.as_ref().map(|(of, _)| *of) != awaited {
            let head_time = self.terms.limits.head_time;
            self.head_timer = awaited.map(|of| (of, Box::pin(sleep(head_time))));
        }
        if let Some((_, timer)) = &mut self.head_timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.link.connection().input_timed_out();
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
                    connection.abort(ErrorCode::NO_ERROR);
                }
            }
        }
        if !connection.output().is_empty() {
            cx.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use mesh_http2::Role;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::HttpLimits;

    const TERMS: Terms = Terms {
        role: Role::Server,
        limits: HttpLimits::DEFAULT,
        header_list: 1 << 18,
        streams: 200,
        unseen_resets: 200,
        stream_window: 65_535,
        connection_window: 1 << 20,
        adapts_windows: false,
        max_frame: None,
        collected: None,
        keep_alive: None,
    };

    const FRAMES: u32 = 5_000;

    /// And the next polls process the rest.
    #[tokio::test]
    async fn one_poll_processes_no_more_than_one_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(addr).await.unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // `POST http://web/`, and its body byte by byte.
        bytes.extend([0, 0, 8, 1, 4, 0, 0, 0, 1]);
        bytes.extend([0x83, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b']);
        for _ in 0..FRAMES {
            bytes.extend([0, 0, 1, 0, 0, 0, 0, 0, 1, b'x']);
        }
        client.write_all(&bytes).await.unwrap();

        let mut driver = Driver::new(Io::plain(tcp), TERMS);
        let link = driver.link().clone();
        let (mut before, mut most, mut accepted) = (0, 0, 0);
        poll_fn(|cx| {
            assert!(driver.poll(cx, &mut |_, _| accepted += 1).is_pending());
            let messages = link.messages();
            most = most.max(messages - before);
            before = messages;
            match messages == FRAMES + 1 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        assert!(most as usize <= WORK_PER_TURN / 2 + 1, "{most}");
        assert_eq!(accepted, 1);
        assert_eq!(link.connection().data_received(), u64::from(FRAMES));
        assert!(driver.rest.is_none());
        assert!(driver.read_size < MAX_READ);
    }
}
