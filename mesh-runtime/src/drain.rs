//! Graceful shutdown: tells everything that serves to finish, and knows when it has.
//!
//! `main` keeps the [`Drain`]; each listener, connection and stream holds a [`Watch`]. When the
//! daemon is told to stop, [`Drain::drain`] wakes every watch and waits until all of them are
//! dropped or the grace period is over. A `Watch` therefore means "I am still serving": keep it for
//! as long as that is true and not longer.

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

/// A part of what a [`Watch`] covers, which can be told to finish by itself: the connections of one
/// port, for example. It finishes with the whole, too.
#[derive(Debug)]
pub struct Part {
    watch: Watch,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything finished by itself.
    Complete,
    /// The grace period ended with this many watches still held.
    Expired { remaining: usize },
}

/// A drain and the watch all others are cloned from. The original counts too: give it away or drop
/// it.
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

    /// A part of what this watch covers.
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
    /// For one that serves in this part. The drain of the whole waits for it, as for every watch.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Tells the watches of this part to finish, and waits for none. Watches that are asked for
    /// afterwards have to finish at once: who goes on serving makes a new part.
    pub fn drain(&self) {
        self.watch.started.cancel();
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
    async fn a_part_finishes_alone_and_with_the_whole() {
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
    async fn without_watches_it_is_immediate() {
        let (drain, watch) = channel();
        drop(watch);
        assert_eq!(drain.drain(Duration::ZERO).await, Outcome::Complete);
    }
}
