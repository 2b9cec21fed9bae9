//! Rate limits of inbound HTTP, enforced for the whole process: the data threads share the buckets.
//!
//! The algorithm is GCRA with a burst of one second. Buckets belong to a policy and are reset when
//! it changes, as in Linkerd's proxy.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ahash::AHashMap;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{HttpServer, RateLimit, ServerPolicy, ServerProtocol};
use tokio::time::Instant;

use crate::sync::Ordering::Relaxed;
use crate::sync::{AtomicU64, Mutex};

/// The limiters of all ports; one in the process.
#[derive(Debug, Default)]
pub(crate) struct RateLimits {
    // Locked when a data thread compiles a new policy, never per request.
    ports: Mutex<AHashMap<u16, PortLimiters>>,
}

/// The limiters of one port. While a policy is replaced, threads that have not read the new one yet
/// still ask for the limiter of the one before.
#[derive(Debug, Default)]
struct PortLimiters {
    existing: Vec<PolicyLimiter>,
    /// The last one that a thread asked for. Its buckets last while no connection is open.
    last: Option<Arc<Limiter>>,
}

#[derive(Debug)]
struct PolicyLimiter {
    policy: Weak<ServerPolicy>,
    limiter: Weak<Limiter>,
}

/// The limits of one port under one policy.
#[derive(Debug)]
pub(crate) struct Limiter {
    meta: Meta,
    started: Instant,
    total: Option<Bucket>,
    /// The bucket of each overridden client, which the clients of one override share.
    overrides: AHashMap<Identity, Arc<Bucket>>,
    identity_rate: Option<u32>,
    // Locked by requests to ports with a limit per identity, for one look-up.
    identities: Mutex<AHashMap<Option<Identity>, Bucket>>,
}

/// The limit that was exceeded, with its rate in requests per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Total(u32),
    Identity(u32),
}

/// One GCRA bucket.
#[derive(Debug)]
struct Bucket {
    rate: u32,
    /// Theoretical arrival time of the next request, in nanoseconds since the limiter's start.
    arrival: AtomicU64,
}

/// From this number of identities on, full buckets are removed before another is added.
const SWEEP_IDENTITIES: usize = 1024;

impl RateLimits {
    /// Returns the limiter of a port's policy, if it has limits.
    pub(crate) fn limiter(&self, port: u16, policy: &Arc<ServerPolicy>) -> Option<Arc<Limiter>> {
        let limit = rate_limit(policy)?;
        let mut ports = self.ports.lock();
        let PortLimiters { existing, last } = ports.entry(port).or_default();
        let same = existing
            .iter()
            .find(|it| std::ptr::eq(it.policy.as_ptr(), Arc::as_ptr(policy)));
        let limiter = same.and_then(|it| it.limiter.upgrade());
        let limiter = limiter.unwrap_or_else(|| {
            let limiter = Arc::new(Limiter::new(limit));
            existing.retain(|it| it.limiter.strong_count() > 0);
            existing.push(PolicyLimiter {
                policy: Arc::downgrade(policy),
                limiter: Arc::downgrade(&limiter),
            });
            limiter
        });
        *last = Some(limiter.clone());
        Some(limiter)
    }
}

fn rate_limit(policy: &ServerPolicy) -> Option<&RateLimit> {
    match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => {
            let HttpServer { rate_limit, .. } = http;
            rate_limit.as_ref()
        }
        ServerProtocol::Grpc(_) | ServerProtocol::Opaque | ServerProtocol::Tls => None,
    }
}

