//! Converts the state of a pod to a PodStatus for the controllers and a summary for
//! `meshctl local status`.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    self as core, Container, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mesh_k8s::pod as accessors;
use serde::{Deserialize, Serialize};

use super::{PodOutcome, PodState};
use crate::container::state::{ContainerState, Phase, Termination};

/// A pod in the output of `meshctl local status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub ready_containers: usize,
    pub containers: usize,
    /// The status word, as in kubectl.
    pub status: String,
    pub restarts: u32,
    pub ips: Vec<IpAddr>,
    /// The pod has a proxy.
    pub meshed: bool,
    pub ready: bool,
    /// Why the pod is not ready, if known.
    pub message: String,
    pub started: Option<Timestamp>,
}

/// Returns the addresses of the status, which environment variables may refer to.
pub fn addresses(ips: &[IpAddr], host_ips: &[IpAddr]) -> PodStatus {
    let pod_ips = ips.iter().map(|ip| PodIP { ip: ip.to_string() });
    let hosts = host_ips.iter().map(|ip| HostIP { ip: ip.to_string() });
    PodStatus {
        pod_ip: ips.first().map(ToString::to_string),
        pod_ips: (!ips.is_empty()).then(|| pod_ips.collect()),
        host_ip: host_ips.first().map(ToString::to_string),
        host_ips: Some(hosts.collect()),
        ..PodStatus::default()
    }
}

/// Returns the complete status of a pod.
pub fn status(pod: &Pod, state: &PodState, host_ips: &[IpAddr]) -> PodStatus {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let container_statuses = |containers: &[Container]| {
        let convert = |container| container_status(container, state);
        containers.iter().map(convert).collect::<Vec<_>>()
    };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let initialized = state.containers.keys().any(|name| {
        spec.containers
            .iter()
            .any(|container| container.name == *name)
    });
    let ready = is_ready(pod, state);
    let condition = |kind: &str, holds: bool| PodCondition {
        type_: kind.into(),
        status: if holds { "True" } else { "False" }.into(),
        ..PodCondition::default()
    };
    PodStatus {
        phase: Some(phase(state, initialized).into()),
        conditions: Some(vec![
            condition("PodScheduled", true),
            condition("Initialized", initialized),
            condition("ContainersReady", ready),
            condition("Ready", ready),
        ]),
        message: (!state.message.is_empty()).then(|| state.message.clone()),
        start_time: state.started.map(Time),
        init_container_statuses: (!init.is_empty()).then(|| container_statuses(init)),
        container_statuses: Some(container_statuses(&spec.containers)),
        ..addresses(&state.ips, host_ips)
    }
}

/// Returns whether all long-running containers are ready and the pod is not terminating.
pub fn is_ready(pod: &Pod, state: &PodState) -> bool {
    !state.terminating
        && state.outcome.is_none()
        && long_running_containers(pod).all(|container| {
            let state = state.containers.get(&container.name);
            state.is_some_and(|state| state.is_running() && state.ready)
        })
}

pub fn summary(pod: &Pod, state: &PodState) -> Summary {
    let meta = &pod.metadata;
    let containers: Vec<&Container> = long_running_containers(pod).collect();
    let ready = |container: &&&Container| {
        let state = state.containers.get(&container.name);
        state.is_some_and(|state| state.is_running() && state.ready)
    };
    let (status, message) = status_word(state);
    Summary {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        ready_containers: containers.iter().filter(ready).count(),
        containers: containers.len(),
        status: if status == "Running" && state.containers.is_empty() {
            "Pending".into()
        } else {
            status
        },
        restarts: state.containers.values().map(|state| state.restarts).sum(),
        ips: state.ips.clone(),
        meshed: containers
            .iter()
            .any(|container| container.name == accessors::PROXY_CONTAINER),
        ready: is_ready(pod, state) || state.outcome == Some(PodOutcome::Succeeded),
        message,
        started: state.started,
    }
}

/// Returns the status word of the pod and the reason.
fn status_word(state: &PodState) -> (String, String) {
    if state.terminating {
        return ("Terminating".into(), String::new());
    }
    match state.outcome {
        Some(PodOutcome::Succeeded) => return ("Completed".into(), String::new()),
        Some(PodOutcome::Failed) => return ("Error".into(), failures(state)),
        None => {}
    }
    if !state.message.is_empty() {
        return ("CannotStart".into(), state.message.clone());
    }
    let waiting = state
        .containers
        .iter()
        .find_map(|(name, state)| match &state.phase {
            Phase::Waiting { reason, message } if !message.is_empty() => {
                Some(((*reason).to_owned(), format!("container {name}: {message}")))
            }
            _ => None,
        });
    waiting.unwrap_or_else(|| ("Running".into(), String::new()))
}

fn failures(state: &PodState) -> String {
    let failed = state.containers.iter().filter_map(|(name, state)| {
        let termination = state
            .termination()
            .filter(|termination| termination.code != 0)?;
        Some(format!("container {name}: {}", termination.message))
    });
    failed.collect::<Vec<_>>().join("; ")
}

fn phase(state: &PodState, initialized: bool) -> &'static str {
    match state.outcome {
        Some(PodOutcome::Succeeded) => "Succeeded",
        Some(PodOutcome::Failed) => "Failed",
        None if initialized => "Running",
        None => "Pending",
    }
}

