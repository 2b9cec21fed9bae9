//! The node agents: one on each node, redirecting by the best tier, chained into the node's CNI configuration.

use std::collections::{BTreeMap, BTreeSet};

use mesh_core::node::{NodeStatus, SelfTestOutcome, Tier};
use mesh_k8s::{
    kinds::{Node, Pod, ResourceExt},
    pod,
};

use super::{
    Category, Check, Ends, Facts, On, Outcome, Place, Verdict,
    control_plane::{container_problems, is_agent},
    count,
    facts::{Agent, see},
};
use crate::cluster::agent;

pub(super) const CATEGORY: Category = Category {
    name: "mesh-agent",
    applies: |facts| {
        facts.place != Place::Machine && facts.is_installed_mode() && facts.has_agents()
    },
    checks: &[
        Check {
            anchor: "agent-ready",
            description: "a ready agent runs on every node",
            advice: "kubectl -n {ns} describe daemonset mesh-agent; kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent --all-containers",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: ready,
        },
        super::setup::POD_SECURITY,
        Check {
            anchor: "agent-answers",
            description: "node agents answer",
            advice: "kubectl -n {ns} rollout restart daemonset mesh-agent; on a local node: meshctl local logs --agent",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: answers,
        },
        Check {
            anchor: "agent-version",
            description: "node agents are of the control plane's version",
            advice: "kubectl -n {ns} rollout status daemonset mesh-agent",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: version,
        },
        Check {
            anchor: "agent-cni",
            description: "mesh-cni is in the CNI chain of every node",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent; the agent puts its entry back by itself unless another plugin takes files away",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: chained,
        },
        FOREIGN_CNI,
        Check {
            anchor: "agent-startup-taint",
            description: "no node is still held back by the agent's taint",
            advice: "kubectl taint node NODE mesh-agent/not-ready- (after the agent there is ready)",
            ends: Ends::Nothing,
            on: On::Cluster,
            look: taint,
        },
        Check {
            anchor: "tier",
            description: "connections are redirected by the best tier",
            advice: "the reason says what the kernel lacks; docs/operations/agent.md has what each tier needs",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: tier,
        },
        Check {
            anchor: "self-test",
            description: "redirection works on this kernel",
            advice: "docs/operations/redirection-limits.md says which applications notice",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: self_test,
        },
        Check {
            anchor: "agent-warnings",
            description: "nothing on the nodes disturbs the redirection",
            advice: "the sentence names the program or pod that disturbs; the agent's log has the details",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| per_node(facts, "", |status| status.warnings.to_vec()).map(as_warning),
        },
        Check {
            anchor: "agent-waiting",
            description: "no pod waits to be redirected",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent; kubectl -n NAMESPACE delete pod POD starts it anew",
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                per_node(facts, "", |status| {
                    let waiting = status.waiting.iter();
                    waiting
                        .map(|waiting| format!("{}: {}", waiting.pod, waiting.reason))
                        .collect()
                })
            },
        },
    ],
};

/// Also before the mesh is installed.
pub(super) const FOREIGN_CNI: Check = Check {
    anchor: "agent-foreign-cni",
    description: "no other plugin keeps mesh-cni out of the CNI chain",
    advice: "helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set cni.exclusive=false --set socketLB.hostNamespaceOnly=true; helm uninstall linkerd2-cni",
    ends: Ends::Nothing,
    on: On::Cluster,
    look: foreign_cni,
};

/// Which pods of the DaemonSet are on which node.
fn agent_pods(facts: &Facts) -> Result<BTreeMap<String, Vec<&Pod>>, String> {
    let mut by_node: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
    for pod in facts.live_pods()? {
        if is_agent(pod) && pod.namespace().as_deref() == Some(&facts.control_namespace) {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            by_node
                .entry(node.unwrap_or_default())
                .or_default()
                .push(pod);
        }
    }
    Ok(by_node)
}