impl Limiter {
    fn new(limit: &RateLimit) -> Self {
        let mut overrides = AHashMap::new();
        for (identities, rate) in &limit.overrides {
            let bucket = Arc::new(Bucket::new(*rate));
            // As in Linkerd's proxy, the last override of a client applies.
            overrides.extend(identities.iter().map(|id| (id.clone(), bucket.clone())));
        }
        Self {
            meta: limit.meta.clone(),
            started: Instant::now(),
            total: limit.total.map(Bucket::new),
            overrides,
            identity_rate: limit.identity,
            identities: Mutex::default(),
        }
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Takes one request from the total bucket, then from the client's. Clients without identity
    /// share one bucket.
    pub(crate) fn take(&self, client: Option<&Identity>) -> Result<(), Exceeded> {
        let now = self.started.elapsed();
        if let Some(total) = &self.total
            && !total.take(now)
        {
            return Err(Exceeded::Total(total.rate));
        }
        if let Some(bucket) = client.and_then(|client| self.overrides.get(client)) {
            if !bucket.take(now) {
                return Err(Exceeded::Identity(bucket.rate));
            }
            return Ok(());
        }
        match self.identity_rate {
            Some(rate) if !self.take_identity(rate, client, now) => Err(Exceeded::Identity(rate)),
            _ => Ok(()),
        }
    }

    fn take_identity(&self, rate: u32, client: Option<&Identity>, now: Duration) -> bool {
        let mut identities = self.identities.lock();
        let client = client.cloned();
        if identities.len() >= SWEEP_IDENTITIES && !identities.contains_key(&client) {
            identities.retain(|_, bucket| !bucket.is_full(now));
        }
        identities
            .entry(client)
            .or_insert_with(|| Bucket::new(rate))
            .take(now)
    }
}

impl Bucket {
    fn new(rate: u32) -> Self {
        Self {
            rate,
            arrival: AtomicU64::new(0),
        }
    }

    fn take(&self, now: Duration) -> bool {
        const BURST: u64 = 1_000_000_000;
        if self.rate == 0 {
            return false;
        }
        let emission_interval = BURST / u64::from(self.rate);
        let now = now.as_nanos() as u64;
        self.arrival
            .fetch_update(Relaxed, Relaxed, |arrival| {
                let arrival = arrival.max(now) + emission_interval;
                (arrival - now <= BURST).then_some(arrival)
            })
            .is_ok()
    }

    fn is_full(&self, now: Duration) -> bool {
        self.arrival.load(Relaxed) <= now.as_nanos() as u64
    }
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn limiter(total: Option<u32>, identity: Option<u32>, overridden: &[(&str, u32)]) -> Limiter {
        Limiter::new(&RateLimit {
            meta: Meta::new_default("limit"),
            total,
            identity,
            overrides: overridden
                .iter()
                .map(|(id, rate)| (vec![Identity::parse(id).unwrap()], *rate))
                .collect(),
        })
    }

    fn admitted(limiter: &Limiter, client: Option<&str>, tries: usize) -> usize {
        let client = client.map(|id| Identity::parse(id).unwrap());
        (0..tries)
            .filter(|_| limiter.take(client.as_ref()).is_ok())
            .count()
    }

    fn http(total: u32) -> HttpServer {
        HttpServer {
            routes: Vec::new(),
            rate_limit: Some(RateLimit {
                meta: Meta::new_default("limit"),
                total: Some(total),
                identity: None,
                overrides: Vec::new(),
            }),
        }
    }

