//! The workloads and pods of the control plane.

use mesh_core::annotation;
use mesh_core::exposition::Sample;
use mesh_k8s::kinds::core::ContainerStatus;
use mesh_k8s::kinds::{DaemonSet, Deployment, IntOrString, Pod, ResourceExt};
use mesh_k8s::pod;

use super::super::framework::{CheckResult, Finding, Outcome};
use super::super::{admission, fix, images, webhook};
use crate::cluster::agent;
use crate::facts::containers::{
    container_of, container_statuses, last_end, running_since, waiting,
};
use crate::facts::names::COMPONENTS;
use crate::facts::{Environment, Fact, Facts, fact_ref, full_name};
use crate::output::count;

pub(super) fn workloads(facts: &Facts) -> CheckResult {
    let deployments = fact_ref(&facts.objects.deployments)?;
    let mut wrong = Vec::new();
    for component in COMPONENTS {
        let name = format!("linkerd-{component}");
        let found = deployments
            .iter()
            .find(|deployment| deployment.name_any() == name);
        let problem = match found {
            None => Some(
                Finding::new(format!(
                    "Deployment {name} is missing{}",
                    fail_closed_notice(facts, component)
                ))
                .with_fix("{upgrade}"),
            ),
            Some(deployment) => deployment_problem(facts, component, deployment),
        };
        wrong.extend(problem);
    }
    if facts.has_agents() {
        match facts.agent_set()? {
            None => wrong.push(
                Finding::new(format!(
                    "DaemonSet {} is missing: pods are not redirected on any node",
                    agent::NAME
                ))
                .with_fix("{upgrade}"),
            ),
            Some(set) => wrong.extend(daemon_set_problem(facts, set)),
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Describes the consequence of a missing injector for the cluster.
fn fail_closed_notice(facts: &Facts, component: &str) -> &'static str {
    match component {
        "proxy-injector" => webhook::fails_closed(facts).unwrap_or_default(),
        _ => "",
    }
}

/// Finds pods that a Deployment could not create, because of quotas, admission or missing service
/// accounts.
fn deployment_problem(facts: &Facts, component: &str, deployment: &Deployment) -> Option<Finding> {
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    let status = deployment.status.as_ref();
    let created = status.and_then(|status| status.replicas).unwrap_or(0);
    let name = deployment.name_any();
    let consequence = fail_closed_notice(facts, component);
    if wanted == 0 {
        return Some(
            Finding::new(format!("Deployment {name} is scaled to 0{consequence}")).with_fix(
                format!("kubectl -n {{ns}} scale deployment {name} --replicas=1"),
            ),
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
            let finding = Finding::new(format!(
                "Deployment {name} cannot create its pods: {message}{consequence}"
            ));
            Some(
                finding.with_fix(admission::fix(&message, "{ns}").unwrap_or_else(|| {
                    format!(
                        "remove the obstacle that the message names; {describe} shows every attempt"
                    )
                })),
            )
        }
        None if created < wanted => Some(
            Finding::new(format!(
                "Deployment {name} created {created} of {wanted} pods{consequence}"
            ))
            .with_fix(describe),
        ),
        None => None,
    }
}

/// Finds pods that a DaemonSet could not create. Only its events have the reason, because it has no
/// condition for it.
fn daemon_set_problem(facts: &Facts, set: &DaemonSet) -> Option<Finding> {
    let status = set.status.as_ref()?;
    let name = set.name_any();
    (status.current_number_scheduled < status.desired_number_scheduled).then(|| {
        let warning = facts.last_warning("DaemonSet", &name);
        let fix = warning.and_then(|warning| admission::fix(warning, "{agent-ns}"));
        Finding::new(format!(
            "DaemonSet {name} created {} of {} pods{}",
            status.current_number_scheduled,
            status.desired_number_scheduled,
            warning
                .map(|warning| format!(": {}", warning.trim()))
                .unwrap_or_default()
        ))
        .with_fix(
            fix.unwrap_or_else(|| format!("kubectl -n {{agent-ns}} describe daemonset {name}")),
        )
    })
}

pub(super) fn unschedulable(facts: &Facts) -> CheckResult {
    let (mut wrong, mut is_component_down) = (Vec::new(), false);
    for pod in own_pods(facts)? {
        let scheduled = pod::condition(pod, "PodScheduled");
        let unscheduled = scheduled.filter(|condition| {
            condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable")
        });
        let Some(condition) = unscheduled else {
            continue;
        };
        let reason = condition.message.as_deref().unwrap_or("no node fits");
        let selector = unmatched_selector(facts, pod);
        let finding = Finding::new(match &selector {
            Some(selector) => format!(
                "{}: no node has the label {selector} of its nodeSelector ({reason})",
                full_name(pod)
            ),
            None => format!("{}: {reason}", full_name(pod)),
        });
        wrong.push(finding.with_fix(match selector {
            Some(selector) => format!(
                "kubectl label node NODE {selector}, or correct nodeSelector in the values and {{upgrade}}"
            ),
            None => format!(
                "free resources, or correct nodeSelector and tolerations in the values and {{upgrade}}; kubectl -n {} describe pod {} shows the events",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            ),
        }));
        let component = pod::label(pod, annotation::CONTROL_PLANE_COMPONENT);
        let mut others = facts
            .control_pods()?
            .filter(|other| pod::label(other, annotation::CONTROL_PLANE_COMPONENT) == component);
        is_component_down |= !others.any(pod::is_ready);
    }
    Ok(if is_component_down {
        Outcome::fail_if(wrong, "")
    } else {
        Outcome::warn_if(wrong, "")
    })
}

/// Returns the first label of the pod's node selector that no node has.
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

pub(super) fn containers(facts: &Facts) -> CheckResult {
    // `agent-ready` reports the containers of agents with their nodes.
    let pods = own_pods(facts)?
        .into_iter()
        .filter(|pod| !is_agent(pod) && !facts.is_on_unready_node(pod));
    let wrong = pods.flat_map(|pod| container_problems(pod, facts.clock()));
    Ok(Outcome::fail_if(wrong, ""))
}

/// Returns whether the pod belongs to the agent's DaemonSet.
pub(in crate::check) fn is_agent(pod: &Pod) -> bool {
    pod.owner_references()
        .iter()
        .any(|owner| owner.kind == "DaemonSet" && owner.name == agent::NAME)
}

/// Returns the pods in the namespaces of the control plane and the agents.
fn own_pods(facts: &Facts) -> Fact<Vec<&Pod>> {
    let agents = facts.agent_namespace();
    let is_own = |pod: &&Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        namespace == facts.control_namespace || namespace == agents && is_agent(pod)
    };
    Ok(facts.live_pods()?.filter(is_own).collect())
}

/// Finds containers that cannot start or that crash, each with the kubelet's reason and a repair.
pub(in crate::check) fn container_problems(pod: &Pod, now: u64) -> Vec<Finding> {
    container_statuses(pod)
        .filter_map(|container| container_line(pod, container, now))
        .collect()
}

/// Returns the problem of one container.
pub(in crate::check) fn container_problem_of(
    pod: &Pod,
    container: &str,
    now: u64,
) -> Option<Finding> {
    let mut own = container_statuses(pod).filter(|status| status.name == container);
    own.find_map(|status| container_line(pod, status, now))
}

fn container_line(pod: &Pod, container: &ContainerStatus, now: u64) -> Option<Finding> {
    let problem =
        container_problem(container).or_else(|| restarts_repeatedly(pod, container, now))?;
    let finding = Finding::new(format!(
        "{}, container {}: {problem}",
        full_name(pod),
        container.name
    ));
    Some(finding.with_fix(container_fix(pod, container)))
}

/// Returns the repair for a container. The log helps only if the container has run.
fn container_fix(pod: &Pod, container: &ContainerStatus) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let state = waiting(container);
    let waiting = state.and_then(|waiting| waiting.reason.as_deref());
    if waiting.is_none()
        && last_end(container).is_some_and(|end| end.reason.as_deref() == Some("OOMKilled"))
    {
        return match container.name.as_str() {
            pod::PROXY_CONTAINER => "raise the annotation config.linkerd.io/proxy-memory-limit of the workload's template, or the value proxy.resources.memory.limit".to_owned(),
            _ => "raise the memory limit in the values and {upgrade}".to_owned(),
        };
    }
    match waiting.unwrap_or_default() {
        reason if reason.contains("Image") => {
            let image = container_of(pod, &container.name)
                .and_then(|one| one.image.as_deref())
                .unwrap_or(&container.image);
            let message = state.and_then(|waiting| waiting.message.as_deref());
            images::fix(pod, image, message.unwrap_or_default())
        }
        "CreateContainerConfigError" | "CreateContainerError" => {
            format!("kubectl -n {namespace} describe pod {name}")
        }
        _ => format!(
            "kubectl -n {namespace} logs {name} -c {} --previous{}",
            container.name,
            fix::undo_command(pod).map_or_else(String::new, |undo| format!(
                "; {undo}, if a change caused it"
            ))
        ),
    }
}

