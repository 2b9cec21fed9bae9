//! The random choice among weighted backends.

use std::sync::Arc;

use mesh_core::policy::outbound::RouteBackend;

use crate::random;

pub(super) fn pick_by_weight<'a>(
    backends: &[&'a (Arc<RouteBackend>, u32)],
) -> Option<&'a Arc<RouteBackend>> {
    let total: u64 = backends.iter().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return None;
    }
    let mut drawn = random::below(total);
    backends.iter().find_map(|(backend, weight)| {
        let hit = drawn < u64::from(*weight);
        drawn = drawn.saturating_sub(u64::from(*weight));
        hit.then_some(backend)
    })
}

#[cfg(test)]
mod tests {
    use mesh_core::meta::Meta;
    use mesh_core::policy::outbound::{Backend, BackendTarget, TcpVerdict};

    use super::*;

    #[test]
    fn backends_are_picked_by_weight() {
        let named = |name: &str, weight| {
            let backend = RouteBackend {
                backend: Backend {
                    meta: Meta::new_default(name),
                    target: BackendTarget::None,
                },
                filters: Vec::new(),
                verdict: TcpVerdict::Forward,
            };
            (Arc::new(backend), weight)
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
