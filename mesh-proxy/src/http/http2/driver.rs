//! Does the I/O of one connection, in the connection's task.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use mesh_http2::{AcceptedStream, Connection, Error, ErrorCode, PendingInput, WORK_PER_TURN};
use tokio::io::AsyncWrite as _;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::{PingEvent, Pinger, RoleConfig, SharedConnection};
use crate::http::linger::{Linger, LingerLimits};
use crate::http::{buffers, output};
use crate::time_slice;
use crate::transport::Io;

pub(in crate::http) struct Driver {
    io: Io,
    shared: SharedConnection,
    config: RoleConfig,
    pinger: Pinger,
    /// Bytes that were read and are processed by later polls.
    unprocessed: Option<Box<Bytes>>,
    /// The size of a read, adapted so that one poll can process nearly all of it.
    read_size: u32,
    /// Runs while the connection waits for input that must arrive in time.
    input_timer: Option<(PendingInput, Pin<Box<Sleep>>)>,
    /// A TLS session may still hold bytes that were passed to the stream.
    must_flush: bool,
    /// The error that ended writing. Bytes that the peer had sent before are still read.
    write_error: Option<io::Error>,
    /// A graceful shutdown has ended, and everything is written.
    linger: Option<Box<Linger>>,
}

const MIN_READ_SIZE: u32 = 16 * 1024;

const MAX_READ_SIZE: u32 = buffers::READ_BUFFER_SIZE as u32;

/// After this much work in one poll the runtime polls its sockets before the next one.
const LARGE_TURN: usize = WORK_PER_TURN / 4;

/// The time after the end of a connection for a peer whose kernel has acknowledged everything to
/// read it, while it sends WINDOW_UPDATE.
const LONGEST_READ: Duration = Duration::from_secs(30);

/// Maximum of slices in one vectored write.
const MAX_SLICES: usize = 64;

impl Driver {
    pub(in crate::http) fn new(io: Io, config: RoleConfig) -> Self {
        let shared = SharedConnection::new(Connection::new(&config.config()));
        let adapted = config
            .adaptive_window
            .then(|| config.initial_stream_window());
        Self {
            io,
            shared,
            pinger: Pinger::new(config.keep_alive, adapted),
            config,
            unprocessed: None,
            read_size: MAX_READ_SIZE,
            input_timer: None,
            must_flush: false,
            write_error: None,
            linger: None,
        }
    }

    pub(in crate::http) fn shared(&self) -> &SharedConnection {
        &self.shared
    }

