//! Workloads and pods of the control plane.

use mesh_core::annotation;
use mesh_k8s::{
    kinds::{
        DaemonSet, Deployment, IntOrString, Pod, ResourceExt,
        core::{ContainerState, ContainerStatus},
    },
    pod,
};

use super::super::{
    Facts, Line, Outcome, Verdict, count,
    facts::{Place, Seen, full_name, see},
    repair, webhook,
};
use crate::{clients::metrics::Sample, cluster::agent};

/// The components, by the label of their pods; each is the Deployment `linkerd-NAME`.
pub(in crate::check) const COMPONENTS: [&str; 3] = ["identity", "destination", "proxy-injector"];

pub(super) fn workloads(facts: &Facts) -> Verdict {
    let deployments = see(&facts.objects.deployments)?;
    let mut wrong = Vec::new();
    for component in COMPONENTS {
        let name = format!("linkerd-{component}");
        let found = deployments
            .iter()
            .find(|deployment| deployment.name_any() == name);
        let problem = match found {
            None => Some(
                Line::new(format!(
                    "Deployment {name} is missing{}",
                    closed(facts, component)
                ))
                .fixed_by("{upgrade}"),
            ),
            Some(deployment) => deployment_problem(facts, component, deployment),
        };
        wrong.extend(problem);
    }
    if facts.has_agents() {
        let sets = see(&facts.objects.daemon_sets)?;
        match sets.iter().find(|set| set.name_any() == agent::NAME) {
            None => wrong.push(
                Line::new(format!(
                    "DaemonSet {} is missing: no node redirects its pods",
                    agent::NAME
                ))
                .fixed_by("{upgrade}"),
            ),
            Some(set) => wrong.extend(daemon_set_problem(facts, set)),
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// What an injector that is away means for the cluster.
fn closed(facts: &Facts, component: &str) -> &'static str {
    match component {
        "proxy-injector" => webhook::fails_closed(facts).unwrap_or_default(),
        _ => "",
    }
}

/// Pods that were never made: quota, admission and missing service accounts show here.
fn deployment_problem(facts: &Facts, component: &str, deployment: &Deployment) -> Option<Line> {
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let status = deployment.status.as_ref();
    let made = status.and_then(|status| status.replicas).unwrap_or(0);
    let name = deployment.name_any();
    let consequence = closed(facts, component);
    if wanted == 0 {
        return Some(
            Line::new(format!("Deployment {name} is scaled to 0{consequence}")).fixed_by(format!(
                "kubectl -n {{ns}} scale deployment {name} --replicas=1"
            )),
        );
    }
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let failure = conditions
        .filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        .find_map(|condition| condition.message.clone());
    let describe = format!("kubectl -n {{ns}} describe deployment {name}");
    match failure {
        Some(message) => {
            let line = Line::new(format!(
                "Deployment {name} cannot make its pods: {message}{consequence}"
            ));
            Some(line.fixed_by(match quota(&message) {
                Some(quota) => format!(
                    "kubectl -n {{ns}} delete resourcequota {quota}, or raise it: kubectl -n {{ns}} edit resourcequota {quota}"
                ),
                None => format!("take away what the message names; {describe} has every attempt"),
            }))
        }
        None if made < wanted => Some(
            Line::new(format!(
                "Deployment {name} made {made} of {wanted} pods{consequence}"
            ))
            .fixed_by(describe),
        ),
        None => None,
    }
}

/// The name in `exceeded quota: NAME, requested: …`.
fn quota(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("exceeded quota: ")?;
    rest.split(',').next()
}

/// A DaemonSet has no condition that says why a pod was refused; its events do.
fn daemon_set_problem(facts: &Facts, set: &DaemonSet) -> Option<Line> {
    let status = set.status.as_ref()?;
    let name = set.name_any();
    (status.current_number_scheduled < status.desired_number_scheduled).then(|| {
        Line::new(format!(
            "DaemonSet {name} made {} of {} pods{}",
            status.current_number_scheduled,
            status.desired_number_scheduled,
            facts
                .last_warning("DaemonSet", &name)
                .map(|warning| format!(": {}", warning.trim()))
                .unwrap_or_default()
        ))
        .fixed_by(format!("kubectl -n {{ns}} describe daemonset {name}"))
    })
}

pub(super) fn unschedulable(facts: &Facts) -> Verdict {
    let (mut wrong, mut nothing_runs) = (Vec::new(), false);
    for pod in own_pods(facts)? {
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let refused = conditions.into_iter().flatten().find(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        });
        let Some(condition) = refused else { continue };
        let why = condition.message.as_deref().unwrap_or("no node fits");
        let selector = unmatched_selector(facts, pod);
        let line = Line::new(match &selector {
            Some(selector) => format!(
                "{}: no node has the label {selector} of its nodeSelector ({why})",
                full_name(pod)
            ),
            None => format!("{}: {why}", full_name(pod)),
        });
        wrong.push(line.fixed_by(match selector {
            Some(selector) => format!(
                "kubectl label node NODE {selector}, or correct nodeSelector in the values and {{upgrade}}"
            ),
            None => format!(
                "make room, or correct nodeSelector and tolerations in the values and {{upgrade}}; kubectl -n {{ns}} describe pod {} has the events",
                pod.name_any()
            ),
        }));
        let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT);
        let mut others = facts
            .control_pods()?
            .filter(|other| pod::label(other, annotation::CONTROL_PLANE_COMPONENT) == component);
        nothing_runs |= !others.any(pod::is_ready);
    }
    Ok(if nothing_runs {
        Outcome::fail_if(wrong, "")
    } else {
        Outcome::warn_if(wrong, "")
    })
}

