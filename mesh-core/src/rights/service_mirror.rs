//! The rights of the process that mirrors the Services of a Link's target. The service mirror lists
//! them, and `meshctl multicluster check` asks the API servers for each.

use std::borrow::Cow;

use super::{Right, all, lease, named};

const READ: &[&str] = &["list", "watch"];
const WRITE: &[&str] = &["list", "watch", "create", "update", "delete"];

/// Returns the rights in all namespaces of the own cluster, to write mirrors, and the namespaces of
/// mirrors if it `creates_namespaces`.
pub fn everywhere(creates_namespaces: bool) -> impl Iterator<Item = Right> {
    members(creates_namespaces).chain(all("", "endpoints", WRITE))
}

/// Returns the part of [`everywhere`] that the process for a cluster's own members of federated
/// Services has as well.
pub fn members(creates_namespaces: bool) -> impl Iterator<Item = Right> {
    let create = creates_namespaces.then(|| all("", "namespaces", &["create"]));
    all("", "services", WRITE)
        // A Service is read before it is changed.
        .chain(all("", "services", &["get"]))
        .chain(all("", "namespaces", READ))
        .chain(create.into_iter().flatten())
}

/// Returns the rights in the namespace of the Link, with the names of its Secret and of the Lease.
pub fn in_namespace_of_link(
    credentials: impl Into<Cow<'static, str>>,
    lease_name: impl Into<Cow<'static, str>>,
) -> impl Iterator<Item = Right> {
    named("", "secrets", READ, credentials)
        .chain(all("multicluster.linkerd.io", "links", READ))
        .chain(all("multicluster.linkerd.io", "links/status", &["patch"]))
        .chain(lease(lease_name))
}

/// Returns the rights in the target cluster, which the accounts that Linkerd makes for links have.
pub fn target() -> impl Iterator<Item = Right> {
    all("", "services", READ)
        .chain(all("discovery.k8s.io", "endpointslices", READ))
        .chain(all("", "events", &["create"]))
}
