//! Balancing requests and connections over the endpoints of one destination, on one data thread.
//!
//! [`Balancer`] holds the endpoints and picks between two random ones by load ([`p2c`], [`ewma`]);
//! [`Service`] adds what waiting needs: the stream of endpoint sets, the limit of waiting requests
//! and fail-fast. Each thread has balancers of its own, so nothing here is shared or locked, and a
//! pick is a plain function call.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::resilience::{Backoff, PeakEwma};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tokio::time::Instant;

use self::ewma::Load;
use self::health::Health;
use crate::telemetry::balancer::Balancer as Metrics;

mod ewma;
mod gate;
mod health;
mod p2c;
mod service;

pub use self::gate::{Gate, Refusal};
pub use self::service::{Service, Settings};

/// The endpoints of one destination. `T` is what the caller keeps per endpoint: a client, metric
/// handles. It is made when the endpoint is first picked: a service may have hundreds of endpoints
/// of which this pod uses a few.
pub struct Balancer<T> {
    ewma: PeakEwma,
    backoff: Backoff,
    make: Box<Make<T>>,
    /// In order of address.
    members: RefCell<Vec<Rc<Member<T>>>>,
    rng: RefCell<SmallRng>,
    metrics: Metrics,
    /// How many members the gauges show, so that they can be taken back.
    shown: Cell<Shown>,
}

/// Makes what the caller keeps per endpoint.
type Make<T> = dyn Fn(&Arc<Endpoint>) -> T;

/// One endpoint.
pub struct Member<T> {
    pub endpoint: Arc<Endpoint>,
    value: OnceCell<Rc<T>>,
    load: Load,
    health: Health,
}

/// An endpoint that was picked. While it lives, it counts as one more in flight.
pub struct Picked<T> {
    pub value: Rc<T>,
    member: Rc<Member<T>>,
    ewma: PeakEwma,
    since: Instant,
    /// When the request was sent, on a connection that was there by then.
    sent: Cell<Instant>,
    measured: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shown {
    ready: usize,
    pending: usize,
}

impl<T> Balancer<T> {
    pub fn new(
        ewma: PeakEwma,
        backoff: Backoff,
        metrics: Metrics,
        seed: u64,
        make: impl Fn(&Arc<Endpoint>) -> T + 'static,
    ) -> Self {
        Self {
            ewma,
            backoff,
            make: Box::new(make),
            members: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            metrics,
            shown: Cell::default(),
        }
    }

    /// Takes over a new set of endpoints, in order of address. Endpoints that did not change keep
    /// their connections and measurements. Returns whether there is an address among them that was
    /// not there before.
    pub fn update(&self, endpoints: &[Arc<Endpoint>]) -> bool {
        let now = Instant::now();
        let mut members = self.members.borrow_mut();
        let old = std::mem::take(&mut *members);
        members.reserve_exact(endpoints.len());
        let (mut added, mut has_new) = (0, false);
        for endpoint in endpoints {
            let before = old.binary_search_by_key(&endpoint.addr, |member| member.endpoint.addr);
            has_new |= before.is_err();
            let kept = before
                .ok()
                .map(|at| &old[at])
                .filter(|member| same(&member.endpoint, endpoint));
            members.push(match kept {
                Some(member) => member.clone(),
                None => {
                    added += 1;
                    Rc::new(Member {
                        value: OnceCell::new(),
                        endpoint: endpoint.clone(),
                        load: Load::new(self.ewma.default_rtt, now),
                        health: Health::default(),
                    })
                }
            });
        }
        let removed = old.len() + added - members.len();
        drop(members);
        self.metrics.added.inc_by(added as u64);
        self.metrics.removed.inc_by(removed as u64);
        if endpoints.is_empty() && removed > 0 {
            self.metrics.reset.inc();
        }
        self.show(now);
        has_new
    }

