//! ServiceProfiles.

use mesh_k8s::profile::ProfileRules;

use super::Name;

/// A ServiceProfile. It has the name of its destination: the full name of a Service, or a name
/// outside the cluster. It is in the namespace of the Service, or of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceProfile {
    pub name: Name,
    pub rules: ProfileRules,
}
