//! What the extension sees of meshed pods.

use std::collections::BTreeSet;

use mesh_k8s::inject::{DISABLE_TAP, TAP_ENABLED};
use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_objects::model::ServerPort;

use crate::check::framework::{CheckResult, Finding, Outcome};
use crate::check::policy::ip_families::default_inbound_policy;
use crate::facts::{Fact, Facts, fact_ref, full_name};
use crate::output::count;

/// Default policies that deny the meshed Prometheus, which is authenticated and in the cluster.
const DENY: &str = "deny";

/// Finds namespaces whose default policy denies scrapes, without a Server for the admin port.
pub(super) fn scrapes_are_authorized(facts: &Facts) -> CheckResult {
    let default = &facts.values()?.proxy.default_inbound_policy;
    let with_server = namespaces_with_admin_server(facts)?;
    let mut denied = BTreeSet::new();
    for pod in facts.meshed_pods()? {
        let namespace = pod.namespace().unwrap_or_default();
        if default_inbound_policy(pod, default) == DENY && !with_server.contains(&*namespace) {
            denied.insert(namespace);
        }
    }
    let findings = denied.iter().map(|namespace| {
        Finding::new(format!(
            "the default policy of namespace {namespace} denies scrapes"
        ))
        .with_fix(format!(
            "meshctl viz allow-scrapes -n {namespace} | kubectl apply -f -"
        ))
    });
    Ok(Outcome::warn_if(findings, ""))
}

fn namespaces_with_admin_server(facts: &Facts) -> Fact<BTreeSet<&str>> {
    let servers = facts
        .store()?
        .servers()
        .filter(|server| match &server.port {
            ServerPort::Name(name) => **name == *"linkerd-admin",
            ServerPort::Number(number) => *number == 4191,
        });
    Ok(servers.map(|server| &*server.name.namespace).collect())
}

pub(super) fn scraped(facts: &Facts) -> CheckResult {
    let scraped = fact_ref(&facts.viz.scraped)?;
    let pods: Vec<&Pod> = old_meshed_pods(facts)?;
    let without = pods
        .iter()
        .map(|pod| full_name(pod))
        .filter(|name| !scraped.contains(name))
        .map(|name| Finding::new(format!("Prometheus has no series of {name}")));
    Ok(Outcome::warn_if(without, count(pods.len(), "pod", "pods")))
}

/// Finds proxies that were created before the extension. Proxies that disable tap are left out, and
/// so are the extension's, which start together with the tap injector.
pub(super) fn tap_enabled(facts: &Facts) -> CheckResult {
    let annotated = |pod: &Pod, key| pod::meta_annotation(&pod.metadata, key).is_some();
    let without = old_meshed_pods(facts)?
        .into_iter()
        .filter(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            if namespace == facts.viz_namespace() {
                return false;
            }
            let disabled = facts.namespace(&namespace).is_some_and(|namespace| {
                pod::meta_annotation(&namespace.metadata, DISABLE_TAP).is_some()
            });
            !disabled && !annotated(pod, DISABLE_TAP) && !annotated(pod, TAP_ENABLED)
        })
        .map(|pod| {
            Finding::new(format!(
                "{} was created before the extension: it cannot be tapped",
                full_name(pod)
            ))
        });
    Ok(Outcome::warn_if(without, ""))
}

/// Returns the meshed pods of the scope that are not just starting.
fn old_meshed_pods(facts: &Facts) -> Result<Vec<&Pod>, String> {
    Ok(facts
        .meshed_pods()?
        .filter(|pod| !facts.is_new(pod))
        .collect())
}
