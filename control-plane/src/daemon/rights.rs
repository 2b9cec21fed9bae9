//! The rights of each controller at the API server. The roles of the chart grant the same: the test
//! below compares them in both directions.
//!
//! The rights of watches, leases, certificates and events are listed beside their code. Objects
//! have the names of an installation with the default namespaces.

use mesh_cluster::api_server::{event_rights, lease_owner_rights};
use mesh_cluster::namespace_metadata;
use mesh_cluster::source::kube::kinds;
use mesh_cluster::webhook::managed::{self, RegistrationKind};
use mesh_core::rights::{self, Right};

use crate::{external_slices, injector, machines, mirror, remote, trust_bundle};

pub(super) fn identity() -> Vec<Right> {
    let (source, record) = (
        "linkerd-identity-trust-roots",
        "linkerd-identity-trust-bundle",
    );
    // The callers of Certify.
    rights::all("authentication.k8s.io", "tokenreviews", &["create"])
        // Every authenticated user has this one (`system:basic-user`).
        .chain(rights::all(BASIC.0, BASIC.1, &["create"]))
        .chain(event_rights())
        .chain(rights::named("apps", "deployments", &["get"], "linkerd-identity"))
        // The trust anchors and their number.
        .chain(rights::named("", "configmaps", &["get"], source))
        .chain(rights::named("", "configmaps", &["get", "update"], record))
        .chain(trust_bundle::foreign::rights())
        .chain(trust_bundle::denied::rights())
        .chain(machines::rights())
        .collect()
}

/// A process asks this API for its own rights.
const BASIC: (&str, &str) = ("authorization.k8s.io", "selfsubjectaccessreviews");

pub(super) fn destination(linked_clusters: bool) -> Vec<Right> {
    let watched = kinds::rights(kinds::DESTINATION).into_iter();
    let rights = watched.chain(lease("linkerd-destination-endpoint-write"));
    let rights = rights.chain(external_slices::rights());
    let links = linked_clusters.then(remote::rights);
    rights.chain(links.into_iter().flatten()).collect()
}

pub(super) fn policy() -> Vec<Right> {
    let watched = kinds::rights(kinds::POLICY_AND_NODES).into_iter();
    let rights = watched.chain(lease("policy-controller-write"));
    rights.chain(validator("policy")).collect()
}

/// The Lease of a controller in the Deployment of the destination controller.
fn lease(name: &'static str) -> impl Iterator<Item = Right> {
    rights::lease(name).chain(lease_owner_rights("linkerd-destination"))
}

pub(super) fn sp_validator() -> Vec<Right> {
    validator("sp").collect()
}

fn validator(of: &str) -> impl Iterator<Item = Right> {
    let (registration, secret) = match of {
        "policy" => (
            "linkerd-policy-validator-webhook-config",
            "linkerd-policy-validator-k8s-tls",
        ),
        _ => (
            "linkerd-sp-validator-webhook-config",
            "linkerd-sp-validator-k8s-tls",
        ),
    };
    managed::rights(RegistrationKind::ValidatingWebhook, registration, secret)
}

pub(crate) fn proxy_injector() -> Vec<Right> {
    let (registration, secret) = (
        "linkerd-proxy-injector-webhook-config",
        "linkerd-proxy-injector-k8s-tls",
    );
    let managed = managed::rights(RegistrationKind::MutatingWebhook, registration, secret);
    injector::rights().chain(managed).collect()
}

/// The Job of the multicluster extension.
pub(super) fn namespace_metadata() -> Vec<Right> {
    namespace_metadata::rights("linkerd-multicluster").collect()
}

/// The service mirror of a Link, here `target`, in its own cluster.
pub(super) fn service_mirror(creates_namespaces: bool) -> Vec<Right> {
    mirror::of_link(creates_namespaces).collect()
}

/// The service mirror of a Link in the target cluster.
pub(super) fn target_cluster() -> Vec<Right> {
    rights::service_mirror::target().collect()
}

/// The service mirror for this cluster's members of federated Services.
pub(super) fn local_service_mirror() -> Vec<Right> {
    mirror::of_local_members().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_test_support::rights::{by_account, granted};

    use super::*;
    use crate::{bootstrap, heartbeat};

    /// A test of mesh-k8s compares it with the rendered chart.
    const CHART: &str = include_str!("../../../mesh-k8s/testdata/chart/rights.txt");

    #[test]
    fn each_service_account_of_the_chart_has_the_rights_that_its_code_lists() {
        let destination = [destination(true), policy(), sp_validator()].concat();
        // Every authenticated user may ask for its own rights.
        let mut identity = identity();
        identity.retain(|right| (right.group, right.resource.as_ref()) != BASIC);
        let accounts = BTreeMap::from([
            ("linkerd/linkerd-bootstrap", bootstrap::rights().collect()),
            ("linkerd/linkerd-destination", destination),
            ("linkerd/linkerd-heartbeat", heartbeat::rights().collect()),
            ("linkerd/linkerd-identity", identity),
            ("linkerd/linkerd-proxy-injector", proxy_injector()),
        ]);
        let mut chart = granted(CHART, &[]);
        // The package of the agent has a test like this one.
        chart.remove("linkerd-agent/mesh-agent");
        assert_eq!(chart, by_account(accounts));
    }

    /// The same for the charts of the multicluster extension.
    const MULTICLUSTER: [&str; 2] = [
        include_str!("../../../mesh-k8s/testdata/chart/multicluster-rights.txt"),
        include_str!("../../../mesh-k8s/testdata/chart/multicluster-link-rights.txt"),
    ];

    #[test]
    fn each_service_account_of_multicluster_has_the_rights_that_its_code_lists() {
        let accounts = BTreeMap::from([
            (
                "linkerd-multicluster/controller-target",
                service_mirror(false),
            ),
            (
                "linkerd-multicluster/linkerd-local-service-mirror",
                local_service_mirror(),
            ),
            (
                "linkerd-multicluster/linkerd-service-mirror-target",
                service_mirror(false),
            ),
            (
                "linkerd-multicluster/namespace-metadata",
                namespace_metadata(),
            ),
        ]);
        let [extension, link] = MULTICLUSTER.map(|chart| granted(chart, &[]));
        let mut charts: BTreeMap<_, _> = extension.into_iter().chain(link).collect();
        // Processes of other clusters use this one, also Linkerd's, which need more.
        let remote = "linkerd-multicluster/linkerd-service-mirror-remote-access-default";
        let granted = charts.remove(remote).unwrap();
        let needed = [target_cluster(), kinds::remote_rights()].concat();
        let needed = by_account(BTreeMap::from([(remote, needed)]));
        assert!(granted.is_superset(&needed[remote]), "{granted:?}");
        assert_eq!(charts, by_account(accounts));
    }
}
