//! A pod's containers: started in their order, ended in the reverse one.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodSpec;
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Outcome, PodState, Task, is_sidecar};
use crate::container::{
    run::{self, Container},
    state::ContainerState,
};

const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// What sidecars get when the containers have used up the pod's grace period, as in Kubernetes.
const SIDECAR_GRACE: Duration = Duration::from_secs(2);

/// Starts the containers in their order, and returns when the pod was told to stop and all of them
/// have ended.
pub(super) async fn run_containers(
    task: &Task,
    containers: Vec<Container>,
    state: &watch::Sender<PodState>,
    stop: &CancellationToken,
) {
    let empty = PodSpec::default();
    let spec = task.pod.spec.as_ref().unwrap_or(&empty);
    let initial = spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut group = Group::new(state);
    let mut failed = false;
    for (index, container) in containers.into_iter().enumerate() {
        if stop.is_cancelled() || failed {
            break;
        }
        let is_init = index < initial;
        let sidecar = is_init && is_sidecar(spec, &container.name);
        let mut watched = group.start(container, sidecar);
        if !is_init {
            continue;
        }
        let passed = |state: &ContainerState| state.ended().is_some() || (sidecar && state.started);
        tokio::select! {
            Ok(state) = watched.wait_for(passed) => {
                failed = !sidecar && state.ended().is_none_or(|ended| ended.code != 0);
            }
            () = stop.cancelled() => {}
        }
    }
    let outcome = tokio::select! {
        clean = group.ended() => if clean && !failed { Outcome::Succeeded } else { Outcome::Failed },
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
struct Group<'a> {
    state: &'a watch::Sender<PodState>,
    stop_apps: watch::Sender<Option<Instant>>,
    stop_sidecars: watch::Sender<Option<Instant>>,
    apps: JoinSet<()>,
    sidecars: JoinSet<()>,
    /// Copy what containers tell into the pod's state.
    tellers: JoinSet<()>,
    watched: Vec<watch::Receiver<ContainerState>>,
}

impl<'a> Group<'a> {
    fn new(state: &'a watch::Sender<PodState>) -> Self {
        Self {
            state,
            stop_apps: watch::Sender::new(None),
            stop_sidecars: watch::Sender::new(None),
            apps: JoinSet::new(),
            sidecars: JoinSet::new(),
            tellers: JoinSet::new(),
            watched: Vec::new(),
        }
    }

    fn start(&mut self, container: Container, sidecar: bool) -> watch::Receiver<ContainerState> {
        let (sender, receiver) = watch::channel(ContainerState::default());
        let mut told = receiver.clone();
        let pod = self.state.clone();
        let name = container.name.clone();
        self.tellers.spawn(async move {
            while told.changed().await.is_ok() {
                let container = told.borrow_and_update().clone();
                pod.send_modify(|pod| {
                    pod.containers.insert(name.clone(), container);
                });
            }
        });
        let (tasks, stop) = if sidecar {
            (&mut self.sidecars, &self.stop_sidecars)
        } else {
            self.watched.push(receiver.clone());
            (&mut self.apps, &self.stop_apps)
        };
        let stop = stop.subscribe();
        tasks.spawn(async move { run::run(&container, &sender, stop).await });
        receiver
    }

    /// Waits until every container but the sidecars is over; true when each ended well.
    async fn ended(&mut self) -> bool {
        while self.apps.join_next().await.is_some() {}
        self.watched.iter().all(|state| {
            let state = state.borrow();
            state.ended().is_some_and(|ended| ended.code == 0)
        })
    }

    async fn stop(mut self, deadline: Instant) {
        self.stop_apps.send_replace(Some(deadline));
        while self.apps.join_next().await.is_some() {}
        let deadline = deadline.max(Instant::now() + SIDECAR_GRACE);
        self.stop_sidecars.send_replace(Some(deadline));
        while self.sidecars.join_next().await.is_some() {}
        while self.tellers.join_next().await.is_some() {}
    }
}
