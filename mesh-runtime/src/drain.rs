//! Graceful shutdown: notifies all listeners, connections and streams, and waits until they have
//! finished.
//!
//! `main` owns the [`Drain`]; each listener, connection and stream holds a [`Watch`]. When the
//! daemon is to stop, [`Drain::drain`] wakes every watch and waits until all of them are dropped or
//! the grace period ends. Holding a `Watch` therefore delays the shutdown: keep it exactly as long
//! as the work takes.

use std::time::Duration;

use mesh_planted::Bug;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Starts the drain.
#[derive(Debug)]
pub struct Drain {
    started: CancellationToken,
    holders: TaskTracker,
}

/// Observes the drain and delays its completion. Clone one for each connection.
#[derive(Clone, Debug)]
pub struct Watch {
    started: CancellationToken,
    _holder: TaskTrackerToken,
}

/// A subset of the watches that can be drained separately: the connections of one port, for
/// example. It is drained with the whole, too.
#[derive(Debug)]
pub struct Part {
    watch: Watch,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All watches were dropped.
    Complete,
    /// The grace period ended while watches were still held.
    Expired { remaining: usize },
}

/// Returns a drain and the watch that all others are cloned from. This watch counts too: it must be
/// passed on or dropped.
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
    /// Notifies all watches and waits for them, at most `grace`.
    pub async fn drain(self, grace: Duration) -> Outcome {
        if !Bug::DrainIgnored.is_planted() {
            self.started.cancel();
        }
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
    /// Waits until the drain starts.
    pub async fn draining(&self) {
        self.started.cancelled().await;
    }

    /// Whether the drain has started, for loops that check between two units of work.
    pub fn is_draining(&self) -> bool {
        self.started.is_cancelled()
    }

    /// Returns a subset that can be drained separately.
    pub fn part(&self) -> Part {
        Part {
            watch: Watch {
                started: self.started.child_token(),
                _holder: self._holder.clone(),
            },
        }
    }
}

impl Part {
    /// Returns a watch of this subset. The drain of the whole waits for it, as for every watch.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Notifies the watches of this subset, and does not wait. Watches that are created afterwards
    /// are draining from the start.
    pub fn drain(&self) {
        self.watch.started.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drain_completes_when_the_last_watch_is_dropped() {
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
    async fn drain_expires_after_grace_period_and_counts_remaining_watches() {
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
    async fn part_drains_separately_and_with_the_whole() {
        let (drain, watch) = channel();
        let (first, second) = (watch.part(), watch.part());
        let (in_first, in_second) = (first.watch(), second.watch());
        first.drain();
        in_first.draining().await;
        assert!(!in_second.is_draining() && !watch.is_draining());
        drop((watch, first, second, in_first));
        let expired = drain.drain(Duration::from_secs(5)).await;
        assert_eq!(expired, Outcome::Expired { remaining: 1 });
        assert!(in_second.is_draining());
    }

    #[tokio::test(start_paused = true)]
    async fn drain_without_watches_completes_immediately() {
        let (drain, watch) = channel();
        drop(watch);
        assert_eq!(drain.drain(Duration::ZERO).await, Outcome::Complete);
    }
}
