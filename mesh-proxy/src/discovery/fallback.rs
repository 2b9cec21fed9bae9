//! Synthesizes the policy of a destination that the policy service does not know.

use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{BackendTarget, OutboundPolicy};
use mesh_core::profile::Profile;

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
    Some(OutboundPolicy::forwarding(&meta, target, detect_timeout))
}
