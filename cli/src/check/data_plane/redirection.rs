//! Redirection of the connections of meshed pods to their proxies.

use std::collections::{BTreeMap, BTreeSet};

use mesh_k8s::kinds::{Pod, ResourceExt};
use mesh_k8s::pod;
use mesh_k8s::values::Redirection;

use super::super::fix;
use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::identity::excluded_new_pods;
use crate::facts::{Environment, Facts, full_name, proxy_container};
use crate::output::count;

/// The container of a pod that a foreign CNI plugin redirects, without an agent.
const VALIDATOR: &str = "linkerd-network-validator";

fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| pod::containers(spec).any(|container| container.name == name))
}

/// Verifies that the agent of its node has enrolled every meshed pod.
pub(super) fn enrolled(facts: &Facts) -> CheckResult {
    if facts.agents.is_empty() {
        return Ok(Outcome::ok("no agents"));
    }
    let by_node: BTreeMap<&str, _> = facts
        .agents
        .iter()
        .map(|agent| (agent.node.as_str(), &agent.pods))
        .collect();
    let (mut wrong, mut unknown) = (Vec::new(), BTreeSet::new());
    let (mut redirected, mut new) = (0_usize, 0_usize);
    let control = facts
        .control_pods()?
        .filter(|pod| proxy_container(pod).is_some());
    for pod in facts.meshed_pods()?.chain(control) {
        let running = !pod::ips(pod).is_empty()
            && !pod::is_host_network(pod)
            && !facts.is_on_unready_node(pod);
        if !running || has_container(pod, pod::INIT_CONTAINER) || has_container(pod, VALIDATOR) {
            continue;
        }
        let node = match facts.environment {
            // A local node has one agent, and its pods have no node name.
            Environment::LocalNode => facts.agents[0].node.as_str(),
            _ => {
                let spec = pod.spec.as_ref();
                spec.and_then(|spec| spec.node_name.as_deref())
                    .unwrap_or_default()
            }
        };
        match by_node.get(node) {
            Some(Ok(enrolled)) => {
                let is_enrolled = enrolled.iter().any(|status| {
                    Some(&status.pod.namespace) == pod.namespace().as_ref()
                        && status.pod.name == pod.name_any()
                });
                redirected += usize::from(is_enrolled);
                if !is_enrolled && facts.is_new(pod) {
                    new += 1;
                } else if !is_enrolled {
                    let finding = Finding::new(format!(
                        "{} is not enrolled on node {node}: its traffic bypasses the proxy",
                        full_name(pod)
                    ));
                    wrong.push(match facts.environment {
                        Environment::Cluster => finding.with_fix(fix::restart_command(pod)),
                        _ => finding.with_fix("meshctl local logs --agent"),
                    });
                }
            }
            Some(Err(_)) | None => {
                unknown.insert(node.to_owned());
            }
        }
    }
    if wrong.is_empty() && !unknown.is_empty() {
        let nodes: Vec<String> = unknown.into_iter().collect();
        return Ok(Outcome::warn(format!(
            "the agents of these nodes did not respond, so that the state of their pods is unknown: {}",
            nodes.join(", ")
        )));
    }
    let ok = count(redirected, "pod", "pods") + &excluded_new_pods(new);
    Ok(Outcome::fail_if(wrong, ok))
}

/// Finds pods that were injected with another way of redirection, which they keep until they are
/// replaced.
pub(super) fn mode(facts: &Facts) -> CheckResult {
    let current = facts.values()?.redirection();
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let own = if has_container(pod, pod::INIT_CONTAINER) {
            Redirection::InitContainer
        } else if has_container(pod, VALIDATOR) {
            Redirection::ForeignCni
        } else {
            Redirection::Agent
        };
        if own != current {
            let finding = Finding::new(format!(
                "{} is redirected by {}, new pods by {}",
                full_name(pod),
                name(own),
                name(current)
            ));
            wrong.push(finding.with_fix(fix::restart_command(pod)));
        }
    }
    Ok(Outcome::warn_if(wrong, name(current)))
}

fn name(redirection: Redirection) -> &'static str {
    match redirection {
        Redirection::Agent => "the node agent",
        Redirection::ForeignCni => "another CNI plugin",
        Redirection::InitContainer => "an init container",
    }
}
