//! One target of two answers: what the destination service says of an address (its profile) and
//! what the policy service says.
//!
//! [`settle`] is the only place where the two meet, and the rule for each way in which they can
//! contradict or lack each other; the rest of the proxy reads its result. The table is
//! docs/reference/outbound-targets.md.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, OutboundPolicy, OutboundProtocol, OutboundRule,
    RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::profile::{Profile, WeightedAuthority};
use mesh_core::resilience::PeakEwma;
use mesh_core::route::Route;

use super::{DiscoveryError, OutboundTarget, fallback};

/// What the destination service says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProfileAnswer {
    Profile(Box<Profile>),
    /// The address has no profile, or profiles are not asked for.
    None,
    /// The service cannot be asked now.
    Unavailable,
    /// It does not say, or says what cannot be used.
    Refused(String),
}

/// What the policy service says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PolicyAnswer {
    Policy(Box<OutboundPolicy>),
    /// It does not know the address.
    Unknown,
    Refused(String),
}

/// What connections to `dst` are to be. Nothing as long as it cannot be told whether the address
/// has a proxy: a connection in clear text to a proxy that expects TLS is worse than one that
/// waits.
pub(super) fn settle(
    dst: SocketAddr,
    profile: ProfileAnswer,
    policy: PolicyAnswer,
    detect_timeout: Duration,
) -> Option<Result<OutboundTarget, DiscoveryError>> {
    let mut policy = match policy {
        PolicyAnswer::Policy(policy) => Some(*policy),
        PolicyAnswer::Unknown => None,
        PolicyAnswer::Refused(reason) => {
            return Some(Err(DiscoveryError::Refused { dst, reason }));
        }
    };
    // A policy that sends connections on to where they were going does not know what is there.
    let directs = policy
        .as_mut()
        .is_some_and(|policy| passages(&mut policy.protocol, dst).is_empty());
    let profile = match profile {
        ProfileAnswer::Profile(profile) => Some(*profile),
        ProfileAnswer::None => None,
        ProfileAnswer::Unavailable | ProfileAnswer::Refused(_) if directs => None,
        ProfileAnswer::Unavailable => return None,
        ProfileAnswer::Refused(reason) => {
            return Some(Err(DiscoveryError::NoProfile { dst, reason }));
        }
    };
    let known = profile.as_ref().and_then(|profile| leads_to(profile, dst));
    let mut policy = match policy {
        Some(mut policy) => {
            if let Some(known) = known {
                for backend in passages(&mut policy.protocol, dst) {
                    Arc::make_mut(backend).backend.target = known.clone();
                }
            }
            policy
        }
        None => fallback::policy(dst, profile.as_ref(), known, detect_timeout),
    };
    if let Some(profile) = &profile {
        narrow(&mut policy.protocol, profile);
    }
    Some(Ok(OutboundTarget {
        addr: dst,
        policy,
        profile: profile.map(for_requests),
    }))
}

/// What is known of the address, where that is more than the address: the Service it belongs to, or
/// an endpoint with a proxy.
fn leads_to(profile: &Profile, dst: SocketAddr) -> Option<BackendTarget> {
    if let Some(endpoint) = &profile.endpoint {
        return endpoint
            .has_proxy()
            .then(|| BackendTarget::Forward(Box::new(endpoint.clone())));
    }
    let name = profile.fqn.as_ref()?;
    Some(BackendTarget::Balance {
        authority: format!("{name}:{}", dst.port()).into(),
        load: PeakEwma::default(),
    })
}

/// The backends that are the address itself, dialled in clear text.
fn passages(protocol: &mut OutboundProtocol, dst: SocketAddr) -> Vec<&mut Arc<RouteBackend>> {
    let is_passage = |backend: &&mut Arc<RouteBackend>| match &backend.backend.target {
        BackendTarget::Forward(endpoint) => endpoint.addr == dst && endpoint.tls.is_none(),
        BackendTarget::Balance { .. } | BackendTarget::None => false,
    };
    distributions(protocol)
        .into_iter()
        .flat_map(backends)
        .filter(is_passage)
        .collect()
}

fn distributions(protocol: &mut OutboundProtocol) -> Vec<&mut Distribution> {
    fn of_rules<M, T>(routes: &mut [Route<M, OutboundRule<T>>]) -> Vec<&mut Distribution> {
        let rules = routes.iter_mut().flat_map(|route| &mut route.rules);
        rules.map(|rule| &mut rule.then.backends).collect()
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

/// Lets the profile say what the policy leaves open: that connections are opaque where the policy
/// would find out, and how opaque ones are split where the policy lets them pass.
fn narrow(protocol: &mut OutboundProtocol, profile: &Profile) {
    if profile.opaque
        && let OutboundProtocol::Detect { opaque, .. } = protocol
    {
        *protocol = OutboundProtocol::Opaque(opaque.take());
    }
    let (OutboundProtocol::Detect { opaque, .. } | OutboundProtocol::Opaque(opaque)) = protocol
    else {
        return;
    };
    if let Some(route) = opaque
        && route.verdict == TcpVerdict::Forward
        && !profile.overrides.is_empty()
    {
        *route = TcpRoute {
            meta: Meta::new_default("profile"),
            backends: split(&profile.overrides),
            verdict: TcpVerdict::Forward,
        };
    }
}

/// A profile's split, in the form that policies give theirs.
fn split(overrides: &[WeightedAuthority]) -> Distribution {
    let backend = |to: &WeightedAuthority| RouteBackend {
        backend: Backend {
            meta: Meta::Default(to.authority.clone()),
            target: BackendTarget::Balance {
                authority: to.authority.clone(),
                load: PeakEwma::default(),
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

/// Routes of a profile that names neither a Service nor an endpoint say nothing of where requests
/// go; the policy does.
fn for_requests(mut profile: Profile) -> Profile {
    if profile.fqn.is_none() && profile.endpoint.is_none() {
        profile.routes.clear();
    }
    profile
}

#[cfg(test)]
mod tests;
