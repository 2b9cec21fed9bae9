//! The viz extension: its objects, the tap API, its Prometheus and the metrics API (`viz check`).

mod certificates;
mod components;
mod data_plane;

use std::collections::BTreeSet;

use super::framework::{Category, Check, CheckResult, Finding, OnFailure, Outcome};
use crate::facts::{Environment, Fact, Facts, Mode, fact_ref};

/// How to install the extension, or to restore an object of it.
const INSTALL: &str = "meshctl viz install | kubectl apply -f - (after an installation by Helm: helm upgrade linkerd-viz)";

pub(super) const EXTENSION: Category = Category {
    name: "linkerd-viz",
    applies: |facts| {
        facts.environment == Environment::Cluster && matches!(facts.mode, Mode::Viz { .. })
    },
    checks: &[
        Check::new(
            "l5d-viz-ns-exists",
            "the viz extension has a namespace",
            INSTALL,
            |facts| Ok(Outcome::ok(fact_ref(&facts.viz.namespace)?.clone())),
        )
        .on_failure(OnFailure::SkipCategory),
        Check::new(
            "l5d-viz-cr-exists",
            "the ClusterRoles of the extension exist",
            INSTALL,
            roles,
        ),
        Check::new(
            "l5d-viz-crb-exists",
            "the ClusterRoleBindings of the extension exist",
            INSTALL,
            bindings,
        ),
        Check::new(
            "l5d-viz-pods-injection",
            "the pods of the extension have a proxy",
            "kubectl -n {viz} rollout restart deployment; meshctl check shows why pods are not injected",
            components::injected,
        ),
        Check::new(
            "l5d-viz-pods-running",
            "the components of the extension run",
            "kubectl -n {viz} describe pods",
            components::running,
        ),
        Check::new(
            "l5d-viz-proxy-healthy",
            "the proxies of the extension are ready",
            "meshctl check shows what the proxies wait for",
            components::proxies_ready,
        )
        .explained_by(&[&["l5d-viz-pods-injection", "l5d-viz-pods-running"]]),
        Check::new(
            "l5d-viz-proxy-cp-version",
            "the proxies of the extension have the version of the control plane",
            "kubectl -n {viz} rollout restart deployment",
            components::proxy_versions,
        ),
        Check::new(
            "l5d-viz-cli-version",
            "the extension has the version of this command",
            INSTALL,
            components::versions,
        ),
        Check::new(
            "l5d-tap-cert-valid",
            "the API server accepts the certificate of the tap API",
            "kubectl -n {viz} delete secret tap-k8s-tls && kubectl -n {viz} rollout restart deployment tap (not for a certificate that you provided)",
            certificates::tap_valid,
        )
        .explained_by(&[&["l5d-viz-pods-running"]]),
        Check::new(
            "l5d-tap-cert-not-expiring-soon",
            "the certificate of the tap API does not expire soon",
            "kubectl -n {viz} logs deployment/tap -c tap; renew a certificate that you provided",
            certificates::tap_not_expiring,
        )
        .explained_by(&[&["l5d-tap-cert-valid"]]),
        Check::new(
            "l5d-tap-api",
            "the API server can reach the tap API",
            "kubectl describe apiservice v1alpha1.tap.linkerd.io; allow the API server to connect to port 8089 of the pods",
            certificates::tap_api,
        )
        .explained_by(&[&["l5d-viz-pods-running", "l5d-tap-cert-valid"]]),
        Check::new(
            "viz-tap-injector-cert-valid",
            "the API server accepts the certificate of the tap injector",
            "kubectl -n {viz} delete secret tap-injector-k8s-tls && kubectl -n {viz} rollout restart deployment tap-injector (not for a certificate that you provided)",
            certificates::injector_valid,
        )
        .explained_by(&[&["l5d-viz-pods-running"]]),
        Check::new(
            "l5d-viz-prometheus",
            "the extension has a Prometheus",
            "set prometheus.enabled=true, or prometheusUrl for one that you already have",
            components::prometheus,
        ),
        Check::new(
            "l5d-viz-metrics-api",
            "the metrics API can query Prometheus",
            "kubectl -n {viz} logs deployment/metrics-api -c metrics-api",
            components::metrics_api,
        )
        .explained_by(&[&["l5d-viz-pods-running", "l5d-viz-prometheus"]]),
    ],
};

pub(super) const DATA_PLANE: Category = Category {
    name: "linkerd-viz-data-plane",
    applies: |facts| {
        facts.environment == Environment::Cluster && facts.mode == Mode::Viz { proxies: true }
    },
    checks: &[
        Check::new(
            "l5d-viz-data-plane-prom-authz",
            "Prometheus may scrape the proxies",
            "meshctl viz allow-scrapes -n NAMESPACE | kubectl apply -f -",
            data_plane::scrapes_are_authorized,
        ),
        Check::new(
            "l5d-data-plane-prom",
            "Prometheus has series of every proxy",
            "kubectl -n {viz} port-forward deployment/prometheus 9090, then http://localhost:9090/api/v1/targets shows the last error",
            data_plane::scraped,
        )
        .explained_by(&[&[
            "l5d-viz-data-plane-prom-authz",
            "l5d-viz-metrics-api",
            "l5d-viz-prometheus",
            "l5d-viz-pods-running",
        ]]),
        Check::new(
            "viz-tap-enabled",
            "every proxy can be tapped",
            "kubectl -n NAMESPACE rollout restart deployment",
            data_plane::tap_enabled,
        )
        .explained_by(&[&["viz-tap-injector-cert-valid", "l5d-viz-pods-running"]]),
    ],
};

/// Returns the name of a cluster-scoped RBAC object of a component.
fn rbac_name(facts: &Facts, suffix: &str) -> String {
    format!("linkerd-{}-{suffix}", facts.viz_namespace())
}

fn roles(facts: &Facts) -> CheckResult {
    let wanted = rbac_names(facts, "tap-admin");
    missing(&facts.viz.cluster_roles, &wanted, "ClusterRole")
}

fn bindings(facts: &Facts) -> CheckResult {
    let wanted = rbac_names(facts, "tap-auth-delegator");
    let found = &facts.viz.cluster_role_bindings;
    missing(found, &wanted, "ClusterRoleBinding")
}

/// Returns the names of the roles or bindings of components, and `further`.
fn rbac_names(facts: &Facts, further: &str) -> Vec<String> {
    let mut names = ["metrics-api", "tap", further, "web"]
        .map(|name| rbac_name(facts, name))
        .to_vec();
    names.push("linkerd-tap-injector".to_owned());
    if components::has_own_prometheus(facts) {
        names.push(rbac_name(facts, "prometheus"));
    }
    names
}

fn missing(found: &Fact<BTreeSet<String>>, wanted: &[String], kind: &str) -> CheckResult {
    let found = fact_ref(found)?;
    let missing: Vec<Finding> = wanted
        .iter()
        .filter(|name| !found.contains(*name))
        .map(|name| Finding::new(format!("{kind} {name} is missing")))
        .collect();
    Ok(Outcome::fail_if(missing, ""))
}