/// The first label of a pod's node selector that no node has.
fn unmatched_selector(facts: &Facts, pod: &Pod) -> Option<String> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref()?;
    let nodes = facts.objects.nodes.as_ref().ok()?;
    let missing = selector.iter().find(|(key, value)| {
        !nodes
            .iter()
            .any(|node| node.labels().get(*key) == Some(value))
    });
    missing.map(|(key, value)| format!("{key}={value}"))
}

pub(super) fn containers(facts: &Facts) -> Verdict {
    // Those of the agents are said with their nodes.
    let pods = own_pods(facts)?
        .into_iter()
        .filter(|pod| !is_agent(pod) && !facts.is_on_lost_node(pod));
    Ok(Outcome::fail_if(
        pods.flat_map(|pod| container_problems(pod, facts.clock()))
            .collect(),
        "",
    ))
}

/// Is the pod one of the agent's DaemonSet?
pub(in crate::check) fn is_agent(pod: &Pod) -> bool {
    pod.owner_references()
        .iter()
        .any(|owner| owner.kind == "DaemonSet" && owner.name == agent::NAME)
}

/// The control plane's pods and the agents'.
fn own_pods(facts: &Facts) -> Seen<Vec<&Pod>> {
    let in_namespace = |pod: &&Pod| pod.namespace().as_deref() == Some(&facts.control_namespace);
    Ok(facts.live_pods()?.filter(in_namespace).collect())
}

/// Containers that cannot start or do not stay up, each with the kubelet's reason and what to do
/// about it.
pub(in crate::check) fn container_problems(pod: &Pod, now: u64) -> Vec<Line> {
    container_statuses(pod)
        .filter_map(|container| container_line(pod, container, now))
        .collect()
}

/// The same of one container.
pub(in crate::check) fn problem_of(pod: &Pod, container: &str, now: u64) -> Option<Line> {
    let mut own = container_statuses(pod).filter(|status| status.name == container);
    own.find_map(|status| container_line(pod, status, now))
}

fn container_line(pod: &Pod, container: &ContainerStatus, now: u64) -> Option<Line> {
    let problem = container_problem(container).or_else(|| does_not_stay_up(pod, container, now))?;
    let line = Line::new(format!(
        "{}, container {}: {problem}",
        full_name(pod),
        container.name
    ));
    Some(line.fixed_by(container_fix(pod, container)))
}

/// A container that never ran has no log.
fn container_fix(pod: &Pod, container: &ContainerStatus) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let undo = repair::workload(pod)
        .map(|workload| format!("kubectl -n {namespace} rollout undo {workload}"));
    let waiting = container
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref())
        .and_then(|waiting| waiting.reason.as_deref());
    let ended = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    if waiting.is_none() && ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled"))
    {
        return match container.name.as_str() {
            pod::PROXY_CONTAINER => "raise the annotation config.linkerd.io/proxy-memory-limit of the workload's template, or the value proxy.resources.memory.limit".to_owned(),
            _ => "raise the memory limit in the values and {upgrade}".to_owned(),
        };
    }
    match waiting.unwrap_or_default() {
        reason if reason.contains("Image") => {
            let spec = pod.spec.as_ref();
            let image = spec
                .into_iter()
                .flat_map(pod::containers)
                .find(|one| one.name == container.name)
                .and_then(|one| one.image.as_deref())
                .unwrap_or(&container.image);
            let node = spec.and_then(|spec| spec.node_name.as_deref());
            let load = format!(
                "load the image {image} into {} or correct its name",
                node.map_or_else(|| "its node".to_owned(), |node| format!("node {node}")),
            );
            match undo {
                Some(undo) => format!("{undo}, where a change brought it; else {load}"),
                None => load,
            }
        }
        "CreateContainerConfigError" | "CreateContainerError" => {
            format!("kubectl -n {namespace} describe pod {name}")
        }
        _ => format!(
            "kubectl -n {namespace} logs {name} -c {} --previous{}",
            container.name,
            undo.map_or_else(String::new, |undo| format!(
                "; {undo}, where a change brought it"
            ))
        ),
    }
}