    /// Writes all output, reads once, and passes the streams that the peer has opened to `accept`.
    /// Ready when the connection has ended.
    ///
    /// The bytes read wake the tasks of streams, which then have something to write. This task is
    /// woken as well and runs after them, so that it writes all of it together. After much work it
    /// runs after all other tasks, including those whose sockets have become ready, and after a
    /// whole turn also after other processes that share the CPU.
    pub(in crate::http) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        accept: &mut impl FnMut(&SharedConnection, AcceptedStream),
    ) -> Poll<Result<(), Error>> {
        let polled = self.poll_io(cx, accept);
        if polled.is_pending() {
            self.shared.connection().register_driver(cx.waker());
        } else {
            // The connection has no driver any more.
            self.shared.connection().handle_close(None);
        }
        polled
    }

    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        accept: &mut impl FnMut(&SharedConnection, AcceptedStream),
    ) -> Poll<Result<(), Error>> {
        if let Some(linger) = &mut self.linger {
            return linger.poll(cx, &mut self.io).map(Ok);
        }
        let written = match self.poll_write(cx) {
            // The end of the stream follows. A response that has begun, or is complete, may precede
            // it.
            Poll::Ready(Err(Some(error))) if is_connection_end(&error) => {
                self.write_error = Some(error);
                false
            }
            Poll::Ready(Err(error)) => return Poll::Ready(self.socket_closed(error)),
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
        };
        let is_broken = self.write_error.is_some();
        let (is_closed, failure, is_congested) = {
            let connection = self.shared.connection();
            let failure = connection.failure().cloned();
            (connection.is_closed(), failure, connection.is_congested())
        };
        if is_closed {
            // After a failure, unwritten output is dropped.
            if !written && !is_broken && failure.is_none() {
                return Poll::Pending;
            }
            let closed = Pin::new(&mut self.io).poll_shutdown(cx);
            return match failure {
                Some(Error::Closed) => Poll::Ready(Ok(())),
                Some(failure) => Poll::Ready(Err(failure)),
                None => {
                    // The connection is closed anyway.
                    let _best_effort = ready!(closed);
                    self.shared.connection().handle_close(None);
                    let linger = Box::new(Linger::new(LingerLimits {
                        sending: LONGEST_READ,
                        idle: self.config.limits.idle,
                    }));
                    let linger = self.linger.insert(linger);
                    linger.poll(cx, &mut self.io).map(Ok)
                }
            };
        }
        if !is_congested || is_broken {
            match self.poll_read(cx) {
                Poll::Ready(Ok(work)) => {
                    self.accept(accept);
                    self.shared.pass_closes_on();
                    if work < LARGE_TURN {
                        cx.waker().wake_by_ref();
                    } else {
                        if work >= WORK_PER_TURN {
                            time_slice::yield_cpu();
                        }
                        // Wakes this task after the runtime has polled its sockets.
                        let _later = pin!(yield_now()).poll(cx);
                    }
                }
                Poll::Ready(Err(error)) => {
                    let error = self.write_error.take().or(error);
                    return Poll::Ready(self.socket_closed(error));
                }
                Poll::Pending => {}
            }
        }
        self.poll_timers(cx);
        Poll::Pending
    }

    /// Records that the socket cannot be used any more.
    fn socket_closed(&self, error: Option<io::Error>) -> Result<(), Error> {
        let mut connection = self.shared.connection();
        connection.handle_close(error);
        match connection.failure() {
            None | Some(Error::Closed) => Ok(()),
            Some(failure) => Err(failure.clone()),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Option<io::Error>>> {
        if self.write_error.is_some() {
            return Poll::Pending;
        }
        let mut connection = self.shared.connection();
        while !connection.output().is_empty() {
            let written = output::poll_write::<MAX_SLICES>(connection.output(), &mut self.io, cx);
            connection.advance_output(ready!(written).map_err(Some)?);
            self.must_flush = true;
        }
        if self.must_flush {
            ready!(Pin::new(&mut self.io).poll_flush(cx)).map_err(Some)?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Processes the rest of an earlier read, or reads once. Returns the amount of work. An error
    /// without a cause is the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Option<io::Error>>> {
        if let Some(rest) = self.unprocessed.take() {
            return Poll::Ready(Ok(self.process_unprocessed(rest)));
        }
        let (shared, io) = (&self.shared, &mut self.io);
        let (mut work, mut rest) = (0, Vec::new());
        let read = buffers::with_read_buffer(|shared_buffer| {
            let size = shared_buffer.len().min(self.read_size as usize);
            io.poll_read_with(cx, &mut shared_buffer[..size], |bytes| {
                if !rest.is_empty() || work >= WORK_PER_TURN {
                    rest.extend_from_slice(bytes);
                    return;
                }
                let mut connection = shared.connection();
                // A failure is recorded in the connection, and returned by `failure`.
                let taken = connection.receive(bytes).unwrap_or(bytes.len());
                work += connection.work();
                rest.extend_from_slice(&bytes[taken..]);
            })
        });
        match ready!(read) {
            Ok(0) => Poll::Ready(Err(None)),
            Ok(length) => {
                self.pinger.record_read();
                self.adapt_read_size(length, rest.len());
                self.unprocessed = (!rest.is_empty()).then(|| Box::new(rest.into()));
                Poll::Ready(Ok(work))
            }
            Err(error) => Poll::Ready(Err(Some(error))),
        }
    }

    fn process_unprocessed(&mut self, mut rest: Box<Bytes>) -> usize {
        let mut connection = self.shared.connection();
        let taken = connection.receive(&rest).unwrap_or(rest.len());
        rest.advance(taken);
        self.unprocessed = (!rest.is_empty()).then_some(rest);
        connection.work()
    }

    /// Reduces the size of reads if some of the last read was `left`, and increases it if nothing
    /// was.
    fn adapt_read_size(&mut self, length: usize, left: usize) {
        let length = u32::try_from(length - left).unwrap_or(MAX_READ_SIZE);
        if left > 0 {
            self.read_size = length.clamp(MIN_READ_SIZE, MAX_READ_SIZE);
        } else if length >= self.read_size / 2 {
            self.read_size = (2 * self.read_size).min(MAX_READ_SIZE);
        }
    }

    fn accept(&self, accept: &mut impl FnMut(&SharedConnection, AcceptedStream)) {
        loop {
            // A statement of its own, because `accept` borrows the connection too.
            let next = self.shared.connection().next_request();
            match next {
                Some(accepted) => accept(&self.shared, accepted),
                None => return,
            }
        }
    }

    /// Polls the timers.
    fn poll_timers(&mut self, cx: &mut Context<'_>) {
        let awaited = self.shared.connection().pending_input();
        if self.input_timer.as_ref().map(|(pending, _)| *pending) != awaited {
            let head_time = self.config.limits.head_time;
            self.input_timer = awaited.map(|pending| (pending, Box::pin(sleep(head_time))));
        }
        if let Some((_, timer)) = &mut self.input_timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.shared.connection().handle_input_timeout();
            cx.waker().wake_by_ref();
        }
        let mut connection = self.shared.connection();
        let before = connection.output().len();
        while let Poll::Ready(event) = self.pinger.poll(cx, &mut connection) {
            match event {
                PingEvent::Window(size) => {
                    connection.set_windows(size, self.config.connection_window_for(size));
                }
                PingEvent::TimedOut => {
                    tracing::info!("Closing HTTP/2 connection after keep-alive timeout");
                    connection.abort(ErrorCode::NO_ERROR);
                }
            }
        }
        // Earlier output waits for the socket.
        if connection.output().len() > before {
            cx.waker().wake_by_ref();
        }
    }
}

/// Whether a write failed because the connection has ended in both directions.
fn is_connection_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use mesh_http2::Role;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::config::HttpLimits;

    const CONFIG: RoleConfig = RoleConfig {
        role: Role::Server,
        limits: HttpLimits::DEFAULT,
        max_header_list_size: 1 << 18,
        max_streams: 200,
        max_pending_accept_resets: 200,
        field_lines: 8192,
        stream_window: 65_535,
        connection_window: 1 << 20,
        adaptive_window: false,
        max_frame_size: None,
        send_buffer: None,
        keep_alive: None,
    };

    #[test]
    fn settings_are_adjusted_to_the_ranges_of_the_protocol() {
        const LARGEST_WINDOW: u32 = (1 << 31) - 1;
        for (given, sent) in [(1, 16_384), (20_000, 20_000), (u32::MAX, 16_777_215)] {
            let client = RoleConfig {
                role: Role::Client,
                stream_window: u32::MAX,
                connection_window: u32::MAX,
                max_frame_size: Some(given),
                ..CONFIG
            };
            let config = client.config();
            assert_eq!(config.max_frame_size, Some(sent));
            assert_eq!(config.widened_stream_window, LARGEST_WINDOW);
            assert_eq!(config.connection_window, LARGEST_WINDOW);
        }
    }

    const FRAMES: u32 = 5_000;

    /// Later polls process the rest.
    #[tokio::test]
    async fn one_poll_processes_a_limited_number_of_frames() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(addr).await.unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        // `POST http://web/`, and its body in frames of one byte.
        bytes.extend([0, 0, 8, 1, 4, 0, 0, 0, 1]);
        bytes.extend([0x83, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b']);
        for _ in 0..FRAMES {
            bytes.extend([0, 0, 1, 0, 0, 0, 0, 0, 1, b'x']);
        }
        client.write_all(&bytes).await.unwrap();

        let mut driver = Driver::new(Io::plain(tcp), CONFIG);
        let shared = driver.shared().clone();
        let (mut before, mut most, mut accepted) = (0, 0, 0);
        poll_fn(|cx| {
            assert!(driver.poll(cx, &mut |_, _| accepted += 1).is_pending());
            let frames = shared.message_frames();
            most = most.max(frames - before);
            before = frames;
            if frames == FRAMES + 1 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert!(most as usize <= WORK_PER_TURN / 2 + 1, "{most}");
        assert_eq!(accepted, 1);
        assert_eq!(shared.connection().data_received(), u64::from(FRAMES));
        assert!(driver.unprocessed.is_none());
        assert!(driver.read_size < MAX_READ_SIZE);
    }

    #[tokio::test]
    async fn output_that_the_socket_does_not_take_causes_no_polls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(client, listener.accept());
        let config = RoleConfig {
            role: Role::Client,
            ..CONFIG
        };
        let mut driver = Driver::new(Io::plain(client.unwrap()), config);
        let shared = driver.shared().clone();
        // More than the socket takes, because the server reads nothing.
        let value = "v".repeat(1 << 20);
        let request = http::Request::get("http://web/").header("x-large", &value);
        let request = request.body(()).unwrap();
        let woken = Arc::new(CountWakes::default());
        let waker = Waker::from(woken.clone());
        for _ in 0..32 {
            shared.connection().open(&request, None, true);
        }
        let mut cx = Context::from_waker(&waker);
        assert!(driver.poll(&mut cx, &mut |_, _| ()).is_pending());
        assert!(!shared.connection().output().is_empty());
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        drop(server);
    }

    /// The beginning of a response shows that the server has processed the request.
    #[tokio::test]
    async fn what_arrived_before_a_write_failed_is_received() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(client, listener.accept());
        let mut server = server.unwrap().0;
        let config = RoleConfig {
            role: Role::Client,
            ..CONFIG
        };
        let mut driver = Driver::new(Io::plain(client.unwrap()), config);
        let shared = driver.shared().clone();
        let request = http::Request::get("http://web/").body(()).unwrap();
        let id = shared.connection().open(&request, None, true);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(driver.poll(&mut cx, &mut |_, _| ()).is_pending());
        server
            .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        server
            .write_all(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88])
            .await
            .unwrap();
        let linger = Some(Duration::ZERO);
        socket2::SockRef::from(&server).set_linger(linger).unwrap();
        drop(server);
        // The first poll writes, because the runtime has not reported yet what has arrived.
        shared.connection().open(&request, None, true);
        let ended = poll_fn(|cx| driver.poll(cx, &mut |_, _| ())).await;
        assert!(matches!(ended, Err(Error::Io(_))), "{ended:?}");
        assert!(shared.connection().has_response_begun(id));
    }

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
