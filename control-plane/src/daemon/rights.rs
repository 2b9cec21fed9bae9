//! The rights of each controller at the API server. The roles of the charts grant the same: the
//! test below compares them in both directions.
//!
//! The rights of watches, leases, certificates and events are listed beside their code. Objects
//! have the names of an installation with the default namespaces.

use mesh_core::rights::{self, Right};

use crate::cluster::{event_rights, lease_rights};
use crate::source::kube::kinds;
use crate::webhook::managed::{self, RegistrationKind};
use crate::{injector, tap, tap_injector, web};

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
    kinds::rights(kinds::DESTINATION)
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

pub(super) fn proxy_injector() -> Vec<Right> {
    let (registration, secret) = (
        "linkerd-proxy-injector-webhook-config",
        "linkerd-proxy-injector-k8s-tls",
    );
    let managed = managed::rights(RegistrationKind::MutatingWebhook, registration, secret);
    injector::rights().chain(managed).collect()
}

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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::{bootstrap, heartbeat, namespace_metadata};

    /// The roles of the charts and their bindings, which a test of mesh-k8s compares with the
    /// rendered charts.
    const CHARTS: [&str; 2] = [
        include_str!("../../../mesh-k8s/testdata/chart/rights.txt"),
        include_str!("../../../mesh-k8s/testdata/chart/viz-rights.txt"),
    ];

    /// ServiceAccounts of other programs: the agent, whose package has a test like this one, and
    /// Prometheus.
    const OTHERS: [&str; 2] = ["linkerd-agent/mesh-agent", "linkerd-viz/prometheus"];

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

    fn accounts() -> BTreeMap<&'static str, Vec<Right>> {
        let destination = [destination(), policy(), sp_validator()].concat();
        BTreeMap::from([
            ("linkerd/linkerd-bootstrap", bootstrap::rights().collect()),
            ("linkerd/linkerd-destination", destination),
            ("linkerd/linkerd-heartbeat", heartbeat::rights().collect()),
            ("linkerd/linkerd-identity", identity()),
            ("linkerd/linkerd-proxy-injector", proxy_injector()),
            ("linkerd-viz/metrics-api", metrics_api()),
            (
                "linkerd-viz/namespace-metadata",
                namespace_metadata::rights().collect(),
            ),
            ("linkerd-viz/tap", tap()),
            ("linkerd-viz/tap-injector", tap_injector()),
            ("linkerd-viz/web", web()),
        ])
    }

    /// Returns the rights of the roles that are bound to each ServiceAccount of the charts.
    fn granted() -> BTreeMap<&'static str, BTreeSet<String>> {
        let lines = || CHARTS.iter().flat_map(|chart| chart.lines());
        let mut granted: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for line in lines() {
            let Some(binding) = line.strip_prefix("ServiceAccount ") else {
                continue;
            };
            let (account, role) = binding.split_once(": ").unwrap();
            let mut rights: BTreeSet<String> = lines()
                .filter_map(|line| rights::parse_line(line, role))
                .flatten()
                .collect();
            let built_in = BUILT_IN.iter().filter(|(name, _)| *name == role);
            rights.extend(built_in.map(|(_, right)| (*right).to_owned()));
            assert!(!rights.is_empty(), "{role} of {account} has no rights");
            granted.entry(account).or_default().extend(rights);
        }
        granted
    }

    #[test]
    fn each_service_account_of_the_charts_has_the_rights_that_its_code_lists() {
        let mut granted = granted();
        for (account, rights) in accounts() {
            let listed: BTreeSet<String> = rights
                .iter()
                .filter(|right| (right.group, right.resource.as_ref()) != BASIC)
                .map(Right::to_string)
                .collect();
            let granted = granted.remove(account).unwrap_or_default();
            let missing: Vec<&String> = listed.difference(&granted).collect();
            let unused: Vec<&String> = granted.difference(&listed).collect();
            assert!(
                missing.is_empty() && unused.is_empty(),
                "{account}: the chart lacks {missing:?}, and grants without need {unused:?}"
            );
        }
        granted.retain(|account, _| !OTHERS.contains(account));
        assert_eq!(granted, BTreeMap::new(), "no list of rights");
    }
}