    fn policy(protocol: ServerProtocol) -> Arc<ServerPolicy> {
        Arc::new(ServerPolicy {
            meta: Meta::new_default("server"),
            protocol,
            authorizations: [].into(),
            is_terminating: false,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn limiter_allows_burst_of_one_second_then_rate() {
        let limiter = limiter(Some(10), None, &[]);
        assert_eq!(admitted(&limiter, None, 20), 10);
        assert_eq!(limiter.take(None), Err(Exceeded::Total(10)));
        tokio::time::advance(Duration::from_millis(300)).await;
        assert_eq!(admitted(&limiter, None, 20), 3);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            admitted(&limiter, None, 20),
            10,
            "at most one burst accumulates"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn identity_buckets_are_separate_and_replaced_by_overrides() {
        let limiter = limiter(None, Some(2), &[("vip.example", 5)]);
        assert_eq!(admitted(&limiter, Some("a.example"), 9), 2);
        assert_eq!(admitted(&limiter, Some("b.example"), 9), 2);
        assert_eq!(admitted(&limiter, Some("vip.example"), 9), 5);
        assert_eq!(
            admitted(&limiter, None, 9),
            2,
            "shared by all without identity"
        );
        assert_eq!(limiter.take(None), Err(Exceeded::Identity(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn clients_of_one_override_share_its_bucket() {
        let ids = |ids: &[&str]| ids.iter().map(|id| Identity::parse(id).unwrap()).collect();
        let limiter = Limiter::new(&RateLimit {
            meta: Meta::new_default("limit"),
            total: None,
            identity: Some(1),
            overrides: vec![
                (ids(&["a.example", "b.example", "c.example"]), 4),
                (ids(&["c.example"]), 6),
            ],
        });
        assert_eq!(admitted(&limiter, Some("a.example"), 3), 3);
        assert_eq!(admitted(&limiter, Some("b.example"), 9), 1);
        assert_eq!(admitted(&limiter, Some("c.example"), 9), 6, "the last one");
    }

    #[tokio::test(start_paused = true)]
    async fn total_is_taken_before_override_and_identity() {
        let limiter = limiter(Some(3), Some(2), &[("vip.example", 2)]);
        assert_eq!(admitted(&limiter, Some("vip.example"), 9), 2);
        // The refused requests have emptied the bucket of all.
        assert_eq!(limiter.take(None), Err(Exceeded::Total(3)));
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(admitted(&limiter, Some("vip.example"), 9), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn rate_of_zero_rejects_all_requests() {
        assert_eq!(admitted(&limiter(Some(0), None, &[]), None, 3), 0);
    }

    /// The bucket of a client that is forgotten is full, so that no client gains a request.
    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_removed_when_many_identities_are_known() {
        let limiter = limiter(None, Some(1), &[]);
        let take = |client: usize| admitted(&limiter, Some(&format!("c{client}.example")), 1) == 1;
        let known = || limiter.identities.lock().len();
        assert!((0..SWEEP_IDENTITIES - 1).all(take));
        tokio::time::advance(Duration::from_secs(1)).await;
        let (last, more) = (SWEEP_IDENTITIES - 1, SWEEP_IDENTITIES);
        assert!(take(last), "one less than the limit is kept");
        assert_eq!(known(), SWEEP_IDENTITIES);
        assert!(take(0), "a known client adds none");
        assert_eq!(known(), SWEEP_IDENTITIES);
        assert!(take(more));
        assert_eq!(known(), 3, "those that have taken within the second");
        for client in [0, last, more] {
            assert!(!take(client), "{client}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limiter_belongs_to_the_policy_of_its_port() {
        let limits = RateLimits::default();
        let first = policy(ServerProtocol::Http1(http(1)));
        let limiter = limits.limiter(80, &first).unwrap();
        assert_eq!(admitted(&limiter, None, 3), 1);
        let again = limits.limiter(80, &first).unwrap();
        assert_eq!(admitted(&again, None, 3), 0, "the data threads share it");
        let other = limits.limiter(81, &first).unwrap();
        assert_eq!(admitted(&other, None, 3), 1);
        let timeout = Duration::from_secs(1);
        for protocol in [
            ServerProtocol::Http2(http(2)),
            ServerProtocol::Detect {
                timeout,
                http: http(2),
            },
        ] {
            let limiter = limits.limiter(80, &policy(protocol)).unwrap();
            assert_eq!(admitted(&limiter, None, 3), 2, "a new policy resets it");
        }
        let unlimited = ServerProtocol::Http1(HttpServer::default());
        for protocol in [
            unlimited,
            ServerProtocol::Opaque,
            ServerProtocol::Grpc(Vec::new()),
        ] {
            assert!(limits.limiter(80, &policy(protocol)).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn limiter_of_a_replaced_policy_lasts_while_it_is_used() {
        let limits = RateLimits::default();
        let [first, second, third] = [1, 2, 3].map(|it| policy(ServerProtocol::Http1(http(it))));
        let limiter = limits.limiter(80, &first).unwrap();
        drop(limits.limiter(80, &second));
        let again = limits.limiter(80, &first).unwrap();
        assert!(
            Arc::ptr_eq(&limiter, &again),
            "a thread still has the first"
        );
        drop(limits.limiter(80, &third));
        let existing = limits.ports.lock()[&80].existing.len();
        assert_eq!(existing, 2, "no thread has the second");
    }
}
