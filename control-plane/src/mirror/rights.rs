//! The rights at both API servers.

use mesh_core::rights::{self, Right, service_mirror};

/// Returns the rights of the process of a Link in its own cluster. The names of Secret and Lease
/// are for the Link `target`.
pub(crate) fn of_link(creates_namespaces: bool) -> impl Iterator<Item = Right> {
    let own = service_mirror::in_namespace_of_link(
        "cluster-credentials-target",
        "service-mirror-write-target",
    );
    service_mirror::everywhere(creates_namespaces).chain(own)
}

/// Returns the rights of the process for the cluster's own members of federated Services.
pub(crate) fn of_local_members() -> impl Iterator<Item = Right> {
    service_mirror::members(false)
        .chain(rights::all("", "events", &["create"]))
        .chain(rights::lease("local-service-mirror-write"))
}
