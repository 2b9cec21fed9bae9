//! Balances requests and connections over the endpoints of one destination, on one data thread.
//!
//! [`Balancer`] holds the endpoints and picks between two random ones by load ([`p2c`], [`ewma`]).
//! [`BalanceQueue`] adds the stream of endpoint sets, the limit of queued requests and fail-fast.
//! Each thread has its own balancers, so nothing here is locked, and a pick is a plain function
//! call. The threads share only the circuit breakers of endpoints ([`breaker`], [`breakers`]), if
//! the policy has failure accrual.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::resilience::{Backoff, FailurePenalty, PeakEwma};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use self::breaker::Breaker;
use self::ewma::Load;
use self::health::Health;
use crate::telemetry::balancer::BalancerMetrics;
use crate::telemetry::breaker::BreakerMetrics;

mod breaker;
mod breakers;
mod ewma;
mod fail_fast;
mod health;
mod p2c;
mod picked;
mod queue;

pub(crate) use self::breaker::Outcome;
pub(crate) use self::breakers::{Breakers, CircuitBreaking};
pub(crate) use self::fail_fast::{FailFastGate, QueueError};
pub(crate) use self::picked::PickedEndpoint;
pub(crate) use self::queue::{BalanceQueue, BalanceSettings};

/// The endpoints of one destination. `T` is the caller's state per endpoint, such as a client and
/// metric handles. It is created when the endpoint is first picked, because a service may have
/// hundreds of endpoints, and this pod uses a few.
pub(crate) struct Balancer<T> {
    ewma: PeakEwma,
    backoff: Backoff,
    new_value: Box<NewValue<T>>,
    /// Sorted by address.
    members: RefCell<Vec<Rc<Member<T>>>>,
    rng: RefCell<SmallRng>,
    /// `None`: responses do not make endpoints unavailable.
    circuit: Option<CircuitBreaking>,
    /// The changes of the breakers that the gauges reflect.
    seen_changes: Cell<u64>,
    /// When an endpoint was last tried or failed while all were excluded.
    last_trial: Cell<Option<Instant>>,
    metrics: BalancerMetrics,
    /// This balancer's part of the shared gauges.
    counted: Cell<MemberCounts>,
}

/// The time between two requests that try an endpoint while all are excluded because they could not
/// be reached. The back-off of one that is alone would keep its clients out for longer than it is
/// away; the first pause of the default back-off is as long.
const TRIAL_INTERVAL: Duration = Duration::from_millis(100);

/// Creates the caller's state of an endpoint.
type NewValue<T> = dyn Fn(&Arc<Endpoint>) -> T;

/// One endpoint.
pub(crate) struct Member<T> {
    pub(crate) endpoint: Arc<Endpoint>,
    value: OnceCell<Rc<T>>,
    load: Load,
    penalty: Option<FailurePenalty>,
    health: Health,
    breaker: Option<Arc<Breaker>>,
    breaker_metrics: Option<Rc<BreakerMetrics>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MemberCounts {
    ready: usize,
    pending: usize,
}

impl<T> Balancer<T> {
    pub(crate) fn new(
        ewma: PeakEwma,
        backoff: Backoff,
        circuit: Option<CircuitBreaking>,
        metrics: BalancerMetrics,
        seed: u64,
        new_value: impl Fn(&Arc<Endpoint>) -> T + 'static,
    ) -> Self {
        Self {
            ewma,
            backoff,
            new_value: Box::new(new_value),
            members: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            circuit,
            seen_changes: Cell::default(),
            last_trial: Cell::default(),
            metrics,
            counted: Cell::default(),
        }
    }

