//! The register of all checks.

use super::framework::{Category, Check};
use super::{
    agents, control_plane, data_plane, identity, kubernetes, machine, multicluster, policy,
    repairs, setup, units, versions, viz, webhook,
};

/// All checks, in the order of the output.
pub(crate) const CATEGORIES: &[Category] = &[
    machine::CATEGORY,
    kubernetes::API,
    kubernetes::VERSION,
    kubernetes::GATEWAY_API,
    setup::CATEGORY,
    kubernetes::CRD,
    control_plane::EXISTENCE,
    control_plane::CONFIG,
    identity::CATEGORY,
    webhook::CATEGORY,
    agents::CATEGORY,
    repairs::CATEGORY,
    control_plane::PROXY,
    versions::CATEGORY,
    data_plane::CATEGORY,
    policy::CATEGORY,
    control_plane::HA,
    viz::EXTENSION,
    viz::DATA_PLANE,
    multicluster::CATEGORY,
    units::HOST,
    units::AGENT_OF_HOST,
    units::MEMBERSHIP,
    units::UNITS,
];

/// Returns all checks in the order of the output. A check may be part of two categories.
pub(super) fn checks() -> impl Iterator<Item = &'static Check> {
    CATEGORIES.iter().flat_map(|category| category.checks)
}
