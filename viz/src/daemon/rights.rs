//! The rights of each part of the extension at the API server. The roles of the chart grant the
//! same: the test below compares them in both directions.
//!
//! The rights of watches and certificates are listed beside their code. Objects have the names of
//! an installation with the default namespaces.

use mesh_cluster::namespace_metadata;
use mesh_cluster::source::kube::kinds;
use mesh_cluster::webhook::managed::{self, RegistrationKind};
use mesh_core::rights::Right;

use crate::{tap, tap_injector, web};

pub(super) fn tap_injector() -> Vec<Right> {
    let (registration, secret) = (
        "linkerd-tap-injector-webhook-config",
        "tap-injector-k8s-tls",
    );
    let managed = managed::rights(RegistrationKind::MutatingWebhook, registration, secret);
    tap_injector::rights().chain(managed).collect()
}

pub(super) fn tap() -> Vec<Right> {
    let (registration, secret) = ("v1alpha1.tap.linkerd.io", "tap-k8s-tls");
    let managed = managed::rights(RegistrationKind::ApiService, registration, secret);
    let watched = kinds::rights(kinds::TAP).into_iter();
    watched.chain(tap::rights()).chain(managed).collect()
}

pub(super) fn metrics_api() -> Vec<Right> {
    kinds::rights(kinds::METRICS_API)
}

pub(super) fn web() -> Vec<Right> {
    web::rights().collect()
}

pub(super) fn namespace_metadata() -> Vec<Right> {
    namespace_metadata::rights("linkerd-viz").collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mesh_test_support::rights::{by_account, granted};

    use super::*;

    /// A test of mesh-k8s compares it with the rendered chart.
    const CHART: &str = include_str!("../../../mesh-k8s/testdata/chart/viz-rights.txt");

    /// The roles that Kubernetes has for authentication and authorization by extension API servers,
    /// and the rights that are used of them.
    const BUILT_IN: [(&str, &str); 2] = [
        (
            "ClusterRole system:auth-delegator",
            "create subjectaccessreviews.authorization.k8s.io",
        ),
        (
            "Role extension-apiserver-authentication-reader",
            "get configmaps extension-apiserver-authentication",
        ),
    ];

    #[test]
    fn each_service_account_of_the_chart_has_the_rights_that_its_code_lists() {
        let accounts = BTreeMap::from([
            ("linkerd-viz/metrics-api", metrics_api()),
            ("linkerd-viz/namespace-metadata", namespace_metadata()),
            ("linkerd-viz/tap", tap()),
            ("linkerd-viz/tap-injector", tap_injector()),
            ("linkerd-viz/web", web()),
        ]);
        let mut chart = granted(CHART, &BUILT_IN);
        // Another program.
        chart.remove("linkerd-viz/prometheus");
        assert_eq!(chart, by_account(accounts));
    }
}
