//! Whether the connections of meshed pods reach their proxies.

use std::collections::{BTreeMap, BTreeSet};

use mesh_k8s::{
    kinds::{Pod, ResourceExt},
    pod,
    values::Redirection,
};

use super::super::{
    Facts, Line, Outcome, Place, Verdict, count,
    facts::{full_name, proxy_container},
    identity::left_out,
    repair,
};

/// What redirects a pod itself, so that no agent needs to.
const INIT: &str = "linkerd-init";
const VALIDATOR: &str = "linkerd-network-validator";

fn has_container(pod: &Pod, name: &str) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| pod::containers(spec).any(|container| container.name == name))
}

/// Every meshed pod is known to the agent of its node.
pub(super) fn enrolled(facts: &Facts) -> Verdict {
    if facts.agents.is_empty() {
        return Ok(Outcome::ok("no agents"));
    }
    let by_node: BTreeMap<&str, _> = facts
        .agents
        .iter()
        .map(|agent| (agent.node.as_str(), &agent.pods))
        .collect();
    let (mut wrong, mut silent) = (Vec::new(), BTreeSet::new());
    let (mut redirected, mut new) = (0_usize, 0_usize);
    let control = facts
        .control_pods()?
        .filter(|pod| proxy_container(pod).is_some());
    for pod in facts.meshed_pods()?.chain(control) {
        let running =
            !pod::ips(pod).is_empty() && !pod::is_host_network(pod) && !facts.is_on_lost_node(pod);
        if !running || has_container(pod, INIT) || has_container(pod, VALIDATOR) {
            continue;
        }
        let node = match facts.place {
            // A local node has one agent, and its pods name no node.
            Place::Node => facts.agents[0].node.as_str(),
            _ => {
                let spec = pod.spec.as_ref();
                spec.and_then(|spec| spec.node_name.as_deref())
                    .unwrap_or_default()
            }
        };
        match by_node.get(node) {
            Some(Ok(enrolled)) => {
                let known = enrolled.iter().any(|status| {
                    Some(&status.pod.namespace) == pod.namespace().as_ref()
                        && status.pod.name == pod.name_any()
                });
                redirected += usize::from(known);
                if !known && facts.is_new(pod) {
                    new += 1;
                } else if !known {
                    let line = Line::new(format!(
                        "{} is not enrolled on node {node}: its traffic goes around the proxy",
                        full_name(pod)
                    ));
                    wrong.push(match facts.place {
                        Place::Cluster => line.fixed_by(repair::restart(pod)),
                        _ => line.fixed_by("meshctl local logs --agent"),
                    });
                }
            }
            Some(Err(_)) | None => {
                silent.insert(node.to_owned());
            }
        }
    }
    if wrong.is_empty() && !silent.is_empty() {
        let nodes: Vec<String> = silent.into_iter().collect();
        return Ok(Outcome::warn(format!(
            "the agents of these nodes were not heard, and neither about their pods: {}",
            nodes.join(", ")
        )));
    }
    let ok = count(redirected, "pod", "pods") + &left_out(new);
    Ok(Outcome::fail_if(wrong, ok))
}

/// Pods keep the way they were injected with until they are replaced.
pub(super) fn way(facts: &Facts) -> Verdict {
    let way = facts.values()?.redirection();
    let mut wrong = Vec::new();
    for pod in facts.meshed_pods()? {
        let own = if has_container(pod, INIT) {
            Redirection::InitContainer
        } else if has_container(pod, VALIDATOR) {
            Redirection::ForeignCni
        } else {
            Redirection::Agent
        };
        if own != way {
            let line = Line::new(format!(
                "{} is redirected by {}, new pods by {}",
                full_name(pod),
                name(own),
                name(way)
            ));
            wrong.push(line.fixed_by(repair::restart(pod)));
        }
    }
    Ok(Outcome::warn_if(wrong, name(way)))
}

fn name(way: Redirection) -> &'static str {
    match way {
        Redirection::Agent => "the node agent",
        Redirection::ForeignCni => "another CNI plugin",
        Redirection::InitContainer => "an init container",
    }
}
