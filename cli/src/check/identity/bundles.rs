//! Where proxies take their trust anchors from, and whether they have the current ones.

use std::collections::BTreeMap;

use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;

use super::super::fix;
use super::super::framework::{CheckResult, Finding, Outcome};
use crate::facts::containers::{container_statuses, running_since};
use crate::facts::names::{TRUST_BUNDLE, TRUST_ROOTS};
use crate::facts::trust::{Sent, bundle, environment, mounts_copy, number, own_map, same_anchors};
use crate::facts::{Facts, Proxy, fact_ref, full_name, proxy_container};

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

/// Returns whether the pod's proxy receives the anchors from an identity service that publishes
/// them. Linkerd's proxy reads only its environment.
pub(super) fn follows_identity(facts: &Facts, pod: &Pod) -> bool {
    let of_linkerd = proxy_container(pod)
        .and_then(|proxy| proxy.image.as_deref())
        .is_some_and(|image| image.starts_with("cr.l5d.io/linkerd/proxy"));
    !of_linkerd && !mounts_copy(facts, pod)
}

/// A change reaches every proxy within this time. The kubelet takes up to two minutes to update the
/// files of the identity service, which compares them every 10 seconds; a proxy that met a service
/// without anchors asks again after five minutes. Within it the numbers of proxies and service
/// differ without a fault, also after an installation.
const MAX_DELAY_SECONDS: u64 = 600;

/// Finds proxies with other anchors than the control plane. It compares the number of the anchors
/// that a proxy received. A proxy that received none has the certificates of its environment.
pub(super) fn proxies_trust(facts: &Facts) -> CheckResult {
    let bundle = bundle(facts)?;
    let published = facts.values()?.identity.publish_trust_roots;
    let sent = Sent::read(facts).filter(|_| published);
    let mut wrong = Vec::new();
    wrong.extend(sent.as_ref().and_then(|sent| unsent(facts, &bundle, sent)));
    let own = facts.control_pods()?;
    let own = own.filter(|pod| proxy_container(pod).is_some());
    for pod in facts.meshed_pods()?.chain(own) {
        if !(published && follows_identity(facts, pod)) {
            if started_with_others(pod, &bundle) {
                wrong.push(
                    Finding::new(format!(
                        "{} started with other trust anchors and keeps them until it is restarted",
                        full_name(pod)
                    ))
                    .with_fix(fix::restart_command(pod)),
                );
            }
        } else if let Some(sent) = &sent {
            wrong.extend(differing(facts, pod, sent));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

/// Returns whether the anchors in the environment of the pod's proxy differ from a bundle.
fn started_with_others(pod: &Pod, bundle: &str) -> bool {
    environment(pod).is_some_and(|own| !same_anchors(own, bundle))
}

/// Reports a proxy that should have received the anchors of the identity service by now.
fn differing(facts: &Facts, pod: &Pod, sent: &Sent) -> Option<Finding> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let of_pod = |proxy: &&Proxy| proxy.namespace == namespace && proxy.pod == name;
    let metrics = facts.proxies.iter().find(of_pod)?.metrics.as_ref().ok()?;
    let number = number(metrics)?;
    let since = number.max(sent.number).max(started(pod));
    if facts.clock().saturating_sub(since) < MAX_DELAY_SECONDS {
        return None;
    }
    let logs = format!("kubectl -n {namespace} logs {name} -c linkerd-proxy | grep -i anchors");
    let restart = fix::restart_command(pod);
    let title = full_name(pod);
    match number {
        0 if started_with_others(pod, &sent.anchors) => Some(
            Finding::new(format!(
                "{title} has received no trust anchors from the identity service, and those that it started with are not the current ones"
            ))
            .with_fix(format!("{logs}; {restart}")),
        ),
        0 => None,
        number if number < sent.number => Some(
            Finding::new(format!(
                "{title} has trust anchors with the number {number}, but the identity service sends number {}",
                sent.number
            ))
            .with_fix(format!("{logs}; {restart}")),
        ),
        number if number > sent.number => Some(
            Finding::new(format!(
                "{title} has trust anchors with the number {number} and refuses those of the identity service, whose number {} is lower: ConfigMap {TRUST_BUNDLE} was restored from a backup",
                sent.number
            ))
            .with_fix(format!(
                "kubectl -n {{ns}} patch configmap {TRUST_BUNDLE} --type=merge -p '{{\"data\": null}}': the identity service gives them a new number"
            )),
        ),
        _ => None,
    }
}

/// Returns the Unix time when the pod's proxy started, or 0 if it is unknown.
fn started(pod: &Pod) -> u64 {
    let proxy = container_statuses(pod).find(|container| container.name == pod::PROXY_CONTAINER);
    proxy.and_then(running_since).unwrap_or(0)
}

/// Reports anchors of the ConfigMap that the identity service does not send, because it does not
/// accept them.
fn unsent(facts: &Facts, bundle: &str, sent: &Sent) -> Option<Finding> {
    if same_anchors(bundle, &sent.anchors) {
        return None;
    }
    let own = own_map(facts).ok()??;
    let writes = own.metadata.managed_fields.iter().flatten();
    let changed = writes.filter_map(|write| write.time.as_ref()).max();
    let changed = changed.and_then(|time| u64::try_from(time.0.as_second()).ok());
    let age = facts.clock().saturating_sub(changed.unwrap_or(0));
    (age >= MAX_DELAY_SECONDS).then(|| {
        Finding::new(format!(
            "the identity service sends other trust anchors than ConfigMap {TRUST_ROOTS} has: running proxies do not get the change"
        ))
        .with_fix("kubectl -n {ns} logs deployment/linkerd-identity -c identity | grep -i anchors: it says why it does not accept them")
    })
}
