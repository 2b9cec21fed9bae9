//! Merges the destination service's profile and the policy service's policy of an address into one
//! target.
//!
//! Only [`merge`] decides between profile and policy if they contradict each other or one is
//! missing; the rest of the proxy uses its result. Its rules are documented in
//! docs/reference/outbound-targets.md.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, OutboundPolicy, OutboundProtocol, OutboundRule,
    RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::profile::{Profile, WeightedAuthority};
use mesh_core::resilience::{PeakEwma, Queue};
use mesh_core::route::Route;

use super::{Destination, DiscoveryError, OutboundTarget, TargetObject, fallback};

/// The destination service's response.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProfileResponse {
    Profile(Box<Profile>),
    /// The address has no profile, or is outside the profile networks.
    None,
    /// The service is unreachable.
    Unavailable,
    /// The service rejected the lookup or sent an invalid profile.
    Rejected(String),
}

/// The policy service's response.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PolicyResponse {
    Policy(Box<OutboundPolicy>),
    /// The service does not know the address.
    Unknown,
    /// The service rejected the lookup or sent an invalid policy.
    Rejected(String),
}

/// Merges profile and policy into the target of connections to `dst`. Returns `None` while it is
/// unknown whether the address has a proxy: waiting is better than a plaintext connection to a
/// proxy that expects TLS.
pub(super) fn merge(
    dst: &Destination,
    profile: ProfileResponse,
    policy: PolicyResponse,
    detect_timeout: Duration,
) -> Option<Result<OutboundTarget, DiscoveryError>> {
    let mut policy = match policy {
        PolicyResponse::Policy(policy) => Some(*policy),
        PolicyResponse::Unknown => None,
        PolicyResponse::Rejected(reason) => {
            return Some(Err(DiscoveryError::Refused {
                dst: dst.clone(),
                reason,
            }));
        }
    };
    // A policy with a passthrough backend does not tell the kind of the original destination.
    let identifies_dst = policy
        .as_mut()
        .is_some_and(|policy| passthrough_backends(&mut policy.protocol, dst).is_empty());
    let profile = match profile {
        ProfileResponse::Profile(profile) => Some(*profile),
        ProfileResponse::None => None,
        ProfileResponse::Unavailable | ProfileResponse::Rejected(_) if identifies_dst => None,
        ProfileResponse::Unavailable => return None,
        ProfileResponse::Rejected(reason) => {
            return Some(Err(DiscoveryError::NoProfile {
                dst: dst.clone(),
                reason,
            }));
        }
    };
    let target = profile
        .as_ref()
        .and_then(|profile| profile_target(profile, dst));
    let mut policy = match policy {
        Some(mut policy) => {
            if let Some(target) = target {
                for backend in passthrough_backends(&mut policy.protocol, dst) {
                    Arc::make_mut(backend).backend.target = target.clone();
                }
            }
            policy
        }
        None => match fallback::policy(dst, profile.as_ref(), target, detect_timeout) {
            Some(policy) => policy,
            None => return Some(Err(DiscoveryError::UnknownName { dst: dst.clone() })),
        },
    };
    if let Some(profile) = &profile {
        apply_profile(&mut policy.protocol, profile);
    }
    let object = TargetObject::of(profile.as_ref(), &policy.parent);
    Some(Ok(OutboundTarget {
        destination: dst.clone(),
        object,
        policy,
        retry_budget: None,
        profile: profile.map(without_ambiguous_routes),
    }))
}

/// Returns the Service that the address belongs to, or its endpoint if that has a proxy.
fn profile_target(profile: &Profile, dst: &Destination) -> Option<BackendTarget> {
    if let Some(endpoint) = &profile.endpoint {
        return endpoint
            .has_proxy()
            .then(|| BackendTarget::Forward(Box::new(endpoint.clone())));
    }
    let name = profile.fqn.as_ref()?;
    Some(BackendTarget::Balance {
        authority: format!("{name}:{}", dst.port()).into(),
        load: PeakEwma::default(),
        queue: Queue::default(),
    })
}

