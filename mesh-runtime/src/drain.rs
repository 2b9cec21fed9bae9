//! Graceful shutdown: tells everything that serves to finish, and knows when it has.
//!
//! `main` keeps the [`Drain`]; each listener, connection and stream holds a [`Watch`]. When the daemon is told to
//! stop, [`Drain::drain`] wakes every watch and waits until all of them are dropped or the grace period is over.
//! A `Watch` therefore means "I am still serving": keep it for as long as that is true and not longer.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The side that decides to stop.
#[derive(Debug)]
pub struct Drain {
    started: CancellationToken,
    holders: TaskTracker,
}

/// The side that must finish. Clone one per connection.
#[derive(Clone, Debug)]
pub struct Watch {
    started: CancellationToken,
    _holder: TaskTrackerToken,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything finished by itself.
    Complete,
    /// The grace period ended with this many watches still held.
    Expired { remaining: usize },
}

/// A drain and the watch all others are cloned from. The original counts too: give it away or drop it.
pub fn channel() -> (Drain, Watch) {
    let drain = Drain {
        started: CancellationToken::new(),
        holders: TaskTracker::new(),
    };
    let watch = Watch {
        started: drain.started.clone(),
        _holder: drain.holders.token(),
    };
    (drain, watch)
}

impl Drain {
    /// Tells all watches to finish and waits for them, at most `grace`.
    pub async fn drain(self, grace: Duration) -> Outcome {
        self.started.cancel();
        self.holders.close();
        match tokio::time::timeout(grace, self.holders.wait()).await {
            Ok(()) => Outcome::Complete,
            Err(_elapsed) => Outcome::Expired {
                remaining: self.holders.len(),
            },
        }
    }
}

impl Watch {
    /// Resolves when the drain begins (at once when it already has).
    pub async fn draining(&self) {
        self.started.cancelled().await;
    }

    /// Whether the drain has begun; for loops that look between two pieces of work.
    pub fn is_draining(&self) -> bool {
        self.started.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn completes_when_the_last_watch_is_dropped() {
        let (drain, watch) = channel();
        let second = watch.clone();
        let worker = tokio::spawn(async move {
            watch.draining().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(watch);
            second.draining().await;
        });
        assert_eq!(
            drain.drain(Duration::from_secs(60)).await,
            Outcome::Complete
        );
        worker.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_the_grace_period_and_counts_who_is_left() {
        let (drain, watch) = channel();
        let second = watch.clone();
        assert!(!second.is_draining());
        let before = tokio::time::Instant::now();
        assert_eq!(
            drain.drain(Duration::from_secs(5)).await,
            Outcome::Expired { remaining: 2 }
        );
        assert_eq!(before.elapsed(), Duration::from_secs(5));
        assert!(watch.is_draining() && second.is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn without_watches_it_is_immediate() {
        let (drain, watch) = channel();
        drop(watch);
        assert_eq!(drain.drain(Duration::ZERO).await, Outcome::Complete);
    }
}