/// Whether there is a process to ask: a container that waits for its image or for its next start
/// has none. Where nobody wrote down what runs, it may.
pub(in crate::check) fn may_answer(pod: &Pod, container: &str) -> bool {
    let own = container_statuses(pod).find(|status| status.name == container);
    let state = own.and_then(|status| status.state.as_ref());
    state.is_none_or(|state| state.running.is_some())
}

/// Of the init containers first, as they start.
fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

/// A container that runs now, was started anew in the last two minutes, and at least the third
/// time; or that the kernel ended within an hour for want of memory.
fn does_not_stay_up(pod: &Pod, container: &ContainerStatus, now: u64) -> Option<String> {
    const RESTARTS: i32 = 3;
    const LATELY: u64 = 120;
    const HOUR: u64 = 3600;
    let running = container.state.as_ref()?.running.as_ref()?;
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    let started = u64::try_from(running.started_at.as_ref()?.0.as_second()).ok()?;
    let since = now.saturating_sub(started);
    let out_of_memory = ended.reason.as_deref() == Some("OOMKilled") && since < HOUR;
    let again = container.restart_count >= RESTARTS && since < LATELY;
    if !out_of_memory && !again {
        return None;
    }
    let of_spec = pod
        .spec
        .iter()
        .flat_map(pod::containers)
        .find(|one| one.name == container.name);
    let limit = of_spec
        .and_then(|one| one.resources.as_ref()?.limits.as_ref()?.get("memory"))
        .map_or_else(String::new, |limit| format!(" (its limit is {})", limit.0));
    Some(match out_of_memory {
        true => format!(
            "OOMKilled: it needed more memory than it may have{limit}, {} times so far",
            container.restart_count
        ),
        false => format!(
            "it does not stay up: ended {} times, last with code {}",
            container.restart_count, ended.exit_code
        ),
    })
}

/// Waiting for these is a matter of seconds, or of another container that is named itself.
const HARMLESS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

fn container_problem(container: &ContainerStatus) -> Option<String> {
    let waiting = container
        .state
        .as_ref()
        .and_then(|state: &ContainerState| state.waiting.as_ref())?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !HARMLESS.contains(reason))?;
    let ended = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last = ended.map(|ended| {
        format!(
            ", ended {} times, last with code {}{}",
            container.restart_count,
            ended.exit_code,
            ended
                .message
                .as_deref()
                .map(|message| format!(": {}", message.trim()))
                .unwrap_or_default()
        )
    });
    Some(format!(
        "{reason}{}{}",
        last.unwrap_or_default(),
        waiting
            .message
            .as_deref()
            .filter(|_| container.restart_count == 0)
            .map(|message| format!(": {message}"))
            .unwrap_or_default()
    ))
}

pub(super) fn ready(facts: &Facts) -> Verdict {
    let pods: Vec<&Pod> = facts.control_pods()?.collect();
    let components: &[&str] = match facts.place {
        Place::Cluster => &COMPONENTS,
        // Pods of a local node are patched by the node itself.
        _ => &COMPONENTS[..2],
    };
    let (mut wrong, mut away) = (Vec::new(), false);
    for component in components {
        let own: Vec<&&Pod> = pods
            .iter()
            .filter(|pod| pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some(*component))
            .collect();
        let late: Vec<String> = own
            .iter()
            .filter(|pod| !pod::is_ready(pod))
            .map(|pod| match unready(facts, pod) {
                Some(reason) => format!("{} ({reason})", full_name(pod)),
                None => full_name(pod),
            })
            .collect();
        if own.is_empty() {
            let consequence = closed(facts, component);
            wrong.push(Line::new(format!(
                "there is no pod of {component}{consequence}"
            )));
        } else if !late.is_empty() {
            let consequence = match late.len() == own.len() {
                true => closed(facts, component),
                false => "",
            };
            let line = Line::new(format!(
                "{component} is not ready: {}{consequence}",
                late.join(", ")
            ));
            wrong.push(match facts.place {
                Place::Cluster => line.fixed_by(format!(
                    "kubectl -n {{ns}} logs deployment/linkerd-{component} --all-containers"
                )),
                _ => line.fixed_by(
                    "meshctl local status; meshctl local logs tells why a pod is not ready",
                ),
            });
        }
        away |= late.len() == own.len();
    }
    Ok(match (wrong.is_empty(), away) {
        (true, _) => Outcome::ok(components.join(", ")),
        (false, true) => Outcome::Fail(wrong),
        // The others answer.
        (false, false) => Outcome::Warn(wrong),
    })
}

