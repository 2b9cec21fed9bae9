//! The circuit breaker of one endpoint: [`Breaker`] decides from the responses whether the endpoint
//! may receive requests. The data threads share it, because each of them sees only a part of the
//! responses, and only one request at a time may probe an endpoint (docs/adr/0132).
//!
//! A breaker is closed at first. Failures open it: the endpoint receives nothing until a back-off
//! has elapsed. Then one request, the probe, is sent. If it succeeds the breaker closes and forgets
//! everything; if it fails the next back-off, which is longer, begins.
//!
//! The state is one word that is only replaced as a whole, so a request takes no lock. A result is
//! recorded with the [`Admission`] of its request, and ignored if the state has changed since.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::resilience::{Backoff, FailureAccrual};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::window::SuccessWindow;
use crate::sync::AtomicU64;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crate::telemetry::breaker::Cause;

mod window;

/// The breaker of one endpoint.
#[derive(Debug)]
pub(crate) struct Breaker {
    group: Arc<BreakerGroup>,
    /// A packed [`State`].
    state: AtomicU64,
    /// `None`: the policy does not consider the success rate.
    window: Option<SuccessWindow>,
}

/// What the breakers of one backend share.
#[derive(Debug)]
pub(crate) struct BreakerGroup {
    policy: BreakerPolicy,
    /// The zero of the times in [`State`].
    started: Instant,
    /// The number of changes between closed and open. Balancers notice changes by it.
    changes: AtomicU64,
    /// Wakes the requests of all threads that wait for an endpoint. Its lock is taken by these, and
    /// when a breaker changes its state.
    changed: Notify,
}

/// A [`FailureAccrual`] with at least one criterion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BreakerPolicy {
    /// Number of consecutive failures that opens a breaker.
    max_failures: Option<NonZeroU32>,
    success_rate: Option<SuccessRate>,
    backoff: Backoff,
    honor_retry_after: bool,
}

/// The criterion of a success rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SuccessRate {
    threshold: f64,
    window: Duration,
    min_requests: u32,
}

/// How an endpoint has handled a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Failure,
    /// The endpoint limits its load: HTTP status 429 or gRPC's RESOURCE_EXHAUSTED.
    Throttled,
}

/// The right to send a request to an endpoint. It also records the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    generation: u32,
    is_probe: bool,
}

/// What a result has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Opened {
        cause: Cause,
        backoff: Duration,
    },
    /// A probe has succeeded.
    Closed,
}

/// The state of a breaker. Each generation but the first begins with a change of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requests are admitted.
    Closed { generation: u32, failures: u32 },
    /// None is admitted before `until`, in milliseconds; then one as a probe. `failed_probes` since
    /// the breaker opened lengthen its back-off.
    Open {
        generation: u32,
        failed_probes: u32,
        until: u64,
    },
    /// A probe is in flight. If it has no result at `until`, another request is the probe.
    Probing {
        generation: u32,
        failed_probes: u32,
        until: u64,
    },
}

/// The shortest window of a success rate, as in Linkerd.
const MIN_WINDOW: Duration = Duration::from_millis(10);
/// A probe without a result is given up after this time at the earliest, for back-offs of nothing.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bits of a packed [`State`]: kind, generation, failed probes, time or count. A time is at most 17
/// years.
const VALUE_BITS: u32 = 39;
const PROBES_BITS: u32 = 5;
const GENERATION_BITS: u32 = 18;
const MAX_VALUE: u64 = (1 << VALUE_BITS) - 1;
/// A back-off does not grow any more after 20 failures.
const MAX_FAILED_PROBES: u32 = (1 << PROBES_BITS) - 1;
const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

impl BreakerPolicy {
    /// Returns `None` if the policy has no criterion. A criterion of zero is off, as in Linkerd.
    pub(crate) fn new(accrual: &FailureAccrual) -> Option<Self> {
        let policy = match *accrual {
            FailureAccrual::ConsecutiveFailures {
                max_failures,
                backoff,
            } => Self {
                max_failures: NonZeroU32::new(max_failures),
                success_rate: None,
                backoff,
                honor_retry_after: false,
            },
            FailureAccrual::Unified {
                success_rate_threshold: threshold,
                window,
                min_requests,
                max_consecutive_failures,
                backoff,
                honor_retry_after,
            } => Self {
                max_failures: NonZeroU32::new(max_consecutive_failures),
                success_rate: (threshold > 0.0).then(|| SuccessRate {
                    threshold,
                    window: window.max(MIN_WINDOW),
                    min_requests,
                }),
                backoff,
                honor_retry_after,
            },
        };
        (policy.max_failures.is_some() || policy.success_rate.is_some()).then_some(policy)
    }