/// The nodes that the DaemonSet's selector chooses, and those that run meshed pods although it does not.
fn wanted_nodes(facts: &Facts) -> Result<Vec<&Node>, String> {
    let sets = see(&facts.objects.daemon_sets)?;
    let set = sets.iter().find(|set| set.name_any() == agent::NAME);
    let set = set.ok_or_else(|| format!("DaemonSet {} is missing", agent::NAME))?;
    let template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let selector = template
        .and_then(|spec| spec.node_selector.clone())
        .unwrap_or_default();
    let with_meshed_pods: BTreeSet<&str> = facts
        .meshed_pods()?
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let chosen = see(&facts.objects.nodes)?.iter().filter(|node| {
        let selected = selector
            .iter()
            .all(|(key, value)| node.labels().get(key) == Some(value));
        selected || with_meshed_pods.contains(node.name_any().as_str())
    });
    Ok(chosen.collect())
}

fn ready(facts: &Facts) -> Verdict {
    let pods = agent_pods(facts)?;
    let nodes = wanted_nodes(facts)?;
    let mut wrong = Vec::new();
    for node in &nodes {
        let name = node.name_any();
        let here = pods.get(&name).map(Vec::as_slice).unwrap_or_default();
        if here.iter().any(|pod| pod::is_ready(pod)) {
            continue;
        }
        let problems: Vec<String> = here
            .iter()
            .flat_map(|pod| container_problems(pod))
            .collect();
        wrong.push(match (here.first(), problems.is_empty()) {
            (None, _) => {
                format!("node {name} has no pod of the agent: no meshed pod can start there")
            }
            (Some(pod), true) => format!("node {name}: {} is not ready", pod.name_any()),
            (Some(_), false) => format!("node {name}: {}", problems.join("; ")),
        });
    }
    Ok(Outcome::fail_if(wrong, count(nodes.len(), "node", "nodes")))
}

fn answers(facts: &Facts) -> Verdict {
    let silent = facts.agents.iter().filter_map(|agent| {
        let reason = agent.status.as_ref().err()?;
        Some((&agent.node, reason))
    });
    let mut wrong = Vec::new();
    for (node, reason) in silent {
        // Of one that is not ready it was said why.
        if facts.place != Place::Cluster || is_ready_on(facts, node)? {
            wrong.push(format!("node {node}: {reason}"));
        }
    }
    Ok(Outcome::fail_if(wrong, kernels(facts)))
}

fn is_ready_on(facts: &Facts, node: &str) -> Result<bool, String> {
    let pods = agent_pods(facts)?;
    let here = pods.get(node).map(Vec::as_slice).unwrap_or_default();
    Ok(here.iter().any(|pod| pod::is_ready(pod)))
}

/// The kernels of the nodes, for the reader.
fn kernels(facts: &Facts) -> String {
    let mut kernels: Vec<&str> = statuses(facts)
        .map(|(_, status)| status.kernel.as_str())
        .collect();
    let nodes = count(kernels.len(), "node", "nodes");
    kernels.sort_unstable();
    kernels.dedup();
    match kernels.as_slice() {
        [] => "no agent is ready".to_owned(),
        kernels => format!("{nodes}, kernel {}", kernels.join(", ")),
    }
}

fn statuses(facts: &Facts) -> impl Iterator<Item = (&str, &NodeStatus)> {
    facts
        .agents
        .iter()
        .filter_map(|agent: &Agent| Some((agent.node.as_str(), agent.status.as_ref().ok()?)))
}

/// Collects what is wrong on each node that answers; those that do not have a check of their own.
fn per_node(
    facts: &Facts,
    ok: impl Into<String>,
    wrong: impl Fn(&NodeStatus) -> Vec<String>,
) -> Verdict {
    let all = statuses(facts).flat_map(|(node, status)| {
        let named = wrong(status)
            .into_iter()
            .map(move |problem| format!("node {node}: {problem}"));
        named.collect::<Vec<_>>()
    });
    Ok(Outcome::fail_if(all.collect::<Vec<_>>(), ok))
}

fn as_warning(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Fail(lines) => Outcome::Warn(lines),
        other => other,
    }
}