/// Returns the backends that forward to the original destination in plaintext.
fn passthrough_backends<'a>(
    protocol: &'a mut OutboundProtocol,
    dst: &Destination,
) -> Vec<&'a mut Arc<RouteBackend>> {
    let is_passthrough = |backend: &&mut Arc<RouteBackend>| match &backend.backend.target {
        BackendTarget::Forward(endpoint) => {
            Some(endpoint.addr) == dst.addr() && endpoint.tls.is_none()
        }
        BackendTarget::Balance { .. } | BackendTarget::None => false,
    };
    distributions(protocol)
        .into_iter()
        .flat_map(backends)
        .filter(is_passthrough)
        .collect()
}

fn distributions(protocol: &mut OutboundProtocol) -> Vec<&mut Distribution> {
    fn of_rules<M, T>(routes: &mut [Route<M, OutboundRule<T>>]) -> Vec<&mut Distribution> {
        let rules = routes.iter_mut().flat_map(|route| &mut route.rules);
        rules.map(|rule| &mut rule.action.backends).collect()
    }
    match protocol {
        OutboundProtocol::Detect {
            opaque,
            http1,
            http2,
            ..
        } => {
            let mut all = of_rules(&mut http1.routes);
            all.extend(of_rules(&mut http2.routes));
            all.extend(opaque.as_mut().map(|route| &mut route.backends));
            all
        }
        OutboundProtocol::Http1(http) | OutboundProtocol::Http2(http) => of_rules(&mut http.routes),
        OutboundProtocol::Grpc(grpc) => of_rules(&mut grpc.routes),
        OutboundProtocol::Opaque(route) => {
            route.iter_mut().map(|route| &mut route.backends).collect()
        }
        OutboundProtocol::Tls(routes) => {
            routes.iter_mut().map(|route| &mut route.backends).collect()
        }
    }
}

fn backends(distribution: &mut Distribution) -> Vec<&mut Arc<RouteBackend>> {
    match distribution {
        Distribution::Empty => Vec::new(),
        Distribution::FirstAvailable(backends) => backends.iter_mut().collect(),
        Distribution::RandomAvailable(backends) => {
            backends.iter_mut().map(|(backend, _)| backend).collect()
        }
    }
}

/// Applies the profile where the policy does not decide: connections are opaque where the policy
/// would detect the protocol, and opaque connections are split where the policy allows them.
fn apply_profile(protocol: &mut OutboundProtocol, profile: &Profile) {
    if let Some(route) = protocol.opaque(profile) {
        *protocol = OutboundProtocol::Opaque(route.cloned());
    }
    let (OutboundProtocol::Detect { opaque, .. } | OutboundProtocol::Opaque(opaque)) = protocol
    else {
        return;
    };
    if let Some(route) = opaque
        && route.is_split_by(profile)
    {
        *route = TcpRoute {
            meta: Meta::new_default("profile"),
            backends: override_backends(&profile.overrides),
            verdict: TcpVerdict::Forward,
        };
    }
}

/// Returns a profile's overrides as a policy's distribution.
fn override_backends(overrides: &[WeightedAuthority]) -> Distribution {
    let backend = |to: &WeightedAuthority| RouteBackend {
        backend: Backend {
            meta: Meta::Default(to.authority.clone()),
            target: BackendTarget::Balance {
                authority: to.authority.clone(),
                load: PeakEwma::default(),
                queue: Queue::default(),
            },
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    };
    let weighted = overrides
        .iter()
        .map(|to| (Arc::new(backend(to)), to.weight));
    Distribution::RandomAvailable(weighted.collect())
}

/// Removes the routes of a profile without Service and endpoint, because they have no backend; the
/// policy's routes apply.
fn without_ambiguous_routes(mut profile: Profile) -> Profile {
    if profile.fqn.is_none() && profile.endpoint.is_none() {
        profile.routes = Arc::default();
    }
    profile
}

#[cfg(test)]
mod tests;
