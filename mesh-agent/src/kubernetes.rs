//! The agent's work at an API server: enrols pods of its node that the plugin missed and reports
//! that in their events, removes the start-up taint from its node, and determines whether a
//! stopping agent is uninstalled, or only restarted or replaced. The daemon starts it when the
//! node's name is configured.
//!
//! Nothing else of the agent depends on it. While the API server is unreachable the CNI plugin
//! continues to enrol pods, and everything here is retried.

mod connection;
mod daemon_set;
mod enrol_queue;
mod events;
mod in_place;
mod meshed_pod;
mod node_object;
mod rights;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kube::Client;
use mesh_runtime::task::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::metrics::WaitingPods;
use crate::node_handle::NodeHandle;
use crate::repairs::RepairEvent;
use crate::shared_status::SharedStatus;
use daemon_set::WatchState;

pub use daemon_set::{DaemonSetRef, ShutdownAction};
pub use node_object::caches_chains;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Used instead of the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    pub node: String,
    pub daemon_set: Option<DaemonSetRef>,
    pub startup_taint: String,
}

#[derive(Debug)]
pub struct Dependencies {
    pub node_handle: Arc<NodeHandle>,
    pub shared_status: SharedStatus,
    pub waiting: WaitingPods,
    /// Whether the plugin can enrol a pod that starts now.
    pub can_enrol: watch::Receiver<bool>,
}

pub struct Kubernetes {
    settings: Settings,
    client: Arc<OnceLock<Client>>,
    watch_state: watch::Receiver<WatchState>,
    runtime: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// Starts the integration, also while the API server is unreachable.
pub fn start(
    settings: Settings,
    deps: Dependencies,
    repairs: mpsc::Receiver<RepairEvent>,
    supervisor: &Supervisor,
) -> Kubernetes {
    let client = Arc::new(OnceLock::new());
    let (watch_sender, watch_state) = watch::channel(WatchState::default());
    let (runtime, runtime_of_node) = watch::channel(None);
    let task = supervisor.spawn("kubernetes", {
        let (settings, client) = (settings.clone(), Arc::clone(&client));
        async move {
            let connected = connection::connect(&settings, &deps.shared_status).await;
            let connected = client.get_or_init(|| connected).clone();
            tokio::join!(
                in_place::run(&connected, &settings.node, &deps),
                node_object::run(&connected, &settings, &deps, &runtime),
                daemon_set::watch(&connected, settings.daemon_set.as_ref(), &watch_sender),
                events::publish_repairs(&connected, &settings.node, repairs),
            );
        }
    });
    Kubernetes {
        settings,
        client,
        watch_state,
        runtime: runtime_of_node,
        task,
    }
}

impl Kubernetes {
    /// Returns whether a stopping agent leaves the mesh on the node or removes it.
    pub async fn shutdown_action(&self) -> ShutdownAction {
        daemon_set::shutdown_action(
            self.client.get(),
            self.settings.daemon_set.as_ref(),
            self.watch_state.clone(),
        )
        .await
    }

    /// Returns the node's container runtime, if the node's object is known.
    pub fn container_runtime(&self) -> Option<String> {
        self.runtime.borrow().clone()
    }

    /// Ends the watches, so that no pod is enrolled again while all pods are released.
    pub fn stop(&self) {
        self.task.abort();
    }
}