    /// The less loaded of two random endpoints that can be used now. `avoid` is picked only if
    /// there is no other.
    pub fn pick(&self, now: Instant, avoid: Option<SocketAddr>) -> Option<Picked<T>> {
        let members = self.members.borrow();
        let pick = |avoid: Option<SocketAddr>| {
            p2c::pick(
                members.len(),
                &mut *self.rng.borrow_mut(),
                |index| {
                    let member = &members[index];
                    member.health.is_available(now) && avoid != Some(member.endpoint.addr)
                },
                |index| members[index].cost(now, self.ewma.decay),
            )
        };
        let index = pick(avoid).or_else(|| avoid.and_then(|_| pick(None)))?;
        let member = members[index].clone();
        drop(members);
        let make = || Rc::new((self.make)(&member.endpoint));
        let value = member.value.get_or_init(make).clone();
        member.load.begin();
        Some(Picked {
            value,
            member,
            ewma: self.ewma,
            since: now,
            sent: Cell::new(now),
            measured: false,
        })
    }

    /// When an endpoint that cannot be used now may be tried again.
    pub fn next_available(&self) -> Option<Instant> {
        let members = self.members.borrow();
        members.iter().filter_map(|m| m.health.retry_at()).min()
    }

    pub fn has_available(&self, now: Instant) -> bool {
        let members = self.members.borrow();
        members.iter().any(|m| m.health.is_available(now))
    }

    /// The endpoint could not be reached: it is not picked until its back-off is over, and longer
    /// each time.
    pub fn mark_failed(&self, picked: &Picked<T>, now: Instant) {
        let health = &picked.member.health;
        health.fail(now, &self.backoff, &mut *self.rng.borrow_mut());
        self.show(now);
    }

    /// The endpoint works. Returns whether that is news.
    pub fn mark_reached(&self, picked: &Picked<T>) -> bool {
        let recovered = picked.member.health.succeed(picked.since);
        if recovered {
            self.show(Instant::now());
        }
        recovered
    }

    fn show(&self, now: Instant) {
        let members = self.members.borrow();
        let ready = members
            .iter()
            .filter(|m| m.health.is_available(now))
            .count();
        let shows = Shown {
            ready,
            pending: members.len() - ready,
        };
        self.show_as(shows);
    }

    /// Other threads show their members in the same gauges, so only the difference is added.
    fn show_as(&self, shows: Shown) {
        let showed = self.shown.replace(shows);
        let difference = |new: usize, old: usize| new as i64 - old as i64;
        let ready = difference(shows.ready, showed.ready);
        let pending = difference(shows.pending, showed.pending);
        self.metrics.ready.add(ready);
        self.metrics.pending.add(pending);
        self.metrics.p2c_endpoints.add(ready + pending);
    }
}

impl<T> Member<T> {
    /// Its load for each part of its weight: who weighs ten times as much carries ten times as much
    /// before it counts as busier.
    fn cost(&self, now: Instant, decay: Duration) -> f64 {
        self.load.cost(now, decay) / f64::from(self.endpoint.weight.max(1))
    }
}

impl<T> Drop for Balancer<T> {
    fn drop(&mut self) {
        self.show_as(Shown::default());
    }
}

impl<T> Picked<T> {
    /// A connection is there and the request is about to be sent. The handshake before it says
    /// nothing about the latency of requests, and would keep a new endpoint unused until it is
    /// forgotten.
    pub fn sends(&self) {
        self.sent.set(Instant::now());
    }

    /// The first byte of the answer, or its end, has arrived: how long it took is the endpoint's
    /// latency.
    pub fn measure(&mut self) {
        if !std::mem::replace(&mut self.measured, true) {
            let now = Instant::now();
            let load = &self.member.load;
            load.record(now - self.sent.get(), now, self.ewma.decay);
        }
    }
}

impl<T> Deref for Picked<T> {
    type Target = Member<T>;

    fn deref(&self) -> &Member<T> {
        &self.member
    }
}

impl<T> Drop for Picked<T> {
    fn drop(&mut self) {
        self.member.load.end();
    }
}

/// Whether nothing about an endpoint has changed. Snapshots usually share what did not change.
fn same(old: &Arc<Endpoint>, new: &Arc<Endpoint>) -> bool {
    Arc::ptr_eq(old, new) || old == new
}

#[cfg(test)]
mod tests;