    /// Replaces the set of endpoints by `endpoints`, which must be sorted by address. Unchanged
    /// endpoints keep their connections and measurements. Returns whether an address was added.
    pub(crate) fn update(&self, endpoints: &[Arc<Endpoint>]) -> bool {
        let now = Instant::now();
        let mut members = self.members.borrow_mut();
        let old = std::mem::take(&mut *members);
        members.reserve_exact(endpoints.len());
        let (mut added, mut has_new_addr) = (0, false);
        for endpoint in endpoints {
            let before = old.binary_search_by_key(&endpoint.addr, |member| member.endpoint.addr);
            has_new_addr |= before.is_err();
            let kept = before
                .ok()
                .map(|at| &old[at])
                .filter(|member| is_same(&member.endpoint, endpoint));
            members.push(match kept {
                Some(member) => member.clone(),
                None => {
                    added += 1;
                    let circuit = self.circuit.as_ref();
                    Rc::new(Member {
                        value: OnceCell::new(),
                        endpoint: endpoint.clone(),
                        load: Load::new(&self.ewma, now),
                        penalty: self.ewma.penalty,
                        health: Health::default(),
                        breaker: circuit.map(|it| it.breakers.breaker(endpoint)),
                        breaker_metrics: circuit.map(|it| it.metrics.clone()),
                    })
                }
            });
        }
        let removed = old.len() + added - members.len();
        drop((members, old));
        if let Some(circuit) = &self.circuit {
            circuit.breakers.forget_removed();
        }
        self.metrics.added.inc_by(added as u64);
        self.metrics.removed.inc_by(removed as u64);
        if endpoints.is_empty() && removed > 0 {
            self.metrics.reset.inc();
        }
        self.update_gauges(now);
        has_new_addr
    }

    /// Returns the less loaded of two random available endpoints. `avoid`, and an endpoint that
    /// another request is trying, are picked only if no other is available. If none is, one request
    /// each [`TRIAL_INTERVAL`] gets one that could not be reached.
    pub(crate) fn pick(
        &self,
        now: Instant,
        avoid: Option<SocketAddr>,
    ) -> Option<PickedEndpoint<T>> {
        if let Some(circuit) = &self.circuit {
            self.notice_changes(circuit, now);
        }
        loop {
            let member = match self.choose(now, avoid) {
                Some(member) => member,
                None => self.choose_excluded(now)?,
            };
            let admission = match &member.breaker {
                None => None,
                // Another thread may have sent the probe, so that the endpoint is not available.
                Some(breaker) => match breaker.admit(now) {
                    None => continue,
                    admission => admission,
                },
            };
            let new_value = || Rc::new((self.new_value)(&member.endpoint));
            let value = member.value.get_or_init(new_value).clone();
            member.load.begin();
            let is_trial = member.health.begin_attempt();
            return Some(PickedEndpoint {
                value,
                member,
                since: now,
                sent: Cell::new(now),
                measured: Cell::new(false),
                admission: Cell::new(admission),
                is_trial: Cell::new(is_trial),
            });
        }
    }

    fn choose(&self, now: Instant, avoid: Option<SocketAddr>) -> Option<Rc<Member<T>>> {
        let members = self.members.borrow();
        let is_preferred = |member: &Member<T>| {
            !member.health.is_tried() && avoid.is_none_or(|it| it != member.endpoint.addr)
        };
        // A loop of two rounds, not two calls, so that the choice is compiled into it.
        for is_last in [false, true] {
            let index = p2c::pick(
                members.len(),
                &mut *self.rng.borrow_mut(),
                |index| {
                    let member = &members[index];
                    member.is_available(now) && (is_last || is_preferred(member))
                },
                |index| members[index].cost(now),
            );
            if let Some(index) = index {
                return Some(members[index].clone());
            }
        }
        None
    }

    /// Returns the endpoint whose back-off ends first, if a trial is due.
    fn choose_excluded(&self, now: Instant) -> Option<Rc<Member<T>>> {
        self.next_trial(now).filter(|at| *at <= now)?;
        self.last_trial.set(Some(now));
        let members = self.members.borrow();
        let excluded = members.iter().filter(|member| member.may_be_tried(now));
        let member = excluded.min_by_key(|member| member.health.tried_at())?;
        member.health.record_trial(now);
        Some(member.clone())
    }

    /// Returns when an endpoint that could not be reached may be tried although its back-off has
    /// not elapsed; `None` if another one is available, or the breakers of all are open.
    fn next_trial(&self, now: Instant) -> Option<Instant> {
        let members = self.members.borrow();
        let may_be_tried = members.iter().any(|member| member.may_be_tried(now));
        if !may_be_tried || members.iter().any(|member| member.is_available(now)) {
            return None;
        }
        let last = self.last_trial.get();
        Some(last.map_or(now, |last| last + TRIAL_INTERVAL))
    }

    /// Whether a request would get an endpoint now although none is available.
    pub(crate) fn is_trial_due(&self, now: Instant) -> bool {
        self.next_trial(now).is_some_and(|at| at <= now)
    }

