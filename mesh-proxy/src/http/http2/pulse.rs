//! Pings on an HTTP/2 connection: they find out that the other side is gone, and how much data fits
//! on the way to it. Polled by whoever moves the connection's bytes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mesh_core::endpoint::KeepAlive;
use mesh_http2::Connection;
use tokio::time::{Instant, Sleep, sleep};

/// Nothing, for connections that want neither.
pub(super) struct Pulse(Option<Box<Pings>>);

/// What follows from a ping, or from its answer's absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beat {
    /// Streams are to have windows of this size.
    Window(u32),
    /// The other side has not answered in time. Said once.
    Dead,
}

struct Pings {
    /// Since when an answer is awaited. There is at most one ping on the way, whoever wanted it.
    sent: Option<Instant>,
    keep_alive: Option<Alarm>,
    windows: Option<Windows>,
    /// When something was read last; kept only for the alarm.
    last_read: Instant,
}

/// Rings when nothing has been read for an interval, and again when a ping has not been answered.
struct Alarm {
    params: KeepAlive,
    timer: Pin<Box<Sleep>>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listening,
    Asked,
    Dead,
}

/// What an alarm says.
enum Ring {
    Ask,
    Dead,
}

/// Estimates how much data is on the way at a time, as gRPC does: what arrives between a ping and
/// its answer. A window of twice that never makes the sender wait.
#[derive(Debug)]
struct Windows {
    size: u32,
    /// Of all samples, each weighing an eighth; in seconds.
    round_trip: f64,
    /// The best so far, in bytes per second.
    bandwidth: f64,
    /// Bytes that had arrived when the last ping was sent, and when it was answered.
    at_ping: u64,
    at_pong: u64,
    next: Instant,
    pause: Duration,
}

/// gRPC's limit: beyond it one stream holds too much memory.
const MAX_WINDOW: u32 = 16 * 1024 * 1024;
/// Between two samples while the window grows; longer and longer when it does not.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Half a round trip more than measured: the ping waited behind data.
const SLACK: f64 = 1.5;

impl Pulse {
    /// `window` is what streams have to begin with, if it is to be adapted.
    pub(super) fn new(keep_alive: Option<KeepAlive>, window: Option<u32>) -> Self {
        if keep_alive.is_none() && window.is_none() {
            return Self(None);
        }
        let now = Instant::now();
        Self(Some(Box::new(Pings {
            sent: None,
            keep_alive: keep_alive.map(Alarm::new),
            windows: window.map(|size| Windows::new(size, now)),
            last_read: now,
        })))
    }

    /// Something has come from the other side.
    pub(super) fn was_read(&mut self) {
        if let Some(pings) = &mut self.0
            && pings.keep_alive.is_some()
        {
            pings.last_read = Instant::now();
        }
    }

    /// To be polled after the connection has read.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<Beat> {
        match &mut self.0 {
            Some(pings) => pings.poll(cx, connection),
            None => Poll::Pending,
        }
    }
}

impl Pings {
    fn poll(&mut self, cx: &mut Context<'_>, connection: &mut Connection) -> Poll<Beat> {
        if let Some(size) = self.answered(connection) {
            return Poll::Ready(Beat::Window(size));
        }
        if let Some(windows) = &mut self.windows
            && self.sent.is_none()
            && windows.wants_sample(connection.data_received(), Instant::now)
        {
            self.ask(connection);
        }
        loop {
            let Some(alarm) = &mut self.keep_alive else {
                return Poll::Pending;
            };
            match ready!(alarm.poll(cx, self.last_read, connection.streams() > 0)) {
                Ring::Ask => self.ask(connection),
                Ring::Dead => return Poll::Ready(Beat::Dead),
            }
        }
    }

    /// The new size of the windows when an answer has come that says so.
    fn answered(&mut self, connection: &mut Connection) -> Option<u32> {
        if !connection.take_pong() {
            return None;
        }
        let sent = self.sent.take()?;
        if let Some(alarm) = &mut self.keep_alive {
            alarm.is_answered();
        }
        let now = Instant::now();
        let windows = self.windows.as_mut()?;
        windows.sampled(now - sent, connection.data_received(), now)
    }

