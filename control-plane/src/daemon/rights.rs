//! The rights of each controller at the API server. The roles of the chart grant the same: the test
//! below compares them in both directions.
//!
//! The rights of watches, leases, certificates and events are listed beside their code. Objects
//! have the names of an installation with the default namespaces.

use mesh_cluster::api_server::{event_rights, lease_rights};
use mesh_cluster::source::kube::kinds;
use mesh_cluster::webhook::managed::{self, RegistrationKind};
use mesh_core::rights::{self, Right};

use crate::{external_slices, injector, remote};

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
        .collect()
}

/// A process asks this API for its own rights.
const BASIC: (&str, &str) = ("authorization.k8s.io", "selfsubjectaccessreviews");

pub(super) fn destination() -> Vec<Right> {
    let lease = lease_rights("linkerd-destination-endpoint-write", "linkerd-destination");
    let watched = kinds::rights(kinds::DESTINATION).into_iter();
    let rights = watched.chain(lease);
    let rights = rights.chain(external_slices::rights());
    rights.chain(remote::rights()).collect()
}

pub(super) fn policy() -> Vec<Right> {
    let lease = lease_rights("policy-controller-write", "linkerd-destination");
    let watched = kinds::rights(kinds::POLICY_AND_NODES).into_iter();
    let rights = watched.chain(lease);
    rights.chain(validator("policy")).collect()
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
        let destination = [destination(), policy(), sp_validator()].concat();
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
}
