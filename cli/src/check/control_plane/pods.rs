//! Workloads and pods of the control plane.

use mesh_core::annotation;
use mesh_k8s::{
    kinds::{
        DaemonSet, Deployment, Pod, ResourceExt,
        core::{ContainerState, ContainerStatus},
    },
    pod,
};

use super::super::{
    Facts, Outcome, Verdict, count,
    facts::{Place, Seen, full_name, see},
};
use crate::{cluster::agent, talk::metrics::Sample};

/// The components, by the label of their pods; each is the Deployment `linkerd-NAME`.
pub(in crate::check) const COMPONENTS: [&str; 3] = ["identity", "destination", "proxy-injector"];

pub(super) fn workloads(facts: &Facts) -> Verdict {
    let deployments = see(&facts.objects.deployments)?;
    let mut wrong = Vec::new();
    for component in COMPONENTS {
        let name = format!("linkerd-{component}");
        match deployments
            .iter()
            .find(|deployment| deployment.name_any() == name)
        {
            None => wrong.push(format!("Deployment {name} is missing")),
            Some(deployment) => wrong.extend(deployment_problem(deployment)),
        }
    }
    if facts.has_agents() {
        let sets = see(&facts.objects.daemon_sets)?;
        match sets.iter().find(|set| set.name_any() == agent::NAME) {
            None => wrong.push(format!(
                "DaemonSet {} is missing: no node redirects its pods",
                agent::NAME
            )),
            Some(set) => wrong.extend(daemon_set_problem(facts, set)),
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Pods that were never made: quota, admission and missing service accounts show here.
fn deployment_problem(deployment: &Deployment) -> Option<String> {
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let status = deployment.status.as_ref();
    let made = status.and_then(|status| status.replicas).unwrap_or(0);
    let name = deployment.name_any();
    if wanted == 0 {
        return Some(format!("Deployment {name} is scaled to 0"));
    }
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let failure = conditions
        .filter(|condition| condition.type_ == "ReplicaFailure" && condition.status == "True")
        .find_map(|condition| condition.message.clone());
    match failure {
        Some(message) => Some(format!("Deployment {name} cannot make its pods: {message}")),
        None if made < wanted => Some(format!("Deployment {name} made {made} of {wanted} pods")),
        None => None,
    }
}

/// A DaemonSet has no condition that says why a pod was refused; its events do.
fn daemon_set_problem(facts: &Facts, set: &DaemonSet) -> Option<String> {
    let status = set.status.as_ref()?;
    let name = set.name_any();
    (status.current_number_scheduled < status.desired_number_scheduled).then(|| {
        format!(
            "DaemonSet {name} made {} of {} pods{}",
            status.current_number_scheduled,
            status.desired_number_scheduled,
            facts
                .last_warning("DaemonSet", &name)
                .map(|warning| format!(": {}", warning.trim()))
                .unwrap_or_default()
        )
    })
}

pub(super) fn unschedulable(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
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
        if let Some(condition) = refused {
            wrong.push(format!(
                "{}: {}",
                full_name(pod),
                condition.message.as_deref().unwrap_or("no node fits")
            ));
        }
    }
    Ok(Outcome::warn_if(wrong, ""))
}

pub(super) fn containers(facts: &Facts) -> Verdict {
    // Those of the agents are said with their nodes.
    let pods = own_pods(facts)?.into_iter().filter(|pod| !is_agent(pod));
    Ok(Outcome::fail_if(
        pods.flat_map(container_problems).collect(),
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

/// Containers that cannot start or do not stay up, each with the kubelet's reason.
pub(in crate::check) fn container_problems(pod: &Pod) -> Vec<String> {
    container_statuses(pod)
        .filter_map(|container| {
            let problem = container_problem(container)?;
            Some(format!(
                "{}, container {}: {problem}",
                full_name(pod),
                container.name
            ))
        })
        .collect()
}

/// Whether there is a process to ask: a container that waits for its image or for its next start has none. Where nobody wrote down what runs, it may.
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
    let (mut wrong, mut nobody) = (Vec::new(), false);
    for component in components {
        let own: Vec<&&Pod> = pods
            .iter()
            .filter(|pod| pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some(*component))
            .collect();
        let late: Vec<String> = own
            .iter()
            .filter(|pod| !pod::is_ready(pod))
            .map(|pod| match facts.last_warning("Pod", &pod.name_any()) {
                Some(warning) => format!("{} ({})", full_name(pod), warning.trim()),
                None => full_name(pod),
            })
            .collect();
        if own.is_empty() {
            wrong.push(format!("there is no pod of {component}"));
        } else if !late.is_empty() {
            wrong.push(format!("{component} is not ready: {}", late.join(", ")));
        }
        nobody |= late.len() == own.len();
    }
    Ok(match (wrong.is_empty(), nobody) {
        (true, _) => Outcome::ok(components.join(", ")),
        (false, true) => Outcome::fail_if(wrong, ""),
        // The others answer.
        (false, false) => Outcome::warn_if(wrong, ""),
    })
}

pub(super) fn controllers_ready(facts: &Facts) -> Verdict {
    let wrong = facts.controllers.iter().filter_map(|controller| {
        let reason = controller.ready.as_ref().err()?;
        Some(format!(
            "{} in {}: {reason}",
            controller.name, controller.pod
        ))
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

/// What a controller cannot follow it remembers, so it goes on answering with what was: nothing else shows it.
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
        Some(format!("{}/{}: {reason}", proxy.namespace, proxy.pod))
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
