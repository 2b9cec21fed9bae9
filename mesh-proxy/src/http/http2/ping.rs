//! HTTP/2 PING: keep-alive and estimation of the bandwidth-delay product. Polled by the
//! connection's driver.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mesh_core::endpoint::KeepAlive;
use mesh_http2::Connection;
use tokio::time::{Instant, Sleep, sleep};

/// Sends pings; empty for connections that need none.
pub(super) struct Pinger(Option<Box<Pings>>);

/// The result of a ping, or of its missing acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingEvent {
    /// Stream windows are to be set to this size.
    Window(u32),
    /// The peer did not acknowledge a ping in time. Reported once.
    TimedOut,
}

struct Pings {
    /// When the outstanding ping was sent. There is at most one, for either purpose.
    sent: Option<Instant>,
    keep_alive: Option<KeepAliveTimer>,
    estimator: Option<BdpEstimator>,
    /// When the connection last received data; updated only if keep-alive is configured.
    last_read: Instant,
}

/// Expires when nothing has been read for an interval, and when a ping is not acknowledged.
struct KeepAliveTimer {
    params: KeepAlive,
    timer: Pin<Box<Sleep>>,
    state: KeepAliveState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeepAliveState {
    Idle,
    AwaitingAck,
    TimedOut,
}

/// What the keep-alive timer requests.
enum KeepAliveAction {
    SendPing,
    TimedOut,
}

/// Estimates the bandwidth-delay product as gRPC does: the bytes received between a ping and its
/// acknowledgement. A window of twice that does not limit the sender.
#[derive(Debug)]
struct BdpEstimator {
    size: u32,
    /// Moving average with weight 1/8, in seconds.
    round_trip_time: f64,
    /// The maximum so far, in bytes per second.
    bandwidth: f64,
    /// Bytes received when the last ping was sent and when it was acknowledged.
    bytes_at_ping: u64,
    bytes_at_ack: u64,
    next_sample: Instant,
    sample_interval: Duration,
}

/// gRPC's limit: with larger windows one stream would hold too much memory.
const MAX_WINDOW: u32 = 16 * 1024 * 1024;
/// Interval between samples; it becomes longer while the window does not grow.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// As in gRPC: the bytes between a ping and its acknowledgement take up to 1.5 round trips.
const ROUND_TRIP_SLACK: f64 = 1.5;

impl Pinger {
    /// `window` is the initial stream window, if windows are adaptive.
    pub(super) fn new(keep_alive: Option<KeepAlive>, window: Option<u32>) -> Self {
        if keep_alive.is_none() && window.is_none() {
            return Self(None);
        }
        let now = Instant::now();
        Self(Some(Box::new(Pings {
            sent: None,
            keep_alive: keep_alive.map(KeepAliveTimer::new),
            estimator: window.map(|size| BdpEstimator::new(size, now)),
            last_read: now,
        })))
    }

    /// Records that the connection has received data.
    pub(super) fn record_read(&mut self) {
        if let Some(pings) = &mut self.0
            && pings.keep_alive.is_some()
        {
            pings.last_read = Instant::now();
        }
    }

    /// To be polled after the connection has read.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
    ) -> Poll<PingEvent> {
        match &mut self.0 {
            Some(pings) => pings.poll(cx, connection),
            None => Poll::Pending,
        }
    }
}

