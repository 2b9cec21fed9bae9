//! The node agents: one on each node, which redirects with the best tier and is chained into the
//! CNI configuration.

use std::collections::{BTreeMap, BTreeSet};

use mesh_core::node::{CniStatus, NodeStatus, PodRef, SelfTestOutcome, Tier};
use mesh_k8s::kinds::core::{NodeSelectorRequirement, PodSpec};
use mesh_k8s::kinds::{LabelSelector, LabelSelectorRequirement, Node, Pod, ResourceExt};
use mesh_k8s::{pod, select};

use super::causes::NOT_RUNNING;
use super::control_plane::{container_problems, is_agent};
use super::framework::{AppliesTo, Category, Check, CheckResult, Finding, Outcome};
use crate::cluster::agent;
use crate::facts::{Agent, Environment, Facts, fact_ref};
use crate::output::count;

pub(super) const CATEGORY: Category = Category {
    name: "mesh-agent",
    applies: |facts| {
        facts.environment != Environment::Machine && facts.is_installed_mode() && facts.has_agents()
    },
    checks: &[
        Check::new(
            "agent-ready",
            "a ready agent runs on every node",
            "kubectl -n {agent-ns} describe daemonset mesh-agent",
            ready,
        )
        .explained_by(&[NOT_RUNNING, &["controllers-permissions"]]),
        POD_SECURITY,
        Check::new(
            "agent-answers",
            "node agents respond",
            "kubectl -n {agent-ns} rollout restart daemonset mesh-agent",
            responding,
        )
        .explained_by(&[&["nodes-ready", "agent-ready"]])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "agent-version",
            "node agents have the control plane's version",
            "kubectl -n {agent-ns} rollout status daemonset mesh-agent",
            version,
        ),
        Check::new(
            "agent-cni",
            "mesh-cni is in the CNI chain of every node",
            "kubectl -n {agent-ns} logs -l app.kubernetes.io/name=mesh-agent; the agent restores its entry unless another plugin removes its files",
            chained,
        )
        .explained_by(&[&["nodes-ready", "agent-foreign-cni"]]),
        FOREIGN_CNI,
        Check::new(
            "agent-startup-taint",
            "no node has the agent's startup taint",
            "kubectl taint node NODE mesh-agent/not-ready-",
            taint,
        )
        .explained_by(&[&["nodes-ready", "agent-ready", "agent-cni"]]),
        Check::new(
            "tier",
            "connections are redirected with the best tier",
            "meshctl check explain tier: the better tier needs a newer kernel or the feature that the reason names",
            tier,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "self-test",
            "redirection works on this kernel",
            "meshctl check explain self-test shows which applications are affected",
            self_test,
        )
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "agent-warnings",
            "nothing on the nodes interferes with the redirection",
            "the row names the program or pod that interferes; the agent's log has the details",
            |facts| per_node(facts, "", |status| status.warnings.to_vec()).map(Outcome::into_warning),
        )
        .explained_by(&[&["agent-cni"]])
        .applies_to(AppliesTo::Everywhere),
        Check::new(
            "agent-waiting",
            "no pod is waiting to be redirected",
            "kubectl -n {agent-ns} logs -l app.kubernetes.io/name=mesh-agent; kubectl -n NAMESPACE delete pod POD replaces it",
            |facts| {
                // The agent may not have enrolled a new pod yet.
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
        )
        .applies_to(AppliesTo::Everywhere),
    ],
};

/// Also checked before the installation. Admission does not affect running agent pods, but rejects
/// their replacements.
pub(super) const POD_SECURITY: Check = Check::new(
    "pre-pod-security",
    "the node agents' namespace admits them",
    "kubectl label namespace {agent-ns} --overwrite pod-security.kubernetes.io/enforce=privileged",
    pod_security,
);

/// Also checked before the installation.
pub(super) const FOREIGN_CNI: Check = Check::new(
    "agent-foreign-cni",
    "no other plugin keeps mesh-cni out of the CNI chain",
    "reconfigure the other plugin as the row shows",
    foreign_cni,
);

