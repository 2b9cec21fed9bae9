//! The rights at both API servers.

use mesh_cluster::api_server::lease_rights;
use mesh_core::rights::{self, Right};

/// Returns the rights of the process of a Link in its own cluster. The names of Secret and Lease
/// are for the Link `target`.
pub(crate) fn of_link(creates_namespaces: bool) -> impl Iterator<Item = Right> {
    let read = &["list", "watch"];
    writing(creates_namespaces)
        .chain(rights::all("", "endpoints", WRITE))
        .chain(rights::named(
            "",
            "secrets",
            read,
            "cluster-credentials-target",
        ))
        .chain(rights::all("multicluster.linkerd.io", "links", read))
        .chain(rights::all(
            "multicluster.linkerd.io",
            "links/status",
            &["patch"],
        ))
        .chain(lease_rights("service-mirror-write-target"))
}

/// Returns the rights of the process for the cluster's own members of federated Services.
pub(crate) fn of_local_members() -> impl Iterator<Item = Right> {
    writing(false)
        .chain(rights::all("", "events", &["create"]))
        .chain(lease_rights("local-service-mirror-write"))
}

/// Returns the rights in the target cluster, which the accounts that Linkerd makes for links have.
pub(crate) fn of_target() -> impl Iterator<Item = Right> {
    let read = &["list", "watch"];
    rights::all("", "services", read)
        .chain(rights::all("discovery.k8s.io", "endpointslices", read))
        .chain(rights::all("", "events", &["create"]))
}

const WRITE: &[&str] = &["list", "watch", "create", "update", "delete"];

fn writing(creates_namespaces: bool) -> impl Iterator<Item = Right> {
    let create = creates_namespaces.then(|| rights::all("", "namespaces", &["create"]));
    rights::all("", "services", WRITE)
        // A Service is read before it is changed.
        .chain(rights::all("", "services", &["get"]))
        .chain(rights::all("", "namespaces", &["list", "watch"]))
        .chain(create.into_iter().flatten())
}