impl Pings {
    fn poll(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<PingEvent> {
        if let Some(size) = self.take_ack(connection) {
            return Poll::Ready(PingEvent::Window(size));
        }
        if let Some(estimator) = &mut self.estimator
            && self.sent.is_none()
            && estimator.wants_sample(connection.data_received(), Instant::now)
        {
            self.send_ping(connection);
        }
        loop {
            let Some(timer) = &mut self.keep_alive else {
                return Poll::Pending;
            };
            match ready!(timer.poll(cx, self.last_read, connection.stream_count() > 0)) {
                KeepAliveAction::SendPing => self.send_ping(connection),
                KeepAliveAction::TimedOut => return Poll::Ready(PingEvent::TimedOut),
            }
        }
    }

    /// Handles an acknowledgement. Returns the new window size if it changes.
    fn take_ack(&mut self, connection: &mut Connection) -> Option<u32> {
        if !connection.take_pong() {
            return None;
        }
        let sent = self.sent.take()?;
        if let Some(timer) = &mut self.keep_alive {
            timer.record_ack();
        }
        let now = Instant::now();
        let estimator = self.estimator.as_mut()?;
        estimator.record_sample(now - sent, connection.data_received(), now)
    }

    fn send_ping(&mut self, connection: &mut Connection) {
        if self.sent.is_none() {
            connection.ping();
            self.sent = Some(Instant::now());
        }
    }
}

impl KeepAliveTimer {
    fn new(params: KeepAlive) -> Self {
        Self {
            params,
            timer: Box::pin(sleep(params.interval)),
            state: KeepAliveState::Idle,
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        last_read: Instant,
        has_streams: bool,
    ) -> Poll<KeepAliveAction> {
        loop {
            if self.state == KeepAliveState::TimedOut {
                return Poll::Pending;
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.state == KeepAliveState::AwaitingAck {
                self.state = KeepAliveState::TimedOut;
                return Poll::Ready(KeepAliveAction::TimedOut);
            }
            let now = Instant::now();
            let due = last_read + self.params.interval;
            if due > now {
                self.timer.as_mut().reset(due);
            } else if self.params.while_idle || has_streams {
                self.state = KeepAliveState::AwaitingAck;
                self.timer.as_mut().reset(now + self.params.timeout);
                return Poll::Ready(KeepAliveAction::SendPing);
            } else {
                self.timer.as_mut().reset(now + self.params.interval);
            }
        }
    }

    fn record_ack(&mut self) {
        if self.state == KeepAliveState::AwaitingAck {
            self.state = KeepAliveState::Idle;
            let next = Instant::now() + self.params.interval;
            self.timer.as_mut().reset(next);
        }
    }
}

impl BdpEstimator {
    fn new(size: u32, now: Instant) -> Self {
        Self {
            size,
            round_trip_time: 0.0,
            bandwidth: 0.0,
            bytes_at_ping: 0,
            bytes_at_ack: 0,
            next_sample: now,
            sample_interval: MIN_SAMPLE_INTERVAL,
        }
    }

    /// Whether data has arrived since the last sample and the interval has passed. Reads the clock
    /// only if needed.
    fn wants_sample(&mut self, data: u64, now: impl FnOnce() -> Instant) -> bool {
        if data == self.bytes_at_ack || self.size >= MAX_WINDOW || now() < self.next_sample {
            return false;
        }
        self.bytes_at_ping = data;
        true
    }

    /// Returns the new window size if it changes.
    fn record_sample(&mut self, round_trip_time: Duration, data: u64, now: Instant) -> Option<u32> {
        let sample = round_trip_time.as_secs_f64();
        self.round_trip_time = match self.round_trip_time {
            0.0 => sample,
            before => before + (sample - before) / 8.0,
        };
        let bytes = data - self.bytes_at_ping;
        self.bytes_at_ack = data;
        let bandwidth = bytes as f64 / (self.round_trip_time * ROUND_TRIP_SLACK);
        let is_faster = bandwidth > self.bandwidth;
        if is_faster {
            self.bandwidth = bandwidth;
        }
        let has_filled = bytes >= u64::from(self.size) * 2 / 3;
        if is_faster && has_filled {
            self.sample_interval = MIN_SAMPLE_INTERVAL;
            self.size = u32::try_from(bytes * 2).map_or(MAX_WINDOW, |size| size.min(MAX_WINDOW));
        } else {
            self.sample_interval = (self.sample_interval * 4).min(MAX_SAMPLE_INTERVAL);
        }
        self.next_sample = now + self.sample_interval;
        (is_faster && has_filled).then_some(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn now() -> Instant {
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn estimated_window_grows_while_bandwidth_grows() {
        let mut estimator = BdpEstimator::new(65_535, now());
        assert!(!estimator.wants_sample(0, now), "no data received");
        assert!(estimator.wants_sample(1_000, now));
        // 60,000 bytes in a millisecond fill more than two thirds of the window.
        assert_eq!(estimator.record_sample(MS, 61_000, now()), Some(120_000));
        assert!(!estimator.wants_sample(62_000, now), "too soon");
        tokio::time::advance(MIN_SAMPLE_INTERVAL).await;
        assert!(estimator.wants_sample(62_000, now));
        // The same amount again is not faster, and does not fill the larger window.
        assert_eq!(estimator.record_sample(MS, 122_000, now()), None);
        tokio::time::advance(MIN_SAMPLE_INTERVAL).await;
        assert!(!estimator.wants_sample(130_000, now), "the interval grows");
        tokio::time::advance(MIN_SAMPLE_INTERVAL * 3).await;
        assert!(estimator.wants_sample(130_000, now));
        assert_eq!(
            estimator.record_sample(MS, 1 << 30, now()),
            Some(MAX_WINDOW)
        );
        tokio::time::advance(MAX_SAMPLE_INTERVAL).await;
        assert!(
            !estimator.wants_sample(1 << 31, now),
            "the maximum is reached"
        );
    }
}
