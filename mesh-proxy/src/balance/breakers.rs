//! The breakers of all backends of the process: the balancers of all threads get the same breaker
//! for the same endpoint of the same backend.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use ahash::AHashMap;
use mesh_core::endpoint::Endpoint;
use mesh_core::resilience::FailureAccrual;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::breaker::{Breaker, BreakerGroup, BreakerPolicy};
use crate::telemetry::breaker::BreakerMetrics;

/// One in the process.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    // Locked when a data thread compiles a policy, never per request.
    backends: Mutex<AHashMap<Arc<str>, Vec<Weak<BackendBreakers>>>>,
}

/// The breakers of one backend: one for each endpoint of the balancers that exist.
#[derive(Debug)]
pub(crate) struct BackendBreakers {
    group: Arc<BreakerGroup>,
    // Locked when a balancer receives another set of endpoints, never per request.
    endpoints: Mutex<AHashMap<SocketAddr, EndpointBreaker>>,
}

/// The breakers that a balancer uses, and where it counts.
#[derive(Clone, Debug)]
pub(crate) struct CircuitBreaking {
    pub(super) breakers: Arc<BackendBreakers>,
    pub(super) metrics: Rc<BreakerMetrics>,
}

#[derive(Debug)]
struct EndpointBreaker {
    /// Another pod with the same address has another breaker.
    endpoint: Arc<Endpoint>,
    breaker: Weak<Breaker>,
}

impl Breakers {
    /// Returns the breakers of the backend with these endpoints and settings, or `None` if the
    /// settings have no criterion. Other settings for the same endpoints have other breakers.
    pub(crate) fn backend(
        &self,
        authority: &Arc<str>,
        accrual: &FailureAccrual,
    ) -> Option<Arc<BackendBreakers>> {
        let policy = BreakerPolicy::new(accrual)?;
        let mut backends = self.backends.lock();
        let existing = backends.get(authority).into_iter().flatten();
        let same = existing
            .filter_map(Weak::upgrade)
            .find(|backend| *backend.group.policy() == policy);
        if same.is_some() {
            return same;
        }
        backends.retain(|_, of_authority| {
            of_authority.retain(|backend| backend.strong_count() > 0);
            !of_authority.is_empty()
        });
        let new = Arc::new(BackendBreakers {
            group: Arc::new(BreakerGroup::new(policy, Instant::now())),
            endpoints: Mutex::default(),
        });
        let of_authority = backends.entry(authority.clone()).or_default();
        of_authority.push(Arc::downgrade(&new));
        Some(new)
    }
}

impl BackendBreakers {
    /// Returns the breaker of an endpoint, shared with the balancers that have the same endpoint.
    pub(super) fn breaker(&self, endpoint: &Arc<Endpoint>) -> Arc<Breaker> {
        let mut endpoints = self.endpoints.lock();
        if let Some(existing) = endpoints.get(&endpoint.addr)
            && super::is_same(&existing.endpoint, endpoint)
            && let Some(breaker) = existing.breaker.upgrade()
        {
            return breaker;
        }
        let breaker = Arc::new(Breaker::new(self.group.clone()));
        let new = EndpointBreaker {
            endpoint: endpoint.clone(),
            breaker: Arc::downgrade(&breaker),
        };
        endpoints.insert(endpoint.addr, new);
        breaker
    }

    /// Forgets the endpoints that no balancer has any more.
    pub(super) fn forget_removed(&self) {
        let is_used = |_: &SocketAddr, it: &mut EndpointBreaker| it.breaker.strong_count() > 0;
        self.endpoints.lock().retain(is_used);
    }

    pub(super) fn group(&self) -> &BreakerGroup {
        &self.group
    }
}

impl CircuitBreaking {
    pub(crate) fn new(breakers: Arc<BackendBreakers>, metrics: BreakerMetrics) -> Self {
        Self {
            breakers,
            metrics: Rc::new(metrics),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_core::resilience::Backoff;

    use super::*;

    fn consecutive(max_failures: u32) -> FailureAccrual {
        FailureAccrual::ConsecutiveFailures {
            max_failures,
            backoff: Backoff {
                min: Duration::from_secs(1),
                max: Duration::from_secs(60),
                jitter: 0.0,
            },
        }
    }

    fn endpoint(last: u8) -> Endpoint {
        Endpoint::plain(([10, 0, 0, last], 80).into())
    }

    #[test]
    fn same_backend_and_endpoint_have_same_breaker() {
        let breakers = Breakers::default();
        let (web, api): (Arc<str>, Arc<str>) = ("web:80".into(), "api:80".into());
        let first = breakers.backend(&web, &consecutive(7)).unwrap();
        let again = breakers.backend(&web, &consecutive(7)).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        for other in [(&web, 8), (&api, 7)] {
            let other = breakers.backend(other.0, &consecutive(other.1)).unwrap();
            assert!(!Arc::ptr_eq(&first, &other));
        }
        assert!(breakers.backend(&web, &consecutive(0)).is_none());
        let last = breakers.backend(&web, &consecutive(7)).unwrap();
        assert!(Arc::ptr_eq(&first, &last), "new ones do not replace it");

        let one = first.breaker(&Arc::new(endpoint(1)));
        assert!(Arc::ptr_eq(&one, &again.breaker(&Arc::new(endpoint(1)))));
        assert!(!Arc::ptr_eq(&one, &first.breaker(&Arc::new(endpoint(2)))));
        let mut successor = endpoint(1);
        successor.labels = [("pod", "web-2")].into_iter().collect();
        assert!(!Arc::ptr_eq(&one, &first.breaker(&Arc::new(successor))));
    }

    #[test]
    fn unused_breakers_are_forgotten() {
        let breakers = Breakers::default();
        let web: Arc<str> = "web:80".into();
        let backend = breakers.backend(&web, &consecutive(7)).unwrap();
        let kept = backend.breaker(&Arc::new(endpoint(1)));
        drop(backend.breaker(&Arc::new(endpoint(2))));
        backend.forget_removed();
        assert_eq!(backend.endpoints.lock().len(), 1);
        drop((kept, backend));
        let _other = breakers.backend(&"api:80".into(), &consecutive(7));
        assert_eq!(breakers.backends.lock().len(), 1);
    }
}
