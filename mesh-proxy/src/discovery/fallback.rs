//! The policy of a destination that the policy service knows nothing of.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::profile::Profile;
use mesh_core::resilience::Timeouts;
use mesh_core::route::Rule;

/// Forwards to the endpoint that the profile names, or else to where the application wanted to go.
pub(super) fn policy(
    addr: SocketAddr,
    profile: Option<&Profile>,
    detect_timeout: Duration,
) -> OutboundPolicy {
    match profile.and_then(|profile| profile.endpoint.as_ref()) {
        Some(endpoint) => forward("endpoint", endpoint.clone(), detect_timeout),
        None => forward("fallback", Endpoint::plain(addr), detect_timeout),
    }
}

fn forward(name: &str, endpoint: Endpoint, timeout: Duration) -> OutboundPolicy {
    let meta = Meta::new_default(name);
    let backends = Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
        backend: Backend {
            meta: meta.clone(),
            target: BackendTarget::Forward(Box::new(endpoint)),
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    })]);
    let http = HttpRoutes {
        routes: vec![HttpRoute {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                then: OutboundRule {
                    filters: Vec::new(),
                    backends: backends.clone(),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            }],
        }],
        failure_accrual: None,
    };
    OutboundPolicy {
        parent: meta.clone(),
        protocol: OutboundProtocol::Detect {
            timeout,
            opaque: Some(TcpRoute {
                meta,
                backends,
                verdict: TcpVerdict::Forward,
            }),
            http1: http.clone(),
            http2: http,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(policy: &OutboundPolicy) -> (&str, SocketAddr) {
        let OutboundProtocol::Detect {
            opaque: Some(route),
            ..
        } = &policy.protocol
        else {
            panic!("unknown destinations are detected");
        };
        let Distribution::FirstAvailable(backends) = &route.backends else {
            panic!("one backend");
        };
        match &backends[0].backend.target {
            BackendTarget::Forward(endpoint) => (policy.parent.name(), endpoint.addr),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_profiles_endpoint_comes_first() {
        let wanted: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let known: SocketAddr = "10.0.0.1:8080".parse().unwrap();
        let timeout = Duration::from_secs(10);
        let profile = Profile {
            endpoint: Some(Endpoint::plain(known)),
            ..Profile::default()
        };
        let empty = Profile::default();
        let check = |profile: Option<&Profile>, expect| {
            assert_eq!(target(&policy(wanted, profile, timeout)), expect);
        };
        check(None, ("fallback", wanted));
        check(Some(&empty), ("fallback", wanted));
        check(Some(&profile), ("endpoint", known));
    }
}
