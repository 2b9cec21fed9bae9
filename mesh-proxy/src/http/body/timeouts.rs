//! Time limits of one exchange: for the whole exchange, from the end of the request, and between
//! frames. The request path waits for [`ExchangeTimeouts::expired`] until the response headers
//! arrive; after that the response body does.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use mesh_core::resilience::Timeouts;
use tokio::time::Instant;

/// The progress of an exchange. Updated by both bodies for each frame.
#[derive(Debug)]
pub(crate) struct ExchangeProgress {
    request_ended: Cell<Option<Instant>>,
    last_frame: Cell<Instant>,
}

/// The time limits of one exchange.
#[derive(Clone, Debug)]
pub(crate) struct ExchangeTimeouts {
    timeouts: Timeouts,
    started: Instant,
    progress: Rc<ExchangeProgress>,
}

/// The limit that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeoutError {
    #[error("request timeout: {0:?}")]
    Request(Duration),
    #[error("response stream timeout: {0:?}")]
    Response(Duration),
    #[error("idle timeout: {0:?}")]
    Idle(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeoutStatus {
    Expired(TimeoutError),
    /// No limit expires before this time.
    Next(Instant),
}

impl ExchangeTimeouts {
    /// Returns the limits of an exchange that begins at `started`; `None` when there are none.
    pub(crate) fn new(timeouts: Timeouts, started: Instant) -> Option<Self> {
        (timeouts != Timeouts::default()).then(|| Self::started(timeouts, started))
    }

    /// Returns the limits of an exchange that begins at `started`.
    pub(crate) fn started(timeouts: Timeouts, started: Instant) -> Self {
        Self {
            timeouts,
            started,
            progress: Rc::new(ExchangeProgress {
                request_ended: Cell::new(None),
                last_frame: Cell::new(started),
            }),
        }
    }

    pub(crate) fn progress(&self) -> &Rc<ExchangeProgress> {
        &self.progress
    }

    /// Completes when a limit expires.
    pub(crate) async fn expired(&self) -> TimeoutError {
        loop {
            match self.check(Instant::now()) {
                TimeoutStatus::Expired(error) => return error,
                TimeoutStatus::Next(at) => tokio::time::sleep_until(at).await,
            }
        }
    }

    pub(crate) fn has_expired(&self) -> bool {
        matches!(self.check(Instant::now()), TimeoutStatus::Expired(_))
    }

    /// Frames only postpone deadlines, so a frame touches no timer: the waiting task checks again.
    fn check(&self, now: Instant) -> TimeoutStatus {
        // Until the request ends, its end is now at the earliest.
        let request_end = self.progress.request_ended.get().unwrap_or(now);
        let deadline =
            |limit: Option<Duration>, from: Instant, error: fn(Duration) -> TimeoutError| {
                let duration = limit?;
                // A limit that no clock reaches is none.
                Some((from.checked_add(duration)?, error(duration)))
            };
        let limits = [
            deadline(self.timeouts.request, self.started, TimeoutError::Request),
            deadline(self.timeouts.response, request_end, TimeoutError::Response),
            deadline(
                self.timeouts.idle,
                self.progress.last_frame.get(),
                TimeoutError::Idle,
            ),
        ];
        match limits.into_iter().flatten().min_by_key(|(at, _)| *at) {
            Some((at, error)) if at <= now => TimeoutStatus::Expired(error),
            Some((at, _)) => TimeoutStatus::Next(at),
            // Only limits that no clock reaches.
            None => TimeoutStatus::Next(now + Duration::from_secs(3600)),
        }
    }
}

impl ExchangeProgress {
    pub(crate) fn record_frame(&self) {
        self.last_frame.set(Instant::now());
    }

    pub(crate) fn record_request_end(&self) {
        self.request_ended.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn timeouts(request: u32, response: u32, idle: u32) -> (ExchangeTimeouts, Instant) {
        let some = |seconds: u32| (seconds > 0).then_some(SECOND * seconds);
        let start = Instant::now();
        let timeouts = Timeouts {
            request: some(request),
            response: some(response),
            idle: some(idle),
        };
        (ExchangeTimeouts::new(timeouts, start).unwrap(), start)
    }

    #[test]
    fn no_timeouts_allocate_nothing() {
        assert!(ExchangeTimeouts::new(Timeouts::default(), Instant::now()).is_none());
    }

    #[test]
    fn earliest_deadline_expires_first() {
        let (timeouts, start) = timeouts(5, 0, 3);
        assert_eq!(
            timeouts.check(start),
            TimeoutStatus::Next(start + SECOND * 3)
        );
        timeouts.progress.last_frame.set(start + SECOND * 2);
        assert_eq!(
            timeouts.check(start + SECOND * 3),
            TimeoutStatus::Next(start + SECOND * 5)
        );
        timeouts.progress.last_frame.set(start + SECOND * 4);
        assert_eq!(
            timeouts.check(start + SECOND * 5),
            TimeoutStatus::Expired(TimeoutError::Request(SECOND * 5))
        );
    }

    #[test]
    fn response_timeout_starts_when_request_ends() {
        let (timeouts, start) = timeouts(0, 2, 0);
        let later = start + SECOND * 60;
        assert_eq!(
            timeouts.check(later),
            TimeoutStatus::Next(later + SECOND * 2)
        );
        timeouts.progress.request_ended.set(Some(later));
        let expired = TimeoutStatus::Expired(TimeoutError::Response(SECOND * 2));
        assert_eq!(timeouts.check(later + SECOND * 2), expired);
    }

    #[test]
    fn idle_timeout_expires_without_frames() {
        let (timeouts, start) = timeouts(0, 0, 1);
        let expired = TimeoutStatus::Expired(TimeoutError::Idle(SECOND));
        assert_eq!(timeouts.check(start + SECOND), expired);
    }
}
