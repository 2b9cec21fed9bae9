//! The node agents: one on each node, redirecting by the best tier, chained into the node's CNI
//! configuration.

use std::collections::{BTreeMap, BTreeSet};

use mesh_core::node::{NodeStatus, PodRef, SelfTestOutcome, Tier};
use mesh_k8s::{
    kinds::{Node, Pod, ResourceExt},
    pod,
};

use super::{
    Category, Check, Ends, Facts, Line, On, Outcome, Place, Verdict,
    causes::NOT_RUNNING,
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
            advice: "kubectl -n {ns} describe daemonset mesh-agent",
            explained_by: &[NOT_RUNNING, &["controllers-permissions"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: ready,
        },
        super::setup::POD_SECURITY,
        Check {
            anchor: "agent-answers",
            description: "node agents answer",
            advice: "kubectl -n {ns} rollout restart daemonset mesh-agent",
            explained_by: &[&["nodes-ready", "agent-ready"]],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: answers,
        },
        Check {
            anchor: "agent-version",
            description: "node agents are of the control plane's version",
            advice: "kubectl -n {ns} rollout status daemonset mesh-agent",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: version,
        },
        Check {
            anchor: "agent-cni",
            description: "mesh-cni is in the CNI chain of every node",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent; the agent puts its entry back by itself unless another plugin takes files away",
            explained_by: &[&["nodes-ready", "agent-foreign-cni"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: chained,
        },
        FOREIGN_CNI,
        Check {
            anchor: "agent-startup-taint",
            description: "no node is still held back by the agent's taint",
            advice: "kubectl taint node NODE mesh-agent/not-ready-",
            explained_by: &[&["nodes-ready", "agent-ready", "agent-cni"]],
            ends: Ends::Nothing,
            on: On::Cluster,
            look: taint,
        },
        Check {
            anchor: "tier",
            description: "connections are redirected by the best tier",
            advice: "meshctl check explain tier: a newer kernel, or what the reason says is missing, brings the better tier",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: tier,
        },
        Check {
            anchor: "self-test",
            description: "redirection works on this kernel",
            advice: "meshctl check explain self-test says which applications notice",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: self_test,
        },
        Check {
            anchor: "agent-warnings",
            description: "nothing on the nodes disturbs the redirection",
            advice: "the sentence names the program or pod that disturbs; the agent's log has the details",
            explained_by: &[&["agent-cni"]],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| per_node(facts, "", |status| status.warnings.to_vec()).map(as_warning),
        },
        Check {
            anchor: "agent-waiting",
            description: "no pod waits to be redirected",
            advice: "kubectl -n {ns} logs -l app.kubernetes.io/name=mesh-agent; kubectl -n NAMESPACE delete pod POD starts it anew",
            explained_by: &[],
            ends: Ends::Nothing,
            on: On::Anywhere,
            look: |facts| {
                // A pod that was made this moment is enrolled in the next.
                let new = |pod: &PodRef| {
                    facts.live_pods().is_ok_and(|mut pods| {
                        pods.any(|live| {
                            live.name_any() == pod.name
                                && live.namespace().as_ref() == Some(&pod.namespace)
                                && facts.is_new(live)
                        })
                    })
                };
                per_node(facts, "", |status| {
                    let waiting = status.waiting.iter();
                    waiting
                        .filter(|waiting| !new(&waiting.pod))
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
    advice: "give way to mesh-cni as the row says",
    explained_by: &[],
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

/// What the DaemonSet asks of a node's labels.
fn selector(facts: &Facts) -> Result<BTreeMap<String, String>, String> {
    let sets = see(&facts.objects.daemon_sets)?;
    let set = sets.iter().find(|set| set.name_any() == agent::NAME);
    let set = set.ok_or_else(|| format!("DaemonSet {} is missing", agent::NAME))?;
    let template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    Ok(template
        .and_then(|spec| spec.node_selector.clone())
        .unwrap_or_default())
}

/// The first label that the DaemonSet asks for and the node has not.
fn unmatched(selector: &BTreeMap<String, String>, node: &Node) -> Option<String> {
    let mut labels = selector.iter();
    labels
        .find(|(key, value)| node.labels().get(*key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
}

/// The nodes that the DaemonSet's selector chooses, and those that run meshed pods although it does
/// not. Of nodes that are not Ready a check of its own speaks.
fn wanted_nodes<'a>(
    facts: &'a Facts,
    selector: &BTreeMap<String, String>,
) -> Result<Vec<&'a Node>, String> {
    let with_meshed_pods: BTreeSet<&str> = facts
        .meshed_pods()?
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let chosen = see(&facts.objects.nodes)?.iter().filter(|node| {
        let selected = unmatched(selector, node).is_none();
        (selected || with_meshed_pods.contains(node.name_any().as_str()))
            && facts.node_trouble(node).is_none()
    });
    Ok(chosen.collect())
}

/// How an operator gives the agents their nodes back.
const CORRECT_SELECTOR: &str = "correct meshAgent.nodeSelector in the values and {upgrade}; a change by hand: kubectl -n {ns} rollout undo daemonset mesh-agent";

fn ready(facts: &Facts) -> Verdict {
    let pods = agent_pods(facts)?;
    let selector = selector(facts)?;
    let all = see(&facts.objects.nodes)?;
    if !all.is_empty() && all.iter().all(|node| unmatched(&selector, node).is_some()) {
        let missing: BTreeSet<String> = all
            .iter()
            .filter_map(|node| unmatched(&selector, node))
            .collect();
        let missing: Vec<String> = missing.into_iter().collect();
        let line = Line::new(format!(
            "no node has a pod of the agent, for none has the label {} that the nodeSelector of DaemonSet {} asks for: no meshed pod can start",
            missing.join(" or "),
            agent::NAME
        ));
        return Ok(Outcome::fail(line.fixed_by(CORRECT_SELECTOR).own()));
    }
    let nodes = wanted_nodes(facts, &selector)?;
    let mut wrong = Vec::new();
    for node in &nodes {
        let name = node.name_any();
        let here = pods.get(&name).map(Vec::as_slice).unwrap_or_default();
        if here.iter().any(|pod| pod::is_ready(pod)) {
            continue;
        }
        let Some(pod) = here.first() else {
            wrong.push(without_agent(&name, unmatched(&selector, node)));
            continue;
        };
        let problems: Vec<Line> = here
            .iter()
            .flat_map(|pod| container_problems(pod, facts.clock()))
            .collect();
        match problems.is_empty() {
            true => wrong.push(
                Line::new(format!("node {name}: {} is not ready", pod.name_any())).fixed_by(
                    format!("kubectl -n {{ns}} logs {} --all-containers", pod.name_any()),
                ),
            ),
            false => wrong.extend(problems.into_iter().map(|line| Line {
                text: format!("node {name}: {}", line.text),
                ..line
            })),
        }
    }
    Ok(Outcome::fail_if(wrong, count(nodes.len(), "node", "nodes")))
}

fn without_agent(node: &str, unmatched: Option<String>) -> Line {
    let text = format!("node {node} has no pod of the agent: no meshed pod can start there");
    match unmatched {
        Some(label) => Line::new(format!(
            "{text}; it has not the label {label} that the nodeSelector of DaemonSet {} asks for",
            agent::NAME
        ))
        .fixed_by(format!("kubectl label node {node} --overwrite {label}, or {CORRECT_SELECTOR}")),
        None => Line::new(text).fixed_by(format!(
            "kubectl describe node {node}: a taint that meshAgent.tolerations does not tolerate keeps the agent away"
        )),
    }
}

fn answers(facts: &Facts) -> Verdict {
    let silent = facts.agents.iter().filter_map(|agent| {
        let reason = agent.status.as_ref().err()?;
        Some((&agent.node, reason))
    });
    let mut wrong = Vec::new();
    for (node, reason) in silent {
        // Of one that is not ready it was said why.
        if facts.place != Place::Cluster {
            wrong.push(
                Line::new(format!("node {node}: {reason}")).fixed_by("meshctl local logs --agent"),
            );
        } else if let Some(pod) = ready_on(facts, node)? {
            wrong.push(Line::new(format!("node {node}: {reason}")).fixed_by(format!(
                "kubectl -n {{ns}} delete pod {}; its log says why it does not answer: kubectl -n {{ns}} logs {}",
                pod.name_any(),
                pod.name_any()
            )));
        }
    }
    Ok(Outcome::fail_if(wrong, kernels(facts)))
}

fn ready_on<'a>(facts: &'a Facts, node: &str) -> Result<Option<&'a Pod>, String> {
    let here = agent_pods(facts)?.remove(node).unwrap_or_default();
    Ok(here
        .into_iter()
        .find(|pod| pod::is_ready(pod) && !facts.is_on_lost_node(pod)))
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

pub(super) fn statuses(facts: &Facts) -> impl Iterator<Item = (&str, &NodeStatus)> {
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
            wrong.push(Line::new("Cilium's cni.exclusive is on: it renames every CNI configuration but its own, and mesh-cni with it").fixed_by("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set cni.exclusive=false"));
        }
        let socket_lb = value("kube-proxy-replacement").as_deref() == Some("true")
            || value("bpf-lb-sock").as_deref() == Some("true");
        if socket_lb && value("bpf-lb-sock-hostns-only").as_deref() != Some("true") {
            wrong.push(Line::new("Cilium replaces Service addresses inside pods (socketLB): proxies see pods' addresses instead of Services'").fixed_by("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set socketLB.hostNamespaceOnly=true"));
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
        let line = Line::new(format!(
            "Linkerd's own CNI plugin runs too ({}): pods would be redirected twice",
            super::facts::full_name(pod)
        ));
        wrong.push(line.fixed_by(format!(
            "helm uninstall linkerd2-cni -n {}",
            pod.namespace().unwrap_or_default()
        )));
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
            let line = Line::new(format!(
                "node {} has the taint {key}: no other pod is scheduled there",
                node.name_any()
            ));
            wrong.push(line.fixed_by(format!(
                "kubectl taint node {} {key}-, once the agent there is ready",
                node.name_any()
            )));
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
