//! A picked endpoint: the measurement of its latency and the result of its request.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::Member;
use super::breaker::{Admission, Breaker, Change, Outcome};
use crate::random;
use crate::telemetry::breaker::Cause;

/// A picked endpoint. Counts as one request in flight until it is dropped.
pub(crate) struct PickedEndpoint<T> {
    pub(crate) value: Rc<T>,
    pub(super) member: Rc<Member<T>>,
    pub(super) since: Instant,
    /// When the request was sent on an established connection.
    pub(super) sent: Cell<Instant>,
    pub(super) measured: Cell<bool>,
    /// Taken by the result of the request. `None` without a breaker.
    pub(super) admission: Cell<Option<Admission>>,
    /// The request waits for a connection to an endpoint that has failed.
    pub(super) is_trial: Cell<bool>,
}

impl<T> PickedEndpoint<T> {
    /// Restarts the latency measurement before the request is sent on an established connection.
    /// The time of the handshake would make a new endpoint look slow.
    pub(crate) fn record_send(&self) {
        self.sent.set(Instant::now());
        self.end_trial();
    }

    pub(super) fn end_trial(&self) {
        if self.is_trial.take() {
            self.member.health.end_trial();
        }
    }

    /// Records the endpoint's latency when the first byte of the response, or its end, has arrived.
    pub(crate) fn record_latency(&self) {
        if !self.measured.replace(true) {
            let now = Instant::now();
            let load = &self.member.load;
            load.record(now - self.sent.get(), now);
        }
    }

    /// Whether the result of the request has an effect. Usually it has none, and responses need not
    /// be classified.
    pub(crate) fn needs_result(&self) -> bool {
        self.member.penalty.is_some() || self.member.breaker.is_some()
    }

    /// Whether the request probes the endpoint and has no result yet.
    pub(crate) fn is_probe(&self) -> bool {
        self.admission.get().is_some_and(Admission::is_probe)
    }

    /// Records the result of the request: the first one for the breaker, and each failure as a
    /// latency if the policy has a penalty. `retry_after` is when the endpoint asks to be tried
    /// again.
    pub(crate) fn record_result(&self, outcome: Outcome, retry_after: Option<Duration>) {
        let now = Instant::now();
        if outcome != Outcome::Success {
            self.penalize(retry_after, now);
        }
        let (Some(breaker), Some(admission)) = (&self.member.breaker, self.admission.take()) else {
            return;
        };
        let change = breaker.record(admission, outcome, retry_after, now, random::random);
        if let Some(change) = change {
            self.report(change);
        }
    }

    /// Whether the endpoint has neither failed to be reached nor is it being probed.
    pub(super) fn is_settled(&self) -> bool {
        let breaker = self.member.breaker.as_deref();
        self.member.health.retry_at().is_none() && breaker.is_none_or(Breaker::is_closed)
    }

    /// Records a failure as a latency of at least the penalty.
    fn penalize(&self, retry_after: Option<Duration>, now: Instant) {
        let Some(policy) = self.member.penalty else {
            return;
        };
        let asked = retry_after.map_or(Duration::ZERO, |it| it.min(policy.max_retry_after));
        let measured = now - self.sent.get();
        let latency = measured.max(policy.penalty).max(asked);
        self.member.load.record(latency, now);
        self.measured.set(true);
    }

    fn report(&self, change: Change) {
        let addr = self.member.endpoint.addr;
        match change {
            Change::Opened { cause, backoff } => {
                if let Some(metrics) = &self.member.breaker_metrics {
                    metrics.opened(cause);
                }
                if cause == Cause::FailedProbe {
                    tracing::debug!(%addr, ?backoff, "Endpoint failed again");
                } else {
                    tracing::info!(%addr, ?cause, ?backoff, "Endpoint is not used after failures");
                }
            }
            Change::Closed => tracing::info!(%addr, "Endpoint is used again"),
        }
    }
}

impl<T> Deref for PickedEndpoint<T> {
    type Target = Member<T>;

    fn deref(&self) -> &Member<T> {
        &self.member
    }
}

impl<T> Drop for PickedEndpoint<T> {
    fn drop(&mut self) {
        self.member.load.end();
        self.end_trial();
        // The client has cancelled its request, or the request was not sent.
        if let Some(breaker) = &self.member.breaker
            && let Some(admission) = self.admission.take()
        {
            breaker.abandon(admission);
        }
    }
}
