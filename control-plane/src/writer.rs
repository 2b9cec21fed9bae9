//! Writes objects to an API server while this replica holds a Lease.
//!
//! ```text
//!   changes of objects ─┐
//!   every 10 s ─────────┴▶ reconcile: which objects differ ──▶ queue of keys ──▶ write each
//! ```
//!
//! The queue has keys. A write is computed when it is sent, so it always follows from the current
//! objects. A write fails if another client's change made it obsolete, and the watch brings the
//! change.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use mesh_cluster::api_server::{Backoff, Leadership, explain};
use mesh_runtime::drain;
use mesh_runtime::metrics::Registry;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use self::metrics::WriterMetrics;
use self::queue::Queue;

mod metrics;
mod queue;
mod write;

pub(crate) use self::{
    metrics::{Description, MetricNames},
    write::{Action, Change, Field, Write},
};

/// The objects that a controller writes, with all that they follow from. Without I/O.
pub(crate) trait Written: Send + Sync + 'static {
    type Key: Clone + Eq + Hash + Display + Send + Sync + 'static;

    /// The name of the controller as the owner of fields.
    const FIELD_MANAGER: &'static str;

    /// The written objects, for the log.
    const SUBJECT: &'static str;

    const METRICS: MetricNames;

    /// Returns the keys of the objects that exist or should exist.
    fn keys(&self) -> impl Iterator<Item = &Self::Key> + Send;

    fn contains(&self, key: &Self::Key) -> bool;

    /// Returns the version of an object that was read; `None` if it does not exist.
    fn version(&self, key: &Self::Key) -> Option<&Arc<str>>;

    /// Returns the request that brings an object to its desired state; `None` if it is there.
    fn write(&self, key: &Self::Key, now: Timestamp) -> Option<Write>;

    /// Takes note of the API server's answer to a write.
    fn answered(&self, _key: &Self::Key, _answer: Answer<'_>) {}
}