    /// Returns the back-off after `failed_probes`, with `jitter` from 0 to 1. The endpoint's
    /// `retry_after` lengthens it, up to the maximum of the policy.
    fn pause(&self, failed_probes: u32, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let step = self.backoff.pause(failed_probes, jitter);
        match retry_after.filter(|_| self.honor_retry_after) {
            Some(hint) => {
                let hinted = Backoff {
                    min: hint.min(self.backoff.max),
                    ..self.backoff
                };
                step.max(hinted.pause(0, jitter))
            }
            None => step,
        }
    }
}

impl BreakerGroup {
    pub(super) fn new(policy: BreakerPolicy, now: Instant) -> Self {
        Self {
            policy,
            started: now,
            changes: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    pub(super) fn policy(&self) -> &BreakerPolicy {
        &self.policy
    }

    pub(super) fn changes(&self) -> u64 {
        // A thread that sees a change also sees the new state.
        self.changes.load(Acquire)
    }

    /// Completes at the next change after this call.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    fn publish_change(&self) {
        self.changes.fetch_add(1, Release);
        self.changed.notify_waiters();
    }

    fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Returns the time in milliseconds, rounded up.
    fn time_after(&self, now: Instant, pause: Duration) -> u64 {
        let time = self.since_start(now).saturating_add(pause);
        let millis = time.as_nanos().div_ceil(1_000_000);
        u64::try_from(millis).map_or(MAX_VALUE, |millis| millis.min(MAX_VALUE))
    }

    fn has_passed(&self, until: u64, now: Instant) -> bool {
        Duration::from_millis(until) <= self.since_start(now)
    }
}

impl Admission {
    pub(super) fn is_probe(self) -> bool {
        self.is_probe
    }
}

impl Breaker {
    pub(super) fn new(group: Arc<BreakerGroup>) -> Self {
        let initial = State::Closed {
            generation: 0,
            failures: 0,
        };
        Self {
            window: group
                .policy
                .success_rate
                .map(|rate| SuccessWindow::new(rate.window)),
            group,
            state: AtomicU64::new(initial.pack()),
        }
    }

    /// Whether [`Breaker::admit`] would admit a request.
    pub(super) fn is_available(&self, now: Instant) -> bool {
        match self.state() {
            State::Closed { .. } => true,
            State::Open { until, .. } | State::Probing { until, .. } => {
                self.group.has_passed(until, now)
            }
        }
    }

    /// Returns when the endpoint may be probed, unless the breaker is closed.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self.state() {
            State::Closed { .. } => None,
            State::Open { until, .. } | State::Probing { until, .. } => {
                self.group.started.checked_add(Duration::from_millis(until))
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state(), State::Closed { .. })
    }

    /// Admits a request: any while the breaker is closed, and one as a probe after the back-off.
    pub(super) fn admit(&self, now: Instant) -> Option<Admission> {
        loop {
            let old = self.state();
            match old {
                State::Closed { generation, .. } => {
                    return Some(Admission {
                        generation,
                        is_probe: false,
                    });
                }
                State::Open {
                    generation,
                    failed_probes,
                    until,
                }
                | State::Probing {
                    generation,
                    failed_probes,
                    until,
                } => {
                    if !self.group.has_passed(until, now) {
                        return None;
                    }
                    let timeout = self.group.policy.backoff.max.max(MIN_PROBE_TIMEOUT);
                    let generation = next(generation);
                    let probing = State::Probing {
                        generation,
                        failed_probes,
                        until: self.group.time_after(now, timeout),
                    };
                    // Another thread may have taken the probe.
                    if self.replace(old, probing) {
                        return Some(Admission {
                            generation,
                            is_probe: true,
                        });
                    }
                }
            }
        }
    }

    /// Records the result of a request. `retry_after` is when the endpoint asks to be tried again,
    /// and `jitter` returns a random number from 0 to 1.
    pub(super) fn record(
        &self,
        admission: Admission,
        outcome: Outcome,
        retry_after: Option<Duration>,
        now: Instant,
        jitter: impl FnOnce() -> f64,
    ) -> Option<Change> {
        if admission.is_probe {
            return self.end_probe(admission, outcome, retry_after, now, jitter);
        }
        let failures = self.count(admission, outcome)?;
        if let Some(window) = &self.window {
            let at = self.group.since_start(now);
            window.record(at, outcome == Outcome::Success);
        }
        let cause = self.cause(failures, now)?;
        let backoff = self.group.policy.pause(0, retry_after, jitter());
        self.open(admission, 0, now, backoff)
            .then_some(Change::Opened { cause, backoff })
    }

    /// Ends a probe whose request has no result: the next request is the probe.
    pub(super) fn abandon(&self, admission: Admission) {
        if admission.is_probe {
            let failed_probes = self.state().failed_probes();
            self.open(admission, failed_probes, Instant::now(), Duration::ZERO);
        }
    }

