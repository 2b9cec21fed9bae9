//! The end of a connection whose peer has not read everything yet, for both protocols.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::buffers;
use crate::transport::Io;

/// After how much time without a byte a peer that has acknowledged everything is not waited for any
/// more. Two seconds cover several retransmissions within a cluster.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// How many bytes are discarded. Covers the bytes in flight when the peer learns of the end.
const MAX_LINGER_BYTES: usize = 1024 * 1024;

/// A connection whose writing half is closed.
pub(super) trait Closing {
    /// Reads and discards bytes. Returns their number, 0 at the end.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize>;

    /// Whether the peer has acknowledged all bytes and the FIN, or never will.
    fn is_acknowledged(&self) -> bool;
}

/// Limits on the time that [`Linger`] takes.
#[derive(Clone, Copy)]
pub(super) struct LingerLimits {
    /// For a peer that has acknowledged everything and still sends.
    pub(super) sending: Duration,
    /// For any other; `None` without a limit.
    pub(super) idle: Option<Duration>,
}

/// Discards what the peer still sends until it closes the connection. The kernel resets a
/// connection that is closed with unread bytes or receives bytes afterwards, and then discards what
/// the peer has not acknowledged (RFC 9112, section 9.6).
///
/// Ends earlier after a megabyte, and when the peer has acknowledged everything and sends nothing
/// for [`LINGER_TIME`], or more for longer than the limits.
pub(super) struct Linger {
    began: Instant,
    limits: LingerLimits,
    left: usize,
    silence: Pin<Box<Sleep>>,
}

impl Linger {
    pub(super) fn new(limits: LingerLimits) -> Self {
        Self {
            began: Instant::now(),
            limits,
            left: MAX_LINGER_BYTES,
            silence: Box::pin(sleep(LINGER_TIME)),
        }
    }

    /// Ready when the connection is to be closed.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &mut impl Closing) -> Poll<()> {
        loop {
            let is_silent = match connection.poll_discard(cx) {
                Poll::Ready(n) => match self.left.checked_sub(n).filter(|_| n > 0) {
                    Some(rest) => {
                        self.left = rest;
                        false
                    }
                    None => return Poll::Ready(()),
                },
                Poll::Pending => {
                    ready!(self.silence.as_mut().poll(cx));
                    true
                }
            };
            let now = Instant::now();
            self.silence.as_mut().reset(now + LINGER_TIME);
            let time = now - self.began;
            if self.limits.idle.is_some_and(|idle| time >= idle)
                || (is_silent || time >= self.limits.sending) && connection.is_acknowledged()
            {
                return Poll::Ready(());
            }
        }
    }
}

impl Closing for Io {
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        let read = buffers::with_read_buffer(|buffer| self.poll_read_with(cx, buffer, |_bytes| {}));
        Poll::Ready(ready!(read).unwrap_or_default())
    }

    fn is_acknowledged(&self) -> bool {
        self.tcp().is_acknowledged()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const LIMITS: LingerLimits = LingerLimits {
        sending: Duration::from_secs(30),
        idle: Some(Duration::from_secs(600)),
    };

    /// Sends `size` bytes after each pause, and acknowledges everything at a time.
    struct Peer {
        pause: Duration,
        size: usize,
        acknowledges: Instant,
        next: Option<Pin<Box<Sleep>>>,
    }

    impl Closing for Peer {
        fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
            let pause = self.pause;
            let next = self.next.get_or_insert_with(|| Box::pin(sleep(pause)));
            ready!(next.as_mut().poll(cx));
            self.next = None;
            Poll::Ready(self.size)
        }

        fn is_acknowledged(&self) -> bool {
            Instant::now() >= self.acknowledges
        }
    }

    /// Returns how many seconds the end of a connection takes.
    async fn seconds(pause: Duration, size: usize, acknowledges: u64) -> u64 {
        let start = Instant::now();
        let mut peer = Peer {
            pause,
            size,
            acknowledges: start + Duration::from_secs(acknowledges),
            next: None,
        };
        let mut linger = Linger::new(LIMITS);
        poll_fn(|cx| linger.poll(cx, &mut peer)).await;
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn peer_that_closes_is_not_waited_for() {
        assert_eq!(seconds(SECOND, 0, 100).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_peer_is_waited_for_until_it_has_acknowledged() {
        assert_eq!(seconds(1000 * SECOND, 1, 0).await, 2);
        assert_eq!(seconds(1000 * SECOND, 1, 100).await, 100);
        assert_eq!(
            seconds(1000 * SECOND, 1, 1000).await,
            600,
            "the idle timeout"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn sending_peer_is_waited_for_longer() {
        assert_eq!(seconds(SECOND, 1, 0).await, 30);
        assert_eq!(seconds(SECOND, 1, 100).await, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn limited_number_of_bytes_is_discarded() {
        assert_eq!(seconds(SECOND, MAX_LINGER_BYTES / 4, 1000).await, 5);
    }
}
