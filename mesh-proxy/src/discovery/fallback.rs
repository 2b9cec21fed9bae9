//! Synthesizes the policy of a destination that the policy service does not know.

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

use super::Destination;

/// Returns a policy that sends everything to `backend`, else to the profile's endpoint, else to the
/// original destination. `None` if the destination is a name without any of these.
pub(super) fn policy(
    dst: &Destination,
    profile: Option<&Profile>,
    backend: Option<BackendTarget>,
    detect_timeout: Duration,
) -> Option<OutboundPolicy> {
    let parent = profile.and_then(|profile| profile.parent.clone());
    let endpoint = profile.and_then(|profile| profile.endpoint.clone());
    let meta = match (&backend, &endpoint) {
        (Some(BackendTarget::Balance { .. }), _) => {
            parent.unwrap_or_else(|| Meta::new_default("service"))
        }
        (_, Some(_)) => Meta::new_default("endpoint"),
        (_, None) => Meta::new_default("fallback"),
    };
    let target = match backend {
        Some(target) => target,
        None => {
            let endpoint = endpoint.or_else(|| dst.addr().map(Endpoint::plain))?;
            BackendTarget::Forward(Box::new(endpoint))
        }
    };
    Some(detect_policy(meta, target, detect_timeout))
}

/// Returns a policy that detects the protocol and sends everything to one backend.
fn detect_policy(meta: Meta, target: BackendTarget, timeout: Duration) -> OutboundPolicy {
    let backends = Distribution::FirstAvailable(vec![Arc::new(RouteBackend {
        backend: Backend {
            meta: meta.clone(),
            target,
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
                action: OutboundRule {
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
