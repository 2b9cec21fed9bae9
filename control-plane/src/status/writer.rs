//! Writes statuses to an API server while this replica holds the Lease.
//!
//! ```text
//!   changes of objects ─┐
//!   every 10 s ─────────┴▶ reconcile: which objects differ ──▶ queue of names ──▶ patch each
//! ```
//!
//! The queue has names. A patch is computed when it is sent, so it always follows from the current
//! objects. A patch fails if another client's change made it obsolete, and the watch brings the
//! change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use mesh_cluster::api_server::{Backoff, Leadership, explain};
use mesh_runtime::drain;
use mesh_runtime::metrics::Registry;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use self::metrics::WriterMetrics;
use self::queue::Queue;
use super::objects::{ReportedKey, StatusObjects};
use super::patch::CONTROLLER_NAME;
use super::{desired, patch};

mod metrics;
mod queue;

/// Writes statuses.
pub(crate) struct StatusWriter {
    client: Client,
    objects: watch::Receiver<Arc<StatusObjects>>,
    leadership: Leadership,
    patch_timeout: Duration,
    metrics: WriterMetrics,
    queue: Queue,
    /// The last patches, until the watch has brought their effect.
    attempts: HashMap<ReportedKey, Attempt>,
    reconciled: Instant,
    /// Whether objects have changed since.
    changed: bool,
    is_leader: bool,
    /// No patch is sent before, because the API server is overloaded or unreachable.
    resume_at: Instant,
    backoff: Backoff,
    /// The API server is failing, and this was logged.
    is_failing: bool,
}

/// A patch that was sent.
struct Attempt {
    /// The version of the object that was patched.
    version: Option<Arc<str>>,
    /// When a patch of this version is sent again.
    retry_at: Instant,
    /// How often this version was refused.
    refusals: u32,
}

/// The outcome of a patch.
enum Outcome {
    Written,
    /// The object has changed or is gone.
    Obsolete,
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

impl StatusWriter {
    pub(crate) fn new(
        client: Client,
        objects: watch::Receiver<Arc<StatusObjects>>,
        leadership: Leadership,
        patch_timeout: Duration,
        registry: &Registry,
    ) -> Self {
        let now = Instant::now();
        Self {
            client,
            objects,
            leadership,
            patch_timeout,
            metrics: WriterMetrics::new(registry),
            queue: Queue::default(),
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
            // A patch is only sent if it ends before leadership does.
            let can_write = !self.queue.is_empty() && self.leadership.lasts(self.patch_timeout);
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

    /// Adds the objects whose status differs to the queue.
    async fn reconcile(&mut self) {
        self.changed = false;
        let objects = self.objects.borrow_and_update().clone();
        let (now, time) = (Instant::now(), Timestamp::now());
        self.attempts
            .retain(|key, _| objects.reported.contains_key(key));
        for (at, (key, object)) in objects.reported.iter().enumerate() {
            if at % OBJECTS_PER_TURN == OBJECTS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
            let attempt = self.attempts.get(key);
            if attempt.is_some_and(|it| it.version == object.resource_version && now < it.retry_at)
                || self.queue.contains(key)
                || patch(object, &desired(&objects, object), time).is_none()
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
        let Some(object) = objects.reported.get(&key) else {
            return;
        };
        let desired = desired(&objects, object);
        let Some(patch) = patch(object, &desired, Timestamp::now()) else {
            return;
        };
        let sent = Instant::now();
        let outcome = self.send(&key, &object.api_version, &patch).await;
        let version = object.resource_version.clone();
        self.record(key, version, sent, outcome);
    }

    async fn send(&self, key: &ReportedKey, api_version: &str, patch: &Value) -> Outcome {
        let types = TypeMeta {
            api_version: api_version.to_owned(),
            kind: key.kind.as_str().to_owned(),
        };
        let Ok(kind) = GroupVersionKind::try_from(types) else {
            return Outcome::Refused(format!("{api_version:?} is not a version of an API"));
        };
        let resource = ApiResource::from_gvk_with_plural(&kind, key.kind.plural());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.name.namespace, &resource);
        let params = PatchParams {
            field_manager: Some(CONTROLLER_NAME.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(patch);
        let request = api.patch_status(&key.name.name, &params, &patch);
        match timeout(self.patch_timeout, request).await {
            Ok(Ok(_object)) => Outcome::Written,
            Ok(Err(error)) => outcome(&error),
            Err(_elapsed) => Outcome::TimedOut,
        }
    }

    fn record(
        &mut self,
        key: ReportedKey,
        version: Option<Arc<str>>,
        sent: Instant,
        outcome: Outcome,
    ) {
        let now = Instant::now();
        let before = self.attempts.remove(&key);
        let mut refusals = 0;
        let mut retry_at = now + RECONCILE_INTERVAL;
        match outcome {
            Outcome::Written => {
                self.metrics.patches.inc();
                self.metrics.duration.observe((now - sent).as_secs_f64());
                self.recover();
            }
            Outcome::Obsolete => {
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
                    let (kind, name) = (key.kind.as_str(), &key.name);
                    tracing::warn!(kind, %name, error, "The API server refuses a status");
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
                let seconds = self.patch_timeout.as_secs_f64();
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
            tracing::info!("Resumed writing statuses");
        }
    }

    fn pause(&mut self, error: &str, delay: Option<Duration>) {
        let delay = delay.unwrap_or_default().max(self.backoff.delay());
        self.resume_at = Instant::now() + delay;
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(error, "Cannot write statuses; retrying");
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
        404 | 409 => Outcome::Obsolete,
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

#[cfg(test)]
mod tests;
