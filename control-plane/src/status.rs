//! The status of routes and policies, which tells users whether they have an effect.
//!
//! ```text
//!   source ── Change ──▶ StatusObjects ──▶ desired (pure) ──▶ patch (pure) ──▶ Writer
//! ```
//!
//! The index decides by the same rules which routes apply, from the objects alone: a status has no
//! influence on traffic (docs/adr/0040).

mod condition;
mod objects;
mod patch;
mod policy;
mod route;
mod written;

#[cfg(test)]
mod tests;

use mesh_objects::model::{ReportedObject, ReportedSpec, ReportedTarget};

use self::condition::Condition;
use self::route::ParentStatus;

pub(crate) use self::objects::StatusObjects;

/// The status that an object should have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DesiredStatus {
    Route(Vec<ParentStatus>),
    Policy {
        accepted: Condition,
        target: Option<ReportedTarget>,
    },
}

/// Returns the status that an object should have.
fn desired(objects: &StatusObjects, object: &ReportedObject) -> DesiredStatus {
    match &object.spec {
        ReportedSpec::Route(route) => DesiredStatus::Route(route::statuses(objects, object, route)),
        ReportedSpec::RateLimit(target) => DesiredStatus::Policy {
            accepted: policy::rate_limit(objects, object, target),
            target: Some(target.clone()),
        },
        ReportedSpec::EgressNetwork(network) => DesiredStatus::Policy {
            accepted: policy::egress_network(objects, object, network.as_deref()),
            target: None,
        },
    }
}
