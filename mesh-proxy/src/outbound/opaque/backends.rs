//! Which backends a connection may go to, where no route of the policy lists them, and the choice among weighted ones. Pure but for the dice.

use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Backend, BackendTarget, Distribution, RouteBackend, TcpVerdict};
use mesh_core::profile::WeightedAuthority;
use mesh_core::resilience::PeakEwma;
use rand::RngExt as _;

use crate::discovery::OutboundTarget;

/// A profile's split, in the form that policies give theirs.
pub(super) fn split_backends(split: &[WeightedAuthority]) -> Distribution {
    let backends = split.iter().map(|WeightedAuthority { authority, weight }| {
        let target = BackendTarget::Balance {
            authority: authority.clone(),
            load: PeakEwma::default(),
        };
        (
            route_backend(Meta::Default(authority.clone()), target),
            *weight,
        )
    });
    Distribution::RandomAvailable(backends.collect())
}

/// The endpoint that the profile names, or else the address itself.
pub(super) fn address_backend(target: &OutboundTarget) -> Distribution {
    let endpoint = target
        .profile
        .as_ref()
        .and_then(|profile| profile.endpoint.clone());
    let endpoint = endpoint.unwrap_or_else(|| Endpoint::plain(target.addr));
    let forward = BackendTarget::Forward(Box::new(endpoint));
    Distribution::FirstAvailable(vec![route_backend(Meta::new_default("endpoint"), forward)])
}

fn route_backend(meta: Meta, target: BackendTarget) -> Arc<RouteBackend> {
    Arc::new(RouteBackend {
        backend: Backend { meta, target },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    })
}

pub(super) fn pick_by_weight<'a>(
    backends: &[&'a (Arc<RouteBackend>, u32)],
) -> Option<&'a Arc<RouteBackend>> {
    let total: u64 = backends.iter().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return None;
    }
    let mut drawn = rand::rng().random_range(0..total);
    backends.iter().find_map(|(backend, weight)| {
        let hit = drawn < u64::from(*weight);
        drawn = drawn.saturating_sub(u64::from(*weight));
        hit.then_some(backend)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_shares() {
        let named = |name: &str, weight| {
            let meta = Meta::new_default(name);
            (route_backend(meta, BackendTarget::None), weight)
        };
        let backends = [named("rare", 1), named("never", 0), named("often", 9)];
        let all: Vec<_> = backends.iter().collect();
        let mut drawn = std::collections::BTreeMap::<_, usize>::new();
        for _ in 0..10_000 {
            let picked = pick_by_weight(&all).unwrap();
            *drawn
                .entry(picked.backend.meta.name().to_owned())
                .or_default() += 1;
        }
        // Ten standard deviations on either side of 1,000.
        assert!((700..1_300).contains(&drawn["rare"]), "{drawn:?}");
        assert_eq!(drawn.get("never"), None);
        assert!(pick_by_weight(&all[1..2]).is_none());
    }
}