/// Which container is not ready and how its probe fails; or what else was said of the pod.
fn unready(facts: &Facts, pod: &Pod) -> Option<String> {
    if facts.is_on_lost_node(pod) {
        return Some("its node is not Ready".to_owned());
    }
    let name = pod.name_any();
    let failing = container_statuses(pod).find(|container| {
        let running = container
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some());
        running && !container.ready
    });
    let Some(failing) = failing else {
        return facts
            .last_warning("Pod", &name)
            .map(|warning| warning.trim().to_owned());
    };
    let probe = pod
        .spec
        .as_ref()
        .into_iter()
        .flat_map(pod::containers)
        .find(|container| container.name == failing.name)
        .and_then(|container| container.readiness_probe.as_ref()?.http_get.as_ref());
    let probe = probe.map_or_else(String::new, |get| {
        let port = match &get.port {
            IntOrString::Int(port) => port.to_string(),
            IntOrString::String(port) => port.clone(),
        };
        format!(" GET {} on port {port}", get.path.as_deref().unwrap_or("/"))
    });
    let said = facts
        .container_warning(&name, &failing.name)
        .or_else(|| facts.last_warning("Pod", &name));
    Some(format!(
        "container {}: its readiness probe{probe} fails{}",
        failing.name,
        said.map_or_else(String::new, |said| format!(": {}", said.trim()))
    ))
}

pub(super) fn controllers_ready(facts: &Facts) -> Verdict {
    let wrong = facts.controllers.iter().filter_map(|controller| {
        let reason = controller.ready.as_ref().err()?;
        let line = Line::new(format!(
            "{} in {}: {reason}",
            controller.name, controller.pod
        ));
        Some(match facts.place {
            Place::Cluster => line.fixed_by(format!(
                "kubectl -n {{ns}} logs {} -c {}: it names what cannot be read",
                pod_name(&controller.pod),
                controller.name
            )),
            _ => line,
        })
    });
    let mut names: Vec<&str> = facts
        .controllers
        .iter()
        .map(|controller| controller.name)
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(Outcome::fail_if(wrong.collect(), names.join(", ")))
}

/// Without the namespace.
fn pod_name(full: &str) -> &str {
    full.rsplit('/').next().unwrap_or(full)
}

/// What a controller cannot follow it remembers, so it goes on answering with what was: nothing
/// else shows it.
pub(super) fn controllers_follow(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    for controller in &facts.controllers {
        let samples = controller.metrics.as_deref().unwrap_or_default();
        let is = |name: &str, kind: &Sample, value: f64| {
            samples.iter().any(|sample| {
                sample.name == name && sample.labels == kind.labels && sample.value == value
            })
        };
        // A kind that is not served cannot change.
        let stale = samples
            .iter()
            .filter(|kind| is(SYNCED, kind, 0.0) && kind.name == SERVED && kind.value == 1.0);
        let kinds: Vec<&str> = stale.map(|kind| kind.label("kind")).collect();
        if !kinds.is_empty() {
            wrong.push(format!(
                "{} in {} learns of no change of: {}",
                controller.name,
                controller.pod,
                kinds.join(", ")
            ));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// The controllers' own word, from their metrics.
const SERVED: &str = "source_kind_served";
const SYNCED: &str = "source_kind_synced";

pub(super) fn proxies(facts: &Facts) -> Verdict {
    let own: Vec<_> = facts
        .proxies
        .iter()
        .filter(|proxy| proxy.namespace == facts.control_namespace)
        .collect();
    if own.is_empty() {
        return Ok(Outcome::warn("no pod of the control plane has a proxy"));
    }
    let wrong = own.iter().filter_map(|proxy| {
        let reason = proxy.ready.as_ref().err()?;
        let line = Line::new(format!("{}/{}: {reason}", proxy.namespace, proxy.pod));
        Some(match facts.place {
            Place::Cluster => line.fixed_by(format!(
                "kubectl -n {{ns}} logs {} -c linkerd-proxy",
                proxy.pod
            )),
            _ => line.fixed_by(format!("meshctl local logs {} -c linkerd-proxy", proxy.pod)),
        })
    });
    Ok(Outcome::fail_if(
        wrong.collect::<Vec<_>>(),
        count(own.len(), "proxy", "proxies"),
    ))
}

pub(super) fn replicas(facts: &Facts) -> Verdict {
    let deployments = see(&facts.objects.deployments)?;
    let single = deployments.iter().filter(|deployment| {
        let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        COMPONENTS
            .iter()
            .any(|name| deployment.name_any() == format!("linkerd-{name}"))
            && replicas.unwrap_or(1) < 2
    });
    let wrong = single.map(|deployment| {
        format!(
            "Deployment {} runs once though highAvailability is on",
            deployment.name_any()
        )
    });
    Ok(Outcome::warn_if(wrong.collect(), ""))
}