    /// Returns when the next unavailable endpoint may be tried again.
    pub(crate) fn next_available(&self, now: Instant) -> Option<Instant> {
        let members = self.members.borrow();
        let available = members.iter().filter_map(|m| m.retry_at()).min();
        [available, self.next_trial(now)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Completes when an endpoint has been taken out of rotation or returned to it, by any thread.
    /// `None` if responses have no such effect.
    pub(crate) fn breaker_change(&self) -> Option<Notified<'_>> {
        let circuit = self.circuit.as_ref()?;
        Some(circuit.breakers.group().changed())
    }

    pub(crate) fn has_available(&self, now: Instant) -> bool {
        let members = self.members.borrow();
        members.iter().any(|m| m.is_available(now))
    }

    /// Whether an endpoint other than `addr` is available.
    pub(crate) fn has_other(&self, addr: SocketAddr, now: Instant) -> bool {
        let members = self.members.borrow();
        let mut others = members.iter().filter(|m| m.endpoint.addr != addr);
        others.any(|m| m.is_available(now))
    }

    /// Records that the endpoint could not be reached. It is not picked until its back-off, which
    /// grows with each failure, has elapsed.
    pub(crate) fn mark_failed(&self, picked: &PickedEndpoint<T>, now: Instant) {
        picked.end_trial();
        let health = &picked.member.health;
        health.fail(now, &self.backoff, &mut *self.rng.borrow_mut());
        self.last_trial.set(Some(now));
        self.update_gauges(now);
    }

    /// Records that the endpoint was reached. Returns whether it had failed before.
    pub(crate) fn mark_reached(&self, picked: &PickedEndpoint<T>) -> bool {
        picked.end_trial();
        let recovered = picked.member.health.succeed(picked.since);
        if recovered {
            self.update_gauges(Instant::now());
        }
        recovered
    }

    /// Counts the endpoints again after any thread has recorded a change of a breaker.
    fn notice_changes(&self, circuit: &CircuitBreaking, now: Instant) {
        let changes = circuit.breakers.group().changes();
        if self.seen_changes.replace(changes) != changes {
            self.update_gauges(now);
        }
    }

    fn update_gauges(&self, now: Instant) {
        let is_ready = |member: &&Rc<Member<T>>| {
            let breaker = member.breaker.as_deref();
            member.health.is_available(now) && breaker.is_none_or(Breaker::is_closed)
        };
        let members = self.members.borrow();
        let ready = members.iter().filter(is_ready).count();
        self.set_counts(MemberCounts {
            ready,
            pending: members.len() - ready,
        });
    }

    /// Adds the difference to the gauges, which the other threads' balancers share.
    fn set_counts(&self, new: MemberCounts) {
        let old = self.counted.replace(new);
        let difference = |new: usize, old: usize| new as i64 - old as i64;
        let ready = difference(new.ready, old.ready);
        let pending = difference(new.pending, old.pending);
        self.metrics.ready.add(ready);
        self.metrics.pending.add(pending);
        self.metrics.p2c_endpoints.add(ready + pending);
    }
}

impl<T> Member<T> {
    fn is_available(&self, now: Instant) -> bool {
        self.health.is_available(now) && self.may_be_tried(now)
    }

    /// Whether its breaker allows a request, even if it could not be reached.
    fn may_be_tried(&self, now: Instant) -> bool {
        match &self.breaker {
            None => true,
            Some(breaker) => breaker.is_available(now),
        }
    }

    /// Returns when an unavailable endpoint may be tried again.
    fn retry_at(&self) -> Option<Instant> {
        let breaker = self.breaker.as_ref();
        let probe_at = breaker.and_then(|breaker| breaker.retry_at());
        self.health.retry_at().max(probe_at)
    }

    /// Returns the load divided by the weight: an endpoint with ten times the weight receives ten
    /// times the load at the same cost.
    fn cost(&self, now: Instant) -> f64 {
        self.load.cost(now) / f64::from(self.endpoint.weight.max(1))
    }
}

impl<T> Drop for Balancer<T> {
    fn drop(&mut self) {
        self.set_counts(MemberCounts::default());
    }
}

/// Whether an endpoint is unchanged. Snapshots usually share unchanged endpoints.
fn is_same(old: &Arc<Endpoint>, new: &Arc<Endpoint>) -> bool {
    Arc::ptr_eq(old, new) || old == new
}

#[cfg(test)]
mod tests;
