//! Runs the containers of a pod: starts them in order and stops them in reverse order.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PodOutcome, PodState, PodTask, is_sidecar};
use crate::container::run::{self, Container};
use crate::container::state::ContainerState;

const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Minimum grace period of sidecars after the containers have exited, as in Kubernetes.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Starts the containers in order. Returns when the pod is stopped and all of them have exited.
pub(super) async fn run_containers(
    task: &PodTask,
    containers: Vec<Container>,
    state: &watch::Sender<PodState>,
    stop: &CancellationToken,
) {
    let empty = PodSpec::default();
    let spec = task.pod.spec.as_ref().unwrap_or(&empty);
    let initial = spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut group = ContainerGroup::new(state);
    let mut failed = false;
    for (index, container) in containers.into_iter().enumerate() {
        if stop.is_cancelled() || failed {
            break;
        }
        let is_init = index < initial;
        let sidecar = is_init && is_sidecar(spec, &container.name);
        let mut container_state = group.start(container, sidecar);
        if !is_init {
            continue;
        }
        let passed =
            |state: &ContainerState| state.termination().is_some() || (sidecar && state.started);
        tokio::select! {
            Ok(state) = container_state.wait_for(passed) => {
                failed = !sidecar && state.termination().is_none_or(|termination| termination.code != 0);
            }
            () = stop.cancelled() => {}
        }
    }
    let outcome = tokio::select! {
        clean = group.wait() => if clean && !failed { PodOutcome::Succeeded } else { PodOutcome::Failed },
        () = stop.cancelled() => {
            let grace = spec.termination_grace_period_seconds;
            let grace = grace.and_then(|seconds| u64::try_from(seconds).ok());
            let grace = grace.map_or(DEFAULT_GRACE, Duration::from_secs);
            state.send_modify(|state| state.terminating = true);
            group.stop(Instant::now() + grace).await;
            return;
        }
    };
    group.stop(Instant::now() + DEFAULT_GRACE).await;
    state.send_modify(|state| state.outcome = Some(outcome));
    stop.cancelled().await;
}

/// The running containers of a pod.
struct ContainerGroup<'a> {
    state: &'a watch::Sender<PodState>,
    stop_apps: watch::Sender<Option<Instant>>,
    stop_sidecars: watch::Sender<Option<Instant>>,
    apps: JoinSet<()>,
    sidecars: JoinSet<()>,
    /// Tasks that copy the states of containers to the state of the pod.
    forwarders: JoinSet<()>,
    states: Vec<watch::Receiver<ContainerState>>,
}

impl<'a> ContainerGroup<'a> {
    fn new(state: &'a watch::Sender<PodState>) -> Self {
        Self {
            state,
            stop_apps: watch::Sender::new(None),
            stop_sidecars: watch::Sender::new(None),
            apps: JoinSet::new(),
            sidecars: JoinSet::new(),
            forwarders: JoinSet::new(),
            states: Vec::new(),
        }
    }

    fn start(&mut self, container: Container, sidecar: bool) -> watch::Receiver<ContainerState> {
        let (sender, receiver) = watch::channel(ContainerState::default());
        let mut updates = receiver.clone();
        let pod = self.state.clone();
        let name = container.name.clone();
        self.forwarders.spawn(async move {
            while updates.changed().await.is_ok() {
                let container = updates.borrow_and_update().clone();
                pod.send_modify(|pod| {
                    pod.containers.insert(name.clone(), container);
                });
            }
        });
        let (tasks, stop) = if sidecar {
            (&mut self.sidecars, &self.stop_sidecars)
        } else {
            self.states.push(receiver.clone());
            (&mut self.apps, &self.stop_apps)
        };
        let stop = stop.subscribe();
        tasks.spawn(async move { run::run(&container, &sender, stop).await });
        receiver
    }

    /// Waits until all containers except sidecars have exited; returns whether all succeeded.
    async fn wait(&mut self) -> bool {
        while self.apps.join_next().await.is_some() {}
        self.states.iter().all(|state| {
            let state = state.borrow();
            state
                .termination()
                .is_some_and(|termination| termination.code == 0)
        })
    }

    async fn stop(mut self, deadline: Instant) {
        self.stop_apps.send_replace(Some(deadline));
        while self.apps.join_next().await.is_some() {}
        let deadline = deadline.max(Instant::now() + SIDECAR_GRACE);
        self.stop_sidecars.send_replace(Some(deadline));
        while self.sidecars.join_next().await.is_some() {}
        while self.forwarders.join_next().await.is_some() {}
    }
}