    fn ask(&mut self, connection: &mut Connection) {
        if self.sent.is_none() {
            connection.ping();
            self.sent = Some(Instant::now());
        }
    }
}

impl Alarm {
    fn new(params: KeepAlive) -> Self {
        Self {
            params,
            timer: Box::pin(sleep(params.interval)),
            state: State::Listening,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, last_read: Instant, is_used: bool) -> Poll<Ring> {
        loop {
            if self.state == State::Dead {
                return Poll::Pending;
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.state == State::Asked {
                self.state = State::Dead;
                return Poll::Ready(Ring::Dead);
            }
            let now = Instant::now();
            let due = last_read + self.params.interval;
            if due > now {
                self.timer.as_mut().reset(due);
            } else if self.params.while_idle || is_used {
                self.state = State::Asked;
                self.timer.as_mut().reset(now + self.params.timeout);
                return Poll::Ready(Ring::Ask);
            } else {
                self.timer.as_mut().reset(now + self.params.interval);
            }
        }
    }

    fn is_answered(&mut self) {
        if self.state == State::Asked {
            self.state = State::Listening;
            let next = Instant::now() + self.params.interval;
            self.timer.as_mut().reset(next);
        }
    }
}

impl Windows {
    fn new(size: u32, now: Instant) -> Self {
        Self {
            size,
            round_trip: 0.0,
            bandwidth: 0.0,
            at_ping: 0,
            at_pong: 0,
            next: now,
            pause: SHORTEST_PAUSE,
        }
    }

    /// Whether something has arrived since the last sample, and it was long enough ago. The clock
    /// is looked at only then.
    fn wants_sample(&mut self, data: u64, now: impl FnOnce() -> Instant) -> bool {
        if data == self.at_pong || self.size >= MAX_WINDOW || now() < self.next {
            return false;
        }
        self.at_ping = data;
        true
    }

    /// Returns the new size if there is one.
    fn sampled(&mut self, round_trip: Duration, data: u64, now: Instant) -> Option<u32> {
        let sample = round_trip.as_secs_f64();
        self.round_trip = match self.round_trip {
            0.0 => sample,
            before => before + (sample - before) / 8.0,
        };
        let bytes = data - self.at_ping;
        self.at_pong = data;
        let bandwidth = bytes as f64 / (self.round_trip * SLACK);
        let is_faster = bandwidth > self.bandwidth;
        if is_faster {
            self.bandwidth = bandwidth;
        }
        let has_filled = bytes >= u64::from(self.size) * 2 / 3;
        if is_faster && has_filled {
            self.pause = SHORTEST_PAUSE;
            self.size = u32::try_from(bytes * 2).map_or(MAX_WINDOW, |size| size.min(MAX_WINDOW));
        } else {
            self.pause = (self.pause * 4).min(LONGEST_PAUSE);
        }
        self.next = now + self.pause;
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
    async fn windows_grow_as_long_as_they_are_filled_faster() {
        let mut windows = Windows::new(65_535, now());
        assert!(!windows.wants_sample(0, now), "nothing has arrived");
        assert!(windows.wants_sample(1_000, now));
        // 60,000 bytes in a millisecond nearly fill it.
        assert_eq!(windows.sampled(MS, 61_000, now()), Some(120_000));
        assert!(!windows.wants_sample(62_000, now), "too soon");
        tokio::time::advance(SHORTEST_PAUSE).await;
        assert!(windows.wants_sample(62_000, now));
        // As much again is neither faster nor does it fill the new one.
        assert_eq!(windows.sampled(MS, 122_000, now()), None);
        tokio::time::advance(SHORTEST_PAUSE).await;
        assert!(!windows.wants_sample(130_000, now), "pauses grow");
        tokio::time::advance(SHORTEST_PAUSE * 3).await;
        assert!(windows.wants_sample(130_000, now));
        assert_eq!(windows.sampled(MS, 1 << 30, now()), Some(MAX_WINDOW));
        tokio::time::advance(LONGEST_PAUSE).await;
        assert!(!windows.wants_sample(1 << 31, now), "no more to gain");
    }
}