/// Describes a running container that restarted within the last two minutes and at least three
/// times in total, or that exceeded its memory limit within the last hour.
fn restarts_repeatedly(pod: &Pod, container: &ContainerStatus, now: u64) -> Option<String> {
    const RESTARTS: i32 = 3;
    const RECENT: u64 = 120;
    const HOUR: u64 = 3600;
    let terminated = last_end(container)?;
    let since = now.saturating_sub(running_since(container)?);
    let out_of_memory = terminated.reason.as_deref() == Some("OOMKilled") && since < HOUR;
    let again = container.restart_count >= RESTARTS && since < RECENT;
    if !out_of_memory && !again {
        return None;
    }
    let limit = container_of(pod, &container.name)
        .and_then(|one| one.resources.as_ref()?.limits.as_ref()?.get("memory"))
        .map_or_else(String::new, |limit| format!(" ({})", limit.0));
    Some(if out_of_memory {
        format!(
            "OOMKilled: exceeded its memory limit{limit}, {} restarts",
            container.restart_count
        )
    } else {
        format!(
            "it keeps restarting: exited {} times, last with code {}",
            container.restart_count, terminated.exit_code
        )
    })
}

/// Waiting reasons that last for seconds, or that another container causes, which is reported
/// itself.
const TRANSIENT: [&str; 2] = ["ContainerCreating", "PodInitializing"];

