//! The routes of a ServiceProfile: what they have instead of the settings of a policy's rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{Backend, BackendTarget, Distribution, RouteBackend, TcpVerdict};
use mesh_core::profile::{Profile, ProfileRoute, RequestMatch};
use mesh_core::resilience::{PeakEwma, Queue};

/// Returns the route of requests that match no other.
pub(super) fn default_route() -> ProfileRoute {
    ProfileRoute {
        condition: RequestMatch::All(Vec::new()),
        response_classes: Vec::new(),
        labels: BTreeMap::new(),
        retryable: false,
        timeout: None,
    }
}

/// Returns the backends of a ServiceProfile: its overrides, else the service, else the endpoint.
/// Never the bare address, because discovery drops the routes of a profile that has none of these.
pub(super) fn backends(profile: &Profile, name: Option<&str>, parent: &Meta) -> Distribution {
    let backend = |meta: Meta, target: BackendTarget| {
        Arc::new(RouteBackend {
            backend: Backend { meta, target },
            filters: Vec::new(),
            verdict: TcpVerdict::Forward,
        })
    };
    let balance = |authority: &str| BackendTarget::Balance {
        authority: authority.into(),
        load: PeakEwma::default(),
        queue: Queue::default(),
    };
    if !profile.overrides.is_empty() {
        let split = profile.overrides.iter().map(|to| {
            let meta = Meta::new_default(&to.authority);
            (backend(meta, balance(&to.authority)), to.weight)
        });
        return Distribution::RandomAvailable(split.collect());
    }
    let target = match (name, &profile.endpoint) {
        (Some(name), _) => balance(name),
        (None, Some(endpoint)) => BackendTarget::Forward(Box::new(endpoint.clone())),
        (None, None) => return Distribution::Empty,
    };
    Distribution::FirstAvailable(vec![backend(parent.clone(), target)])
}