fn version(facts: &Facts) -> Verdict {
    let expected = facts.values()?.linkerd_version;
    let outcome = per_node(facts, expected.as_str(), |status| {
        if status.agent_version == expected {
            Vec::new()
        } else {
            vec![format!(
                "the agent is {}, the control plane {expected}",
                status.agent_version
            )]
        }
    });
    outcome.map(as_warning)
}

fn chained(facts: &Facts) -> Verdict {
    let mut places: Vec<String> = statuses(facts)
        .filter_map(|(_, status)| {
            let cni = status.cni.as_ref().filter(|cni| cni.chained)?;
            Some(cni.plugins.join(" > "))
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    per_node(facts, places.join("; "), |status| match &status.cni {
        Some(cni) if cni.chained => Vec::new(),
        Some(cni) => vec![format!(
            "mesh-cni is not in {}: {}",
            cni.file.as_deref().unwrap_or("any configuration"),
            cni.reason
        )],
        None => vec!["the agent does not look after the CNI configuration".to_owned()],
    })
}

fn foreign_cni(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    if let Ok(Some(cilium)) = &facts.objects.cilium {
        let value = |key: &str| cilium.data.as_ref().and_then(|data| data.get(key)).cloned();
        if value("cni-exclusive").as_deref() == Some("true") {
            wrong.push("Cilium's cni.exclusive is on: it renames every CNI configuration but its own, and mesh-cni with it".to_owned());
        }
        let socket_lb = value("kube-proxy-replacement").as_deref() == Some("true")
            || value("bpf-lb-sock").as_deref() == Some("true");
        if socket_lb && value("bpf-lb-sock-hostns-only").as_deref() != Some("true") {
            wrong.push("Cilium replaces Service addresses inside pods (socketLB): proxies see pods' addresses instead of Services'; set socketLB.hostNamespaceOnly=true".to_owned());
        }
    }
    let linkerd_cni = facts
        .objects
        .pods
        .as_deref()
        .unwrap_or_default()
        .iter()
        .find(|pod| pod::label(pod, "k8s-app") == Some("linkerd-cni"));
    if let Some(pod) = linkerd_cni {
        wrong.push(format!(
            "Linkerd's own CNI plugin runs too ({}): pods would be redirected twice",
            super::facts::full_name(pod)
        ));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn taint(facts: &Facts) -> Verdict {
    let key = facts.values()?.mesh_agent.startup_taint;
    // The value may carry an effect or value, as kubectl writes taints.
    let key = key.split(['=', ':']).next().unwrap_or_default().to_owned();
    if key.is_empty() {
        return Ok(Outcome::ok("meshAgent.startupTaint is off"));
    }
    let mut wrong = Vec::new();
    for node in see(&facts.objects.nodes)? {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        if taints.into_iter().flatten().any(|taint| taint.key == key) {
            wrong.push(format!(
                "node {} has the taint {key}: no other pod is scheduled there",
                node.name_any()
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn tier(facts: &Facts) -> Verdict {
    let mut tiers: BTreeMap<Tier, usize> = BTreeMap::new();
    for (_, status) in statuses(facts) {
        *tiers.entry(status.tier).or_default() += 1;
    }
    let text: Vec<String> = tiers
        .iter()
        .map(|(tier, nodes)| format!("{tier} on {}", count(*nodes, "node", "nodes")))
        .collect();
    let outcome = per_node(facts, text.join(", "), |status| {
        // Whoever forced a tier knows.
        if status.tier == Tier::Full || status.forced {
            Vec::new()
        } else {
            vec![format!("{}: {}", status.tier, status.reason)]
        }
    });
    outcome.map(as_warning)
}

fn self_test(facts: &Facts) -> Verdict {
    let passed = statuses(facts)
        .flat_map(|(_, status)| &status.self_test)
        .filter(|case| case.outcome == SelfTestOutcome::Passed)
        .count();
    let outcome = per_node(
        facts,
        format!("{} passed", count(passed, "case", "cases")),
        |status| {
            let cases = status.self_test.iter();
            cases
                .filter(|case| case.outcome == SelfTestOutcome::Failed)
                .map(|case| format!("{} ({})", case.name, case.detail))
                .collect()
        },
    );
    outcome.map(as_warning)
}
