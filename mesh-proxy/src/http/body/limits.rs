//! Time limits of a response that has begun: until its end, and between its frames.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The limits of one body. Of `ends`, the earliest one counts.
pub struct Limits {
    /// When the response must have ended, and what is said if it has not.
    end: Option<(Instant, TimedOut)>,
    idle: Option<Duration>,
    last_frame: Instant,
    /// Wakes at the next moment that something may have expired. Never reset while frames pass: it looks at `last_frame` when it fires.
    alarm: Pin<Box<Sleep>>,
}

/// Which limit was overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedOut {
    #[error("timed out waiting for the request to complete: request timeout: {0:?}")]
    Request(Duration),
    #[error("timed out waiting for the response to complete: response stream timeout: {0:?}")]
    Response(Duration),
    #[error("timed out without a frame in either direction: idle timeout: {0:?}")]
    Idle(Duration),
}

impl Limits {
    /// Limits for a body that begins `now`; `None` when nothing is limited.
    pub fn new(
        now: Instant,
        end: Option<(Instant, TimedOut)>,
        idle: Option<Duration>,
    ) -> Option<Self> {
        let next = next_alarm(end, idle, now)?;
        Some(Self {
            end,
            idle,
            last_frame: now,
            alarm: Box::pin(tokio::time::sleep_until(next)),
        })
    }

    /// Ready when a limit is overrun.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<TimedOut> {
        loop {
            if self.alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = Instant::now();
            if let Some((end, timed_out)) = self.end
                && end <= now
            {
                return Poll::Ready(timed_out);
            }
            if let Some(idle) = self.idle
                && self.last_frame + idle <= now
            {
                return Poll::Ready(TimedOut::Idle(idle));
            }
            match next_alarm(self.end, self.idle, self.last_frame) {
                Some(next) => self.alarm.as_mut().reset(next),
                None => return Poll::Pending,
            }
        }
    }

    pub(super) fn progressed(&mut self) {
        if self.idle.is_some() {
            self.last_frame = Instant::now();
        }
    }
}

fn next_alarm(
    end: Option<(Instant, TimedOut)>,
    idle: Option<Duration>,
    last_frame: Instant,
) -> Option<Instant> {
    let end = end.map(|(end, _)| end);
    let idle = idle.map(|idle| last_frame + idle);
    match (end, idle) {
        (Some(end), Some(idle)) => Some(end.min(idle)),
        (end, idle) => end.or(idle),
    }
}
