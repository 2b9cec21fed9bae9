//! Where proxies take their trust anchors from, and whether they have the current ones.

use std::collections::BTreeMap;

use mesh_k8s::kinds::{ConfigMap, Pod, ResourceExt};
use mesh_k8s::pod;

use super::super::facts::{Fact, fact_ref, full_name, proxy_container};
use super::super::{CheckResult, Facts, Finding, Outcome, certificate, fix};
use super::{BUNDLE_KEY, TRUST_ROOTS};

/// Returns the bundle of the ConfigMap in the control plane's namespace.
fn bundle(facts: &Facts) -> Fact<String> {
    let maps = fact_ref(&facts.objects.trust_roots)?;
    let own = maps
        .iter()
        .find(|map| map.namespace().as_deref() == Some(&facts.control_namespace));
    own.and_then(bundle_of).ok_or_else(|| {
        format!(
            "namespace {} has no ConfigMap {TRUST_ROOTS} with key {BUNDLE_KEY}",
            facts.control_namespace
        )
    })
}

fn bundle_of(map: &ConfigMap) -> Option<String> {
    Some(map.data.as_ref()?.get(BUNDLE_KEY)?.trim().to_owned())
}

/// Returns whether two bundles have the same certificates, independent of order and comments.
fn same_anchors(one: &str, other: &str) -> bool {
    let certificates = |text: &str| {
        let mut all = certificate::read_pem(text.as_bytes(), "a bundle").unwrap_or_default();
        all.sort_unstable();
        all.dedup();
        all
    };
    one.trim() == other.trim() || {
        let anchors = certificates(one);
        !anchors.is_empty() && anchors == certificates(other)
    }
}

/// Finds the pods of earlier versions, whose proxies take anchors from a ConfigMap that every
/// client with the right to write ConfigMaps in their namespace can change, and the ConfigMaps that
/// no pod needs.
pub(super) fn published(facts: &Facts) -> CheckResult {
    if !facts.values()?.identity.publish_trust_roots {
        return Ok(Outcome::ok("identity.publishTrustRoots is off"));
    }
    let mut mounting: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut findings = Vec::new();
    for pod in facts.meshed_pods()?.filter(|pod| mounts_copy(facts, pod)) {
        let namespace = pod.namespace().unwrap_or_default();
        mounting.entry(namespace).or_default().push(pod.name_any());
        findings.push(
            Finding::new(format!(
                "{} takes trust anchors from ConfigMap {TRUST_ROOTS} of its namespace, as an earlier version injected it",
                full_name(pod)
            ))
            .with_fix(fix::restart_command(pod)),
        );
    }
    for map in fact_ref(&facts.objects.trust_roots)? {
        let namespace = map.namespace().unwrap_or_default();
        if namespace == facts.control_namespace || mounting.contains_key(&namespace) {
            continue;
        }
        findings.push(
            Finding::new(format!(
                "ConfigMap {TRUST_ROOTS} of namespace {namespace} is from an earlier version, and no proxy reads it"
            ))
            .with_fix(format!("kubectl -n {namespace} delete configmap {TRUST_ROOTS}")),
        );
    }
    Ok(Outcome::warn_if(findings, ""))
}

/// Returns whether the pod's proxy takes the anchors from a ConfigMap in its namespace, as those
/// that an earlier version injected. The namespace of the control plane has the original.
fn mounts_copy(facts: &Facts, pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let mounted = volumes.into_iter().flatten().any(|volume| {
        volume
            .config_map
            .as_ref()
            .is_some_and(|map| map.name == TRUST_ROOTS)
    });
    mounted && pod.namespace().as_deref() != Some(&facts.control_namespace)
}

/// Returns whether the pod's proxy receives the anchors from the identity service. Linkerd's proxy
/// reads only its environment.
fn follows_identity(facts: &Facts, pod: &Pod) -> bool {
    let of_linkerd = proxy_container(pod)
        .and_then(|proxy| proxy.image.as_deref())
        .is_some_and(|image| image.starts_with("cr.l5d.io/linkerd/proxy"));
    let published = facts
        .values()
        .map_or(true, |values| values.identity.publish_trust_roots);
    published && !of_linkerd && !mounts_copy(facts, pod)
}

pub(super) fn proxies_trust(facts: &Facts) -> CheckResult {
    let bundle = bundle(facts)?;
    let mut wrong = Vec::new();
    for pod in facts
        .meshed_pods()?
        .filter(|pod| !follows_identity(facts, pod))
    {
        let env = proxy_container(pod).map(pod::plain_env).unwrap_or_default();
        let own = env.get("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS");
        if own.is_some_and(|own| !same_anchors(own, &bundle)) {
            wrong.push(
                Finding::new(format!(
                    "{} started with other trust anchors and keeps them until it is restarted",
                    full_name(pod)
                ))
                .with_fix(fix::restart_command(pod)),
            );
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}