fn container_problem(container: &ContainerStatus) -> Option<String> {
    let waiting = waiting(container)?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !TRANSIENT.contains(reason))?;
    let last = last_end(container).map(|terminated| {
        format!(
            ", exited {} times, last with code {}{}",
            container.restart_count,
            terminated.exit_code,
            terminated
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

pub(super) fn ready(facts: &Facts) -> CheckResult {
    let pods: Vec<&Pod> = facts.control_pods()?.collect();
    let components: &[&str] = match facts.environment {
        Environment::Cluster => &COMPONENTS,
        // A local node patches its pods itself and has no injector.
        _ => &COMPONENTS[..2],
    };
    let (mut wrong, mut is_component_down) = (Vec::new(), false);
    for component in components {
        let own: Vec<&&Pod> = pods
            .iter()
            .filter(|pod| pod::label(pod, annotation::CONTROL_PLANE_COMPONENT) == Some(*component))
            .collect();
        let unready: Vec<String> = own
            .iter()
            .filter(|pod| !pod::is_ready(pod))
            .map(|pod| match unready_cause(facts, pod) {
                Some(reason) => format!("{} ({reason})", full_name(pod)),
                None => full_name(pod),
            })
            .collect();
        if own.is_empty() {
            let consequence = fail_closed_notice(facts, component);
            wrong.push(Finding::new(format!("{component} has no pod{consequence}")));
        } else if !unready.is_empty() {
            let consequence = if unready.len() == own.len() {
                fail_closed_notice(facts, component)
            } else {
                ""
            };
            let finding = Finding::new(format!(
                "{component} is not ready: {}{consequence}",
                unready.join(", ")
            ));
            wrong.push(match facts.environment {
                Environment::Cluster => finding.with_fix(format!(
                    "kubectl -n {{ns}} logs deployment/linkerd-{component} --all-containers"
                )),
                _ => finding.with_fix(
                    "meshctl local status; meshctl local logs shows why a pod is not ready",
                ),
            });
        }
        is_component_down |= unready.len() == own.len();
    }
    Ok(match (wrong.is_empty(), is_component_down) {
        (true, _) => Outcome::ok(components.join(", ")),
        (false, true) => Outcome::Fail(wrong),
        // Each component has a ready replica.
        (false, false) => Outcome::Warn(wrong),
    })
}

/// Returns which container is not ready and how its probe fails, or the last warning about the pod.
fn unready_cause(facts: &Facts, pod: &Pod) -> Option<String> {
    if facts.is_on_unready_node(pod) {
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
    let probe = container_of(pod, &failing.name)
        .and_then(|container| container.readiness_probe.as_ref()?.http_get.as_ref());
    let probe = probe.map_or_else(String::new, |get| {
        let port = match &get.port {
            IntOrString::Int(port) => port.to_string(),
            IntOrString::String(port) => port.clone(),
        };
        format!(" GET {} on port {port}", get.path.as_deref().unwrap_or("/"))
    });
    let warning = facts
        .container_warning(&name, &failing.name)
        .or_else(|| facts.last_warning("Pod", &name));
    Some(format!(
        "container {}: its readiness probe{probe} fails{}",
        failing.name,
        warning.map_or_else(String::new, |warning| format!(": {}", warning.trim()))
    ))
}

pub(super) fn controllers_ready(facts: &Facts) -> CheckResult {
    let wrong = facts.controllers.iter().filter_map(|controller| {
        let reason = controller.ready.as_ref().err()?;
        let finding = Finding::new(format!(
            "{} in {}: {reason}",
            controller.name, controller.pod
        ));
        Some(match facts.environment {
            Environment::Cluster => finding.with_fix(format!(
                "kubectl -n {{ns}} logs {} -c {}: the log names the invalid object",
                pod_name(&controller.pod),
                controller.name
            )),
            _ => finding,
        })
    });
    let mut names: Vec<&str> = facts
        .controllers
        .iter()
        .map(|controller| controller.name)
        .collect();
    names.sort_unstable();
    names.dedup();
    Ok(Outcome::fail_if(wrong, names.join(", ")))
}

/// Removes the namespace from `namespace/name`.
fn pod_name(full: &str) -> &str {
    full.rsplit('/').next().unwrap_or(full)
}

/// Finds kinds whose watch has failed. The controller keeps serving its last state of them, which
/// nothing else shows.
pub(super) fn controllers_follow(facts: &Facts) -> CheckResult {
    let mut wrong = Vec::new();
    for controller in &facts.controllers {
        let samples = controller.metrics.as_deref().unwrap_or_default();
        let (name, pod) = (&controller.name, &controller.pod);
        let value = |metric: &str, kind: &Sample| {
            let of_kind = |it: &&Sample| it.name == metric && it.labels == kind.labels;
            samples.iter().find(of_kind).map(|it| it.value)
        };
        // Objects of a kind that is not served cannot change.
        let served = |is: f64| {
            let kinds = samples.iter();
            kinds.filter(move |kind| kind.name == SERVED && kind.value == is)
        };
        let stale = served(1.0).filter(|kind| value(SYNCED, kind) == Some(0.0));
        let kinds: Vec<&str> = stale.map(|kind| kind.label("kind")).collect();
        if !kinds.is_empty() {
            let kinds = kinds.join(", ");
            wrong.push(format!("{name} in {pod} receives no changes of: {kinds}"));
        }
        let kept = served(0.0).filter(|kind| value(OBJECTS, kind) > Some(0.0));
        let kept: Vec<&str> = kept.map(|kind| kind.label("kind")).collect();
        if !kept.is_empty() {
            let kept = kept.join(", ");
            wrong.push(format!(
                "{name} in {pod} keeps the last known objects of kinds that the API server no longer serves: {kept}; install their definitions again (the chart linkerd-crds)"
            ));
        }
    }
    Ok(Outcome::fail_if(wrong, ""))
}

/// Metrics of the controllers.
const SERVED: &str = "source_kind_served";
const SYNCED: &str = "source_kind_synced";
const OBJECTS: &str = "source_kind_objects";

pub(super) fn proxies(facts: &Facts) -> CheckResult {
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
        let finding = Finding::new(format!("{}/{}: {reason}", proxy.namespace, proxy.pod));
        Some(match facts.environment {
            Environment::Cluster => finding.with_fix(format!(
                "kubectl -n {{ns}} logs {} -c linkerd-proxy",
                proxy.pod
            )),
            _ => finding.with_fix(format!("meshctl local logs {} -c linkerd-proxy", proxy.pod)),
        })
    });
    Ok(Outcome::fail_if(
        wrong,
        count(own.len(), "proxy", "proxies"),
    ))
}

pub(super) fn replicas(facts: &Facts) -> CheckResult {
    let deployments = fact_ref(&facts.objects.deployments)?;
    let single = deployments.iter().filter(|deployment| {
        let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        COMPONENTS
            .iter()
            .any(|name| deployment.name_any() == format!("linkerd-{name}"))
            && replicas.unwrap_or(1) < 2
    });
    let wrong = single.map(|deployment| {
        format!(
            "Deployment {} has one replica although highAvailability is on",
            deployment.name_any()
        )
    });
    Ok(Outcome::warn_if(wrong, ""))
}