    /// Counts a failure, or begins to count again. Returns the consecutive failures, or `None` if
    /// the request was admitted before the breaker opened.
    fn count(&self, admission: Admission, outcome: Outcome) -> Option<u32> {
        loop {
            let old = self.state();
            let State::Closed {
                generation,
                failures,
            } = old
            else {
                return None;
            };
            if generation != admission.generation {
                return None;
            }
            let counted = match outcome {
                Outcome::Failure => failures.saturating_add(1),
                Outcome::Success | Outcome::Throttled => 0,
            };
            let new = State::Closed {
                generation,
                failures: counted,
            };
            // Usually nothing changes. The word is then not written, so that the threads do not
            // invalidate each other's caches.
            if counted == failures || self.replace(old, new) {
                return Some(counted);
            }
        }
    }

    fn cause(&self, failures: u32, now: Instant) -> Option<Cause> {
        let policy = &self.group.policy;
        if policy.max_failures.is_some_and(|max| failures >= max.get()) {
            return Some(Cause::ConsecutiveFailures);
        }
        let (rate, window) = (policy.success_rate?, self.window.as_ref()?);
        let (successes, total) = window.counts(self.group.since_start(now));
        let is_low = total > 0
            && total >= rate.min_requests
            && f64::from(successes) < rate.threshold * f64::from(total);
        is_low.then_some(Cause::SuccessRate)
    }

    /// Opens the breaker unless its state has changed since `admission`.
    fn open(
        &self,
        admission: Admission,
        failed_probes: u32,
        now: Instant,
        backoff: Duration,
    ) -> bool {
        let open = State::Open {
            generation: next(admission.generation),
            failed_probes,
            until: self.group.time_after(now, backoff),
        };
        self.leave(admission, open)
    }

    fn end_probe(
        &self,
        admission: Admission,
        outcome: Outcome,
        retry_after: Option<Duration>,
        now: Instant,
        jitter: impl FnOnce() -> f64,
    ) -> Option<Change> {
        let probing = self.state();
        if probing.generation() != admission.generation {
            return None;
        }
        let has_succeeded = match outcome {
            Outcome::Success => true,
            Outcome::Failure => false,
            Outcome::Throttled => self.window.is_none(),
        };
        if has_succeeded {
            if let Some(window) = &self.window {
                window.clear();
            }
            let closed = State::Closed {
                generation: next(admission.generation),
                failures: 0,
            };
            return self.leave(admission, closed).then_some(Change::Closed);
        }
        let failed = (probing.failed_probes() + 1).min(MAX_FAILED_PROBES);
        let backoff = self.group.policy.pause(failed, retry_after, jitter());
        let cause = Cause::FailedProbe;
        self.open(admission, failed, now, backoff)
            .then_some(Change::Opened { cause, backoff })
    }

    /// Ends the generation of `admission`. Returns false if another request has ended it.
    fn leave(&self, admission: Admission, new: State) -> bool {
        loop {
            let old = self.state();
            if old.generation() != admission.generation {
                return false;
            }
            if self.replace(old, new) {
                self.group.publish_change();
                return true;
            }
        }
    }

    fn state(&self) -> State {
        State::unpack(self.state.load(Acquire))
    }

    fn replace(&self, old: State, new: State) -> bool {
        self.state
            .compare_exchange(old.pack(), new.pack(), AcqRel, Relaxed)
            .is_ok()
    }
}

/// Returns the following generation. A request would have to last for 262,144 changes to be taken
/// for one of a later generation.
fn next(generation: u32) -> u32 {
    (generation + 1) & MAX_GENERATION
}

impl State {
    fn generation(self) -> u32 {
        match self {
            Self::Closed { generation, .. }
            | Self::Open { generation, .. }
            | Self::Probing { generation, .. } => generation,
        }
    }

    fn failed_probes(self) -> u32 {
        match self {
            Self::Closed { .. } => 0,
            Self::Open { failed_probes, .. } | Self::Probing { failed_probes, .. } => failed_probes,
        }
    }

    fn pack(self) -> u64 {
        let (kind, value) = match self {
            Self::Closed { failures, .. } => (0, u64::from(failures)),
            Self::Open { until, .. } => (1, until),
            Self::Probing { until, .. } => (2, until),
        };
        let high = kind << GENERATION_BITS | u64::from(self.generation());
        (high << PROBES_BITS | u64::from(self.failed_probes())) << VALUE_BITS | value
    }

    fn unpack(word: u64) -> Self {
        let until = word & MAX_VALUE;
        let failed_probes = (word >> VALUE_BITS) as u32 & MAX_FAILED_PROBES;
        let generation = (word >> (VALUE_BITS + PROBES_BITS)) as u32 & MAX_GENERATION;
        match word >> (VALUE_BITS + PROBES_BITS + GENERATION_BITS) {
            0 => Self::Closed {
                generation,
                failures: until as u32,
            },
            1 => Self::Open {
                generation,
                failed_probes,
                until,
            },
            _ => Self::Probing {
                generation,
                failed_probes,
                until,
            },
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