/// Returns the containers that run as long as the pod: sidecars and ordinary containers.
fn long_running_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        sidecars.chain(&spec.containers)
    })
}

fn container_status(container: &Container, state: &PodState) -> core::ContainerStatus {
    let default = ContainerState::default();
    let state = state.containers.get(&container.name).unwrap_or(&default);
    core::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ready: state.is_running() && state.ready,
        started: Some(state.is_running() && state.started),
        restart_count: i32::try_from(state.restarts).unwrap_or(i32::MAX),
        state: Some(phase_status(&state.phase)),
        last_state: state
            .last_termination
            .as_ref()
            .map(|termination| core::ContainerState {
                terminated: Some(terminated(termination)),
                ..core::ContainerState::default()
            }),
        ..core::ContainerStatus::default()
    }
}

fn phase_status(phase: &Phase) -> core::ContainerState {
    match phase {
        Phase::Waiting { reason, message } => core::ContainerState {
            waiting: Some(core::ContainerStateWaiting {
                reason: Some((*reason).to_owned()),
                message: (!message.is_empty()).then(|| message.clone()),
            }),
            ..core::ContainerState::default()
        },
        Phase::Running { since, .. } => core::ContainerState {
            running: Some(core::ContainerStateRunning {
                started_at: Some(Time(*since)),
            }),
            ..core::ContainerState::default()
        },
        Phase::Terminated(termination) => core::ContainerState {
            terminated: Some(terminated(termination)),
            ..core::ContainerState::default()
        },
    }
}

fn terminated(termination: &Termination) -> core::ContainerStateTerminated {
    core::ContainerStateTerminated {
        exit_code: termination.code,
        reason: Some(termination.reason.to_owned()),
        message: Some(termination.message.clone()),
        started_at: Some(Time(termination.since)),
        finished_at: Some(Time(termination.at)),
        ..core::ContainerStateTerminated::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "metadata: {name: a, namespace: b}\nspec:\n  initContainers: [{name: once}, {name: linkerd-proxy, restartPolicy: Always}]\n  \
                       containers: [{name: app}]\n";

    fn running(ready: bool) -> ContainerState {
        ContainerState {
            phase: Phase::Running {
                pid: 1,
                since: Timestamp::UNIX_EPOCH,
            },
            started: true,
            ready,
            ..ContainerState::default()
        }
    }

    fn ended(code: i32) -> ContainerState {
        ContainerState {
            phase: Phase::Terminated(Termination {
                code,
                reason: "Error",
                message: "bad".into(),
                since: Timestamp::UNIX_EPOCH,
                at: Timestamp::UNIX_EPOCH,
            }),
            ..ContainerState::default()
        }
    }

    fn state(containers: &[(&str, ContainerState)]) -> PodState {
        PodState {
            ips: vec!["10.0.0.1".parse().unwrap()],
            containers: containers
                .iter()
                .map(|(name, state)| ((*name).to_owned(), state.clone()))
                .collect(),
            ..PodState::default()
        }
    }

    fn check(state: &PodState, phase: &str, ready: bool, word: &str, counts: (usize, usize)) {
        let pod: Pod = serde_norway::from_str(POD).unwrap();
        let written = status(&pod, state, &[]);
        assert_eq!(written.phase.as_deref(), Some(phase));
        let pod = Pod {
            status: Some(written),
            ..pod
        };
        assert_eq!(accessors::is_ready(&pod), ready);
        let summary = summary(&pod, state);
        assert_eq!(summary.status, word);
        assert_eq!((summary.ready_containers, summary.containers), counts);
    }

    #[test]
    fn status_follows_the_lifecycle() {
        check(&state(&[]), "Pending", false, "Pending", (0, 2));
        let begun = [("once", ended(0)), ("linkerd-proxy", running(true))];
        check(&state(&begun), "Pending", false, "Running", (1, 2));
        let all = |app| [begun.as_slice(), &[("app", app)]].concat();
        check(
            &state(&all(running(false))),
            "Running",
            false,
            "Running",
            (1, 2),
        );
        check(
            &state(&all(running(true))),
            "Running",
            true,
            "Running",
            (2, 2),
        );
        let terminating = PodState {
            terminating: true,
            ..state(&all(running(true)))
        };
        check(&terminating, "Running", false, "Terminating", (2, 2));
        let failed = PodState {
            outcome: Some(PodOutcome::Failed),
            ..state(&all(ended(1)))
        };
        check(&failed, "Failed", false, "Error", (1, 2));
    }

    #[test]
    fn summary_has_the_reason_of_a_failure() {
        let pod: Pod = serde_norway::from_str(POD).unwrap();
        let mut waiting = ContainerState {
            restarts: 2,
            ..ContainerState::default()
        };
        waiting.phase = Phase::Waiting {
            reason: "CrashLoopBackOff",
            message: "exit 1".into(),
        };
        let crashing = summary(&pod, &state(&[("app", waiting)]));
        assert_eq!(crashing.status, "CrashLoopBackOff");
        assert_eq!(crashing.restarts, 2);
        assert!(crashing.message.contains("container app: exit 1"));
        let stuck = PodState {
            message: "no plugin".into(),
            ..PodState::default()
        };
        assert_eq!(summary(&pod, &stuck).message, "no plugin");
    }
}