/// Returns the agent pods by node.
fn agent_pods(facts: &Facts) -> Result<BTreeMap<String, Vec<&Pod>>, String> {
    let mut by_node: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
    let namespace = facts.agent_namespace();
    for pod in facts.live_pods()? {
        if is_agent(pod) && pod.namespace().as_ref() == Some(&namespace) {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            by_node
                .entry(node.unwrap_or_default())
                .or_default()
                .push(pod);
        }
    }
    Ok(by_node)
}

/// Returns the template of the agent's pods.
fn template(facts: &Facts) -> Result<Option<&PodSpec>, String> {
    let set = facts.agent_set()?;
    let set = set.ok_or_else(|| format!("DaemonSet {} is missing", agent::NAME))?;
    Ok(set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref()))
}

/// Returns the node selector of the agent's DaemonSet.
fn selector(facts: &Facts) -> Result<BTreeMap<String, String>, String> {
    Ok(template(facts)?
        .and_then(|spec| spec.node_selector.clone())
        .unwrap_or_default())
}

/// Returns whether the required node affinity of the agent's pods excludes a node: none of its
/// terms matches. Comparisons with `Gt` and `Lt` are assumed to match.
fn is_excluded_by_affinity(spec: Option<&PodSpec>, node: &Node) -> bool {
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let Some(required) = required else {
        return false;
    };
    let fields = [("metadata.name".to_owned(), node.name_any())].into();
    let matches = |all: &Option<Vec<NodeSelectorRequirement>>, labels: &BTreeMap<_, _>| {
        let comparable = all
            .iter()
            .flatten()
            .filter(|one| !matches!(one.operator.as_str(), "Gt" | "Lt"));
        let expressions = comparable.map(|one| LabelSelectorRequirement {
            key: one.key.clone(),
            operator: one.operator.clone(),
            values: one.values.clone(),
        });
        let selector = LabelSelector {
            match_expressions: Some(expressions.collect()),
            ..LabelSelector::default()
        };
        select::matches(&selector, Some(labels))
    };
    !required.node_selector_terms.iter().any(|term| {
        matches(&term.match_expressions, node.labels()) && matches(&term.match_fields, &fields)
    })
}

/// Returns the first label of the selector that the node lacks.
fn unmatched(selector: &BTreeMap<String, String>, node: &Node) -> Option<String> {
    let mut labels = selector.iter();
    labels
        .find(|(key, value)| node.labels().get(*key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
}

/// Returns the nodes that match the DaemonSet's selector or have meshed pods. Nodes that are not
/// Ready are excluded, because `nodes-ready` reports them.
fn wanted_nodes<'a>(
    facts: &'a Facts,
    selector: &BTreeMap<String, String>,
) -> Result<Vec<&'a Node>, String> {
    let with_meshed_pods: BTreeSet<&str> = facts
        .meshed_pods()?
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref())
        .collect();
    let chosen = fact_ref(&facts.objects.nodes)?.iter().filter(|node| {
        let selected = unmatched(selector, node).is_none();
        (selected || with_meshed_pods.contains(node.name_any().as_str()))
            && facts.unready_reason(node).is_none()
    });
    Ok(chosen.collect())
}

/// The repair for a wrong node selector of the agents.
const CORRECT_SELECTOR: &str = "correct meshAgent.nodeSelector in the values and {upgrade}; a change by hand: kubectl -n {agent-ns} rollout undo daemonset mesh-agent";

fn ready(facts: &Facts) -> CheckResult {
    let pods = agent_pods(facts)?;
    let selector = selector(facts)?;
    let all = fact_ref(&facts.objects.nodes)?;
    if !all.is_empty() && all.iter().all(|node| unmatched(&selector, node).is_some()) {
        let missing: BTreeSet<String> = all
            .iter()
            .filter_map(|node| unmatched(&selector, node))
            .collect();
        let missing: Vec<String> = missing.into_iter().collect();
        let finding = Finding::new(format!(
            "no node runs an agent, because none has the label {} that the nodeSelector of DaemonSet {} requires: no meshed pod can start",
            missing.join(" or "),
            agent::NAME
        ));
        return Ok(Outcome::fail(
            finding.with_fix(CORRECT_SELECTOR).into_root_cause(),
        ));
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
            let unmatched = unmatched(&selector, node);
            let by_affinity = is_excluded_by_affinity(template(facts)?, node);
            wrong.push(without_agent(&name, unmatched, by_affinity));
            continue;
        };
        let problems: Vec<Finding> = here
            .iter()
            .flat_map(|pod| container_problems(pod, facts.clock()))
            .collect();
        if problems.is_empty() {
            wrong.push(
                Finding::new(format!("node {name}: {} is not ready", pod.name_any())).with_fix(
                    format!(
                        "kubectl -n {{agent-ns}} logs {} --all-containers",
                        pod.name_any()
                    ),
                ),
            );
        } else {
            wrong.extend(problems.into_iter().map(|finding| Finding {
                text: format!("node {name}: {}", finding.text),
                ..finding
            }));
        }
    }
    Ok(Outcome::fail_if(wrong, count(nodes.len(), "node", "nodes")))
}

