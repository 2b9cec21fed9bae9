//! What the agent does at an API server: it enrols pods of its node that nobody enrolled, says so
//! in their events, takes the start-up taint from its node, and learns whether it is being
//! uninstalled or only restarted. Started by the daemon when it is told its node's name.
//!
//! Nothing else of the agent depends on it. While the API server is away the CNI plugin goes on
//! enrolling, and everything here is tried again.

mod connection;
mod daemon_set;
mod events;
mod meshed_pod;
mod node_object;
mod repair;
mod wanted;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use kube::Client;
use mesh_runtime::task::Supervisor;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub use daemon_set::{DaemonSetRef, Departure};
pub use node_object::keeps_chains;

use crate::{daemon::Caretaker, findings::Findings, metrics::WaitingPods, repairs::Repaired};
use daemon_set::Seen;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Instead of the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    pub node: String,
    pub daemon_set: Option<DaemonSetRef>,
    /// The taint to take from the node when pods can be enrolled.
    pub startup_taint: String,
}

/// What the rest of the agent gives to it.
#[derive(Debug)]
pub struct Surroundings {
    pub caretaker: Arc<Caretaker>,
    pub findings: Findings,
    pub waiting: WaitingPods,
    /// Can a pod that starts now be enrolled by the plugin?
    pub can_enrol: watch::Receiver<bool>,
}

/// The running part.
pub struct Kubernetes {
    settings: Settings,
    client: Arc<OnceLock<Client>>,
    seen: watch::Receiver<Seen>,
    runtime: watch::Receiver<Option<String>>,
    task: JoinHandle<()>,
}

/// Starts it; there need not be an API server yet. What is `repaired` is told in events of the
/// node.
pub fn start(
    settings: Settings,
    around: Surroundings,
    repaired: mpsc::Receiver<Repaired>,
    supervisor: &Supervisor,
) -> Kubernetes {
    let client = Arc::new(OnceLock::new());
    let (seen, seen_by_us) = watch::channel(Seen::default());
    let (runtime, runtime_of_node) = watch::channel(None);
    let task = supervisor.spawn("kubernetes", {
        let (settings, client) = (settings.clone(), Arc::clone(&client));
        async move {
            let connected = connection::connect(&settings, &around.findings).await;
            let connected = client.get_or_init(|| connected).clone();
            tokio::join!(
                repair::run(&connected, &settings.node, &around),
                node_object::run(&connected, &settings, &around, &runtime),
                daemon_set::watch(&connected, settings.daemon_set.as_ref(), &seen),
                events::tell_repairs(&connected, &settings.node, repaired),
            );
        }
    });
    Kubernetes {
        settings,
        client,
        seen: seen_by_us,
        runtime: runtime_of_node,
        task,
    }
}

impl Kubernetes {
    /// Asked when the agent is told to stop: is that the end of the mesh on this node?
    pub async fn departure(&self) -> Departure {
        let seen = self.seen.borrow().clone();
        daemon_set::departure(self.client.get(), self.settings.daemon_set.as_ref(), &seen).await
    }

    /// The node's container runtime, if the API server told it.
    pub fn container_runtime(&self) -> Option<String> {
        self.runtime.borrow().clone()
    }

    /// Ends the watches: nobody must enrol pods again that are being released.
    pub fn stop(&self) {
        self.task.abort();
    }
}
