//! Time limits of one exchange: of the whole, from the end of the request, and between frames.
//! [`Limits::check`] decides; the request path waits for it until the response's head, and the
//! response's body carries it on.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use mesh_core::resilience::Timeouts;
use tokio::time::Instant;

/// What has happened in an exchange so far. Written by both bodies as frames pass.
#[derive(Debug)]
pub struct Progress {
    request_ended: Cell<Option<Instant>>,
    last_frame: Cell<Instant>,
}

/// The limits of one exchange.
#[derive(Clone, Debug)]
pub struct Limits {
    timeouts: Timeouts,
    started: Instant,
    progress: Rc<Progress>,
}

/// Which limit was overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedOut {
    #[error("request timeout: {0:?}")]
    Request(Duration),
    #[error("response stream timeout: {0:?}")]
    Response(Duration),
    #[error("idle timeout: {0:?}")]
    Idle(Duration),
}

/// The result of looking at the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Expired(TimedOut),
    /// Nothing can have expired before then.
    Next(Instant),
}

impl Limits {
    /// The limits of an exchange that begins at `started`; `None` when there are none.
    pub fn new(timeouts: Timeouts, started: Instant) -> Option<Self> {
        (timeouts != Timeouts::default()).then(|| Self {
            timeouts,
            started,
            progress: Rc::new(Progress {
                request_ended: Cell::new(None),
                last_frame: Cell::new(started),
            }),
        })
    }

    pub fn progress(&self) -> &Rc<Progress> {
        &self.progress
    }

    /// Completes when a limit is overrun, and never otherwise.
    pub async fn overrun(&self) -> TimedOut {
        loop {
            match self.check(Instant::now()) {
                Check::Expired(timed_out) => return timed_out,
                Check::Next(at) => tokio::time::sleep_until(at).await,
            }
        }
    }

    /// Frames only push limits back, so no timer is touched when one passes: whoever waits looks
    /// again.
    fn check(&self, now: Instant) -> Check {
        // While the request goes on, its end is at least now.
        let request_end = self.progress.request_ended.get().unwrap_or(now);
        let limit = |of: Option<Duration>, from: Instant, timed_out: fn(Duration) -> TimedOut| {
            of.map(|duration| (from + duration, timed_out(duration)))
        };
        let limits = [
            limit(self.timeouts.request, self.started, TimedOut::Request),
            limit(self.timeouts.response, request_end, TimedOut::Response),
            limit(
                self.timeouts.idle,
                self.progress.last_frame.get(),
                TimedOut::Idle,
            ),
        ];
        match limits.into_iter().flatten().min_by_key(|(at, _)| *at) {
            Some((at, timed_out)) if at <= now => Check::Expired(timed_out),
            Some((at, _)) => Check::Next(at),
            // Unreachable by construction; far enough never to matter.
            None => Check::Next(now + Duration::from_secs(3600)),
        }
    }
}

impl Progress {
    pub fn frame(&self) {
        self.last_frame.set(Instant::now());
    }

    pub fn request_ended(&self) {
        self.request_ended.set(Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(request: u32, response: u32, idle: u32) -> (Limits, Instant) {
        let some = |seconds: u32| (seconds > 0).then_some(SECOND * seconds);
        let start = Instant::now();
        let timeouts = Timeouts {
            request: some(request),
            response: some(response),
            idle: some(idle),
        };
        (Limits::new(timeouts, start).unwrap(), start)
    }

    #[test]
    fn no_limits_cost_nothing() {
        assert!(Limits::new(Timeouts::default(), Instant::now()).is_none());
    }

    #[test]
    fn the_earliest_counts() {
        let (limits, start) = limits(5, 0, 3);
        assert_eq!(limits.check(start), Check::Next(start + SECOND * 3));
        limits.progress.last_frame.set(start + SECOND * 2);
        assert_eq!(
            limits.check(start + SECOND * 3),
            Check::Next(start + SECOND * 5)
        );
        limits.progress.last_frame.set(start + SECOND * 4);
        assert_eq!(
            limits.check(start + SECOND * 5),
            Check::Expired(TimedOut::Request(SECOND * 5))
        );
    }

    #[test]
    fn the_response_limit_begins_when_the_request_ends() {
        let (limits, start) = limits(0, 2, 0);
        let later = start + SECOND * 60;
        assert_eq!(limits.check(later), Check::Next(later + SECOND * 2));
        limits.progress.request_ended.set(Some(later));
        let expired = Check::Expired(TimedOut::Response(SECOND * 2));
        assert_eq!(limits.check(later + SECOND * 2), expired);
    }

    #[test]
    fn silence_is_noticed() {
        let (limits, start) = limits(0, 0, 1);
        let expired = Check::Expired(TimedOut::Idle(SECOND));
        assert_eq!(limits.check(start + SECOND), expired);
    }
}