fn without_agent(node: &str, unmatched: Option<String>, by_affinity: bool) -> Finding {
    let text = format!("node {node} has no agent pod: no meshed pod can start there");
    match unmatched {
        Some(label) => Finding::new(format!(
            "{text}; it lacks the label {label} that the nodeSelector of DaemonSet {} requires",
            agent::NAME
        ))
        .with_fix(format!("kubectl label node {node} --overwrite {label}, or {CORRECT_SELECTOR}")),
        None if by_affinity => Finding::new(format!(
            "{text}; the node affinity of DaemonSet {} excludes it",
            agent::NAME
        ))
        .with_fix("remove affinity.nodeAffinity from the template, or have it match the node: kubectl -n {agent-ns} edit daemonset mesh-agent; a change by hand: kubectl -n {agent-ns} rollout undo daemonset mesh-agent"),
        None => Finding::new(text).with_fix(format!(
            "kubectl describe node {node}: a taint that meshAgent.tolerations does not tolerate excludes the agent"
        )),
    }
}

fn responding(facts: &Facts) -> CheckResult {
    let failed = facts.agents.iter().filter_map(|agent| {
        let reason = agent.status.as_ref().err()?;
        Some((&agent.node, reason))
    });
    let mut wrong = Vec::new();
    for (node, reason) in failed {
        // `agent-ready` reports agents that are not ready.
        if facts.environment != Environment::Cluster {
            wrong.push(
                Finding::new(format!("node {node}: {reason}"))
                    .with_fix("meshctl local logs --agent"),
            );
        } else if let Some(pod) = ready_on(facts, node)? {
            wrong.push(Finding::new(format!("node {node}: {reason}")).with_fix(format!(
                "kubectl -n {{agent-ns}} delete pod {}; its log shows why it does not respond: kubectl -n {{agent-ns}} logs {}",
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
        .find(|pod| pod::is_ready(pod) && !facts.is_on_unready_node(pod)))
}

/// Returns the number of nodes and their kernels, for the user.
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

/// Collects the problems of each node whose agent responds; `agent-answers` reports the others.
fn per_node(
    facts: &Facts,
    ok: impl Into<String>,
    wrong: impl Fn(&NodeStatus) -> Vec<String>,
) -> CheckResult {
    let all = statuses(facts).flat_map(|(node, status)| {
        let named = wrong(status)
            .into_iter()
            .map(move |problem| format!("node {node}: {problem}"));
        named.collect::<Vec<_>>()
    });
    Ok(Outcome::fail_if(all, ok))
}

fn version(facts: &Facts) -> CheckResult {
    let expected = &facts.values()?.linkerd_version;
    let outcome = per_node(facts, expected.as_str(), |status| {
        if status.agent_version == *expected {
            Vec::new()
        } else {
            vec![format!(
                "the agent is {}, the control plane {expected}",
                status.agent_version
            )]
        }
    });
    outcome.map(Outcome::into_warning)
}

fn chained(facts: &Facts) -> CheckResult {
    let mut places: Vec<String> = statuses(facts)
        .filter_map(|(_, status)| {
            let cni = status.cni.as_ref().filter(|cni| cni.chained)?;
            Some(cni.plugins.join(" > "))
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    let wrong = statuses(facts).filter_map(|(node, status)| match &status.cni {
        Some(cni) if cni.chained => None,
        Some(cni) => Some(not_chained(node, cni)),
        None => Some(Finding::new(format!(
            "node {node}: the agent does not manage the CNI configuration"
        ))),
    });
    Ok(Outcome::fail_if(wrong, places.join("; ")))
}

fn not_chained(node: &str, cni: &CniStatus) -> Finding {
    let finding = Finding::new(format!(
        "node {node}: mesh-cni is not in {}: {}",
        cni.file.as_deref().unwrap_or("any configuration"),
        cni.reason
    ));
    let unreadable = [
        "cannot read",
        "cannot parse",
        "is not a CNI",
        "is not valid",
    ];
    if !unreadable.iter().any(|text| cni.reason.contains(text)) {
        return finding;
    }
    finding.with_fix(format!(
        "on node {node}: correct or remove the file that the message names in {}; the network plugin writes it again, and the agent adds mesh-cni within seconds",
        cni.conf_dir.display()
    ))
}

/// The agent uses the network and directories of the node, which only the level `privileged`
/// admits. A namespace without the label has the cluster's default, which is usually privileged.
fn pod_security(facts: &Facts) -> CheckResult {
    let namespace = facts.agent_namespace();
    Ok(match facts.enforced_level(&namespace) {
        None | Some("privileged") => Outcome::ok(""),
        Some(level) => Outcome::fail(format!(
            "namespace {namespace} enforces {level:?}; the node agent needs \"privileged\""
        )),
    })
}

fn foreign_cni(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    if let Ok(Some(cilium)) = &facts.objects.cilium {
        let value = |key: &str| cilium.data.as_ref().and_then(|data| data.get(key)).cloned();
        if value("cni-exclusive").as_deref() == Some("true") {
            wrong.push(Finding::new("Cilium's cni.exclusive is on: it renames every other CNI configuration, including that of mesh-cni").with_fix("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set cni.exclusive=false"));
        }
        let socket_lb = value("kube-proxy-replacement").as_deref() == Some("true")
            || value("bpf-lb-sock").as_deref() == Some("true");
        if socket_lb && value("bpf-lb-sock-hostns-only").as_deref() != Some("true") {
            wrong.push(Finding::new("Cilium replaces Service addresses inside pods (socketLB): proxies see pods' addresses instead of Services'").with_fix("helm upgrade cilium cilium/cilium -n kube-system --reuse-values --set socketLB.hostNamespaceOnly=true"));
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
        let finding = Finding::new(format!(
            "Linkerd's CNI plugin runs, too ({}): pods would be redirected twice",
            crate::facts::full_name(pod)
        ));
        wrong.push(finding.with_fix(format!(
            "helm uninstall linkerd2-cni -n {}",
            pod.namespace().unwrap_or_default()
        )));
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn taint(facts: &Facts) -> CheckResult {
    let key = &facts.values()?.mesh_agent.startup_taint;
    // The setting may include a value and an effect, as in kubectl taint.
    let key = key.split(['=', ':']).next().unwrap_or_default();
    if key.is_empty() {
        return Ok(Outcome::ok("meshAgent.startupTaint is off"));
    }
    let mut wrong = Vec::new();
    for node in fact_ref(&facts.objects.nodes)? {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        if taints.into_iter().flatten().any(|taint| taint.key == key) {
            let finding = Finding::new(format!(
                "node {} has the taint {key}: no other pod is scheduled there",
                node.name_any()
            ));
            wrong.push(finding.with_fix(format!(
                "kubectl taint node {} {key}-, once the agent there is ready",
                node.name_any()
            )));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

fn tier(facts: &Facts) -> CheckResult {
    let mut tiers: BTreeMap<Tier, usize> = BTreeMap::new();
    for (_, status) in statuses(facts) {
        *tiers.entry(status.tier).or_default() += 1;
    }
    let text: Vec<String> = tiers
        .iter()
        .map(|(tier, nodes)| format!("{tier} on {}", count(*nodes, "node", "nodes")))
        .collect();
    let outcome = per_node(facts, text.join(", "), |status| {
        // A forced tier was chosen deliberately.
        if status.tier == Tier::Full || status.forced {
            Vec::new()
        } else {
            vec![format!("{}: {}", status.tier, status.reason)]
        }
    });
    outcome.map(Outcome::into_warning)
}

fn self_test(facts: &Facts) -> CheckResult {
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
    outcome.map(Outcome::into_warning)
}
