//! Rate limits of inbound HTTP, enforced for the whole process: the data threads share the buckets.
//!
//! The algorithm is GCRA with a burst of one second's worth. Buckets belong to a policy and are
//! full again when it changes, as in Linkerd's proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ahash::AHashMap;
use mesh_core::identity::Identity;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{HttpServer, RateLimit, ServerPolicy, ServerProtocol};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The limiters of all ports; one in the process.
#[derive(Debug, Default)]
pub struct RateLimits {
    // Taken when a data thread takes over a new policy, never per request.
    ports: Mutex<AHashMap<u16, OfPort>>,
}

#[derive(Debug)]
struct OfPort {
    policy: Arc<ServerPolicy>,
    limiter: Arc<Limiter>,
}

/// The limits of one port under one policy.
#[derive(Debug)]
pub(super) struct Limiter {
    meta: Meta,
    started: Instant,
    total: Option<Bucket>,
    overrides: Vec<(Vec<Identity>, Bucket)>,
    identity_rate: Option<u32>,
    // Taken by requests to ports with a limit per identity, for one look-up.
    identities: Mutex<AHashMap<Option<Identity>, Bucket>>,
}

/// Which limit was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    Total(u32),
    Identity(u32),
}

/// One bucket: when, in nanoseconds since the limiter's start, all that was let through will have
/// been paid for.
#[derive(Debug)]
struct Bucket {
    rate: u32,
    paid_at: AtomicU64,
}

/// Buckets of identities above this number are looked through for full ones when another is added.
const SWEEP_IDENTITIES: usize = 1024;

impl RateLimits {
    /// The limiter of a port's policy, if it has limits.
    pub(super) fn of(&self, port: u16, policy: &Arc<ServerPolicy>) -> Option<Arc<Limiter>> {
        let limit = rate_limit(policy)?;
        let mut ports = self.ports.lock();
        if let Some(known) = ports
            .get(&port)
            .filter(|known| Arc::ptr_eq(&known.policy, policy))
        {
            return Some(known.limiter.clone());
        }
        let limiter = Arc::new(Limiter::new(limit));
        let of_port = OfPort {
            policy: policy.clone(),
            limiter: limiter.clone(),
        };
        ports.insert(port, of_port);
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
        let overrides = limit.overrides.iter();
        Self {
            meta: limit.meta.clone(),
            started: Instant::now(),
            total: limit.total.map(Bucket::new),
            overrides: overrides
                .map(|(identities, rate)| (identities.clone(), Bucket::new(*rate)))
                .collect(),
            identity_rate: limit.identity,
            identities: Mutex::default(),
        }
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Takes one request's worth from the buckets that apply: the total one, then that of the
    /// client. Clients without identity share one.
    pub(super) fn take(&self, client: Option<&Identity>) -> Result<(), Exceeded> {
        let now = self.started.elapsed();
        if let Some(total) = &self.total
            && !total.take(now)
        {
            return Err(Exceeded::Total(total.rate));
        }
        let overriding = |(identities, _): &&(Vec<Identity>, Bucket)| {
            client.is_some_and(|client| identities.contains(client))
        };
        if let Some((_, bucket)) = self.overrides.iter().find(overriding) {
            return match bucket.take(now) {
                true => Ok(()),
                false => Err(Exceeded::Identity(bucket.rate)),
            };
        }
        match self.identity_rate {
            Some(rate) if !self.take_of_identity(rate, client, now) => {
                Err(Exceeded::Identity(rate))
            }
            _ => Ok(()),
        }
    }

    fn take_of_identity(&self, rate: u32, client: Option<&Identity>, now: Duration) -> bool {
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
            paid_at: AtomicU64::new(0),
        }
    }

    fn take(&self, now: Duration) -> bool {
        const BURST: u64 = 1_000_000_000;
        if self.rate == 0 {
            return false;
        }
        let price = BURST / u64::from(self.rate);
        let now = now.as_nanos() as u64;
        self.paid_at
            .fetch_update(Relaxed, Relaxed, |paid_at| {
                let paid_at = paid_at.max(now) + price;
                (paid_at - now <= BURST).then_some(paid_at)
            })
            .is_ok()
    }

    fn is_full(&self, now: Duration) -> bool {
        self.paid_at.load(Relaxed) <= now.as_nanos() as u64
    }
}

#[cfg(test)]
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

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_one_second_then_the_rate() {
        let limiter = limiter(Some(10), None, &[]);
        assert_eq!(admitted(&limiter, None, 20), 10);
        assert_eq!(limiter.take(None), Err(Exceeded::Total(10)));
        tokio::time::advance(Duration::from_millis(300)).await;
        assert_eq!(admitted(&limiter, None, 20), 3);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            admitted(&limiter, None, 20),
            10,
            "no more than a burst is saved"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn identities_have_buckets_of_their_own_and_overrides_replace_them() {
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
    async fn a_rate_of_zero_admits_nothing() {
        assert_eq!(admitted(&limiter(Some(0), None, &[]), None, 3), 0);
    }
}