/// The answer of an API server to a write.
pub(crate) enum Answer<'a> {
    Written,
    /// The object has changed, is gone, or exists already.
    Obsolete(&'a str),
    /// The API server does not accept it.
    Refused(&'a str),
}

/// Writes objects.
pub(crate) struct Writer<O: Written> {
    client: Client,
    objects: watch::Receiver<Arc<O>>,
    leadership: Leadership,
    write_timeout: Duration,
    metrics: WriterMetrics,
    queue: Queue<O::Key>,
    /// The last writes, until the watch has brought their effect.
    attempts: HashMap<O::Key, Attempt>,
    reconciled: Instant,
    /// Whether objects have changed since.
    changed: bool,
    is_leader: bool,
    /// No write is sent before, because the API server is overloaded or unreachable.
    resume_at: Instant,
    backoff: Backoff,
    /// The API server is failing, and this was logged.
    is_failing: bool,
}

/// A write that was sent.
struct Attempt {
    /// The version of the object before it; `None` if the object did not exist.
    version: Option<Arc<str>>,
    /// When this version is written again.
    retry_at: Instant,
    /// How often this version was refused.
    refusals: u32,
}

/// The outcome of a write.
enum Outcome {
    Written,
    /// The object has changed, is gone, or exists already.
    Obsolete(String),
    /// The API server does not accept it, and would not the next time.
    Refused(String),
    /// The API server is overloaded or unreachable.
    Busy {
        error: String,
        delay: Option<Duration>,
    },
    TimedOut,
}

/// How often all objects are compared without a change, as in Linkerd.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(10);

/// The minimum interval of comparisons after changes.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// The maximum delay after refusals of the same version of an object.
const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(300);

/// The maximum delay that an API server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Objects between two yields to other tasks.
const OBJECTS_PER_TURN: usize = 256;

impl<O: Written> Writer<O> {
    pub(crate) fn new(
        client: Client,
        objects: watch::Receiver<Arc<O>>,
        leadership: Leadership,
        write_timeout: Duration,
        registry: &Registry,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            objects,
            leadership,
            write_timeout,
            metrics: WriterMetrics::new(registry, O::METRICS),
            queue: Queue::new(),
            attempts: HashMap::new(),
            reconciled: now,
            changed: true,
            is_leader: false,
            resume_at: now,
            backoff: Backoff::for_api_server(),
            is_failing: false,
        }
    }

    /// Runs until the drain, or until the sender of objects is dropped.
    pub(crate) async fn run(mut self, drain: drain::Watch) {
        loop {
            let interval = if self.changed {
                MIN_INTERVAL
            } else {
                RECONCILE_INTERVAL
            };
            let reconcile_at = self.reconciled + interval;
            // A write is only sent if it ends before leadership does.
            let can_write = !self.queue.is_empty() && self.leadership.lasts(self.write_timeout);
            let resume_at = self.resume_at;
            tokio::select! {
                biased;
                () = drain.draining() => return,
                () = self.leadership.changed() => self.follow_leadership(),
                changed = self.objects.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.changed = true;
                }
                () = sleep_until(reconcile_at), if self.is_leader => self.reconcile().await,
                () = sleep_until(resume_at), if can_write => self.write_next().await,
            }
        }
    }

    fn follow_leadership(&mut self) {
        let before = std::mem::replace(&mut self.is_leader, self.leadership.lasts(Duration::ZERO));
        if self.is_leader && !before {
            self.changed = true;
        }
        if before && !self.is_leader {
            self.metrics.dropped(self.queue.clear());
        }
    }

    /// Adds the objects that differ to the queue.
    async fn reconcile(&mut self) {
        self.changed = false;
        let objects = self.objects.borrow_and_update().clone();
        let (now, time) = (Instant::now(), Timestamp::now());
        self.attempts.retain(|key, attempt| {
            (now < attempt.retry_at || attempt.refusals > 0) && objects.contains(key)
        });
        self.attempts.shrink_to(self.attempts.len() * 2);
        for (at, key) in objects.keys().enumerate() {
            if at % OBJECTS_PER_TURN == OBJECTS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
            let attempt = self.attempts.get(key);
            if attempt
                .is_some_and(|it| it.version.as_ref() == objects.version(key) && now < it.retry_at)
                || self.queue.contains(key)
                || objects.write(key, time).is_none()
            {
                continue;
            }
            if self.queue.push(key.clone()) {
                self.metrics.enqueues.inc();
            } else {
                self.metrics.enqueue_overflows.inc();
            }
        }
        self.reconciled = Instant::now();
    }

    async fn write_next(&mut self) {
        let Some(key) = self.queue.pop() else {
            return;
        };
        self.metrics.dequeues.inc();
        let objects = self.objects.borrow().clone();
        let Some(write) = objects.write(&key, Timestamp::now()) else {
            return;
        };
        let sent = Instant::now();
        let request = write.send(&self.client, O::FIELD_MANAGER);
        let outcome = match timeout(self.write_timeout, request).await {
            Ok(Ok(())) => Outcome::Written,
            Ok(Err(error)) => outcome(&error),
            Err(_elapsed) => Outcome::TimedOut,
        };
        match &outcome {
            Outcome::Written => objects.answered(&key, Answer::Written),
            Outcome::Obsolete(error) => objects.answered(&key, Answer::Obsolete(error)),
            Outcome::Refused(error) => objects.answered(&key, Answer::Refused(error)),
            Outcome::Busy { .. } | Outcome::TimedOut => {}
        }
        let version = objects.version(&key).cloned();
        self.record(key, version, sent, outcome);
    }

    fn record(&mut self, key: O::Key, version: Option<Arc<str>>, sent: Instant, outcome: Outcome) {
        let now = Instant::now();
        let before = self.attempts.remove(&key);
        let mut refusals = 0;
        let mut retry_at = now + RECONCILE_INTERVAL;
        match outcome {
            Outcome::Written => {
                self.metrics.writes.inc();
                self.metrics.duration.observe((now - sent).as_secs_f64());
                self.recover();
            }
            Outcome::Obsolete(_) => {
                self.metrics.api_errors.inc();
                self.recover();
            }
            Outcome::Refused(error) => {
                self.metrics.api_errors.inc();
                self.recover();
                let same = before.filter(|attempt| attempt.version == version);
                refusals = same.map_or(0, |attempt| attempt.refusals) + 1;
                retry_at = now + refusal_delay(refusals);
                if refusals == 1 {
                    tracing::warn!(object = %key, error, "The API server refuses {}", O::SUBJECT);
                }
            }
            Outcome::Busy { error, delay } => {
                self.metrics.api_errors.inc();
                self.pause(&error, delay);
                // Nothing has changed, so it is sent again.
                self.queue.push(key);
                return;
            }
            Outcome::TimedOut => {
                self.metrics.timeouts.inc();
                let seconds = self.write_timeout.as_secs_f64();
                self.pause(&format!("no response within {seconds} s"), None);
            }
        }
        self.attempts.insert(
            key,
            Attempt {
                version,
                retry_at,
                refusals,
            },
        );
    }

    fn recover(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("Resumed writing {}", O::SUBJECT);
        }
    }

    fn pause(&mut self, error: &str, delay: Option<Duration>) {
        let delay = delay.unwrap_or_default().max(self.backoff.delay());
        self.resume_at = Instant::now() + delay;
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(error, "Cannot write {}; retrying", O::SUBJECT);
        }
    }
}

fn outcome(error: &kube::Error) -> Outcome {
    let kube::Error::Api(status) = error else {
        return Outcome::Busy {
            error: explain(error),
            delay: None,
        };
    };
    match status.code {
        404 | 409 => Outcome::Obsolete(explain(error)),
        429 | 500.. => {
            let details = status.details.as_ref();
            let seconds = details.map_or(0, |details| details.retry_after_seconds);
            Outcome::Busy {
                error: explain(error),
                delay: Some(Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER)),
            }
        }
        _ => Outcome::Refused(explain(error)),
    }
}

fn refusal_delay(refusals: u32) -> Duration {
    RECONCILE_INTERVAL
        .saturating_mul(1 << refusals.min(10))
        .min(MAX_REFUSAL_DELAY)
}
