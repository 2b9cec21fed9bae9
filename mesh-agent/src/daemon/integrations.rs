//! The agent's integrations with the rest of the node and the cluster: the CNI configuration and
//! the API server. Both are optional and the agent waits for neither: a mesh on one machine without
//! Kubernetes has none of them.

use std::env;
use std::sync::Arc;

use mesh_runtime::admin::{Condition, Readiness};
use mesh_runtime::metrics::Registry;
use mesh_runtime::task::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::removal;
use crate::config::Config;
use crate::install::{self, Installer};
use crate::kubernetes::{self, DaemonSetRef, Kubernetes, ShutdownAction};
use crate::metrics::{CniChain, WaitingPods};
use crate::node_handle::NodeHandle;
use crate::repairs::{RepairEvent, Repairs};
use crate::shared_status::SharedStatus;

pub(super) struct Integrations {
    installer: Option<Arc<Installer>>,
    keeper: Option<JoinHandle<()>>,
    kubernetes: Option<Kubernetes>,
}

pub(super) struct AgentParts<'a> {
    pub(super) node_handle: &'a Arc<NodeHandle>,
    pub(super) shared_status: &'a SharedStatus,
    pub(super) repairs: &'a Repairs,
    pub(super) metrics: &'a Registry,
    pub(super) supervisor: &'a Supervisor,
}

/// Returns the readiness condition that the plugin is in the chain, if the agent maintains the
/// chain. Created early: an agent must not be ready before all of its conditions are registered.
pub(super) fn condition(config: &Config, readiness: &Readiness) -> Option<Condition> {
    config
        .cni_conf_dir
        .as_ref()
        .map(|_| readiness.condition("mesh-cni to be in the node's CNI configuration"))
}

impl Integrations {
    /// Starts the integrations. Requires that the socket is served: from then on pods depend on
    /// what this installs.
    pub(super) fn start(
        config: &Config,
        chained: Option<Condition>,
        repaired: mpsc::Receiver<RepairEvent>,
        parts: &AgentParts<'_>,
    ) -> anyhow::Result<Self> {
        let (can_enrol, enrollable) = watch::channel(chained.is_none());
        let installer = installer(config)?;
        let keeper = installer.clone().zip(chained).map(|(installer, chained)| {
            let shared_status = parts.shared_status.clone();
            let metrics = CniChain::new(parts.metrics);
            let repairs = parts.repairs.clone();
            let chained_in = repairs.chained_in();
            let report = move |outcome: install::Outcome| {
                let is_chained = outcome.status.chained;
                for (kind, detail) in &outcome.repairs {
                    tracing::warn!(detail, "Repaired the installation: {}", kind.describe());
                    repairs.record(*kind, detail);
                }
                if let (true, Some(file)) = (is_chained, &outcome.status.file) {
                    repairs.set_chained_in(file);
                }
                metrics.record(is_chained, outcome.has_written);
                shared_status.set_cni(outcome.status, outcome.warnings);
                chained.set(is_chained);
                can_enrol.send_replace(is_chained);
            };
            parts.supervisor.spawn(
                "cni",
                install::keep_installed(installer, chained_in, report),
            )
        });
        let kubernetes = config.node_name.as_ref().map(|node| {
            let settings = kubernetes::Settings {
                kubeconfig: config.kubeconfig.clone(),
                node: node.clone(),
                daemon_set: daemon_set(config),
                startup_taint: config.startup_taint.clone(),
            };
            let dependencies = kubernetes::Dependencies {
                node_handle: Arc::clone(parts.node_handle),
                shared_status: parts.shared_status.clone(),
                waiting: WaitingPods::new(parts.metrics),
                can_enrol: enrollable,
            };
            kubernetes::start(settings, dependencies, repaired, parts.supervisor)
        });
        Ok(Self {
            installer,
            keeper,
            kubernetes,
        })
    }

    /// Returns whether a stopping agent leaves the mesh on the node or removes it.
    pub(super) async fn shutdown_action(&self) -> ShutdownAction {
        match &self.kubernetes {
            Some(kubernetes) => kubernetes.shutdown_action().await,
            None => ShutdownAction::Keep("the agent has no node name".to_owned()),
        }
    }

    /// Removes everything from the node, in the order of [`removal`].
    pub(super) async fn remove(
        self,
        config: Config,
        node_handle: Arc<NodeHandle>,
    ) -> anyhow::Result<()> {
        let mut keep_plugin = false;
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.stop();
            let runtime = kubernetes.container_runtime();
            keep_plugin = runtime.is_some_and(|runtime| kubernetes::caches_chains(&runtime));
        }
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        let mut removal = removal::Removal::default();
        removal.remove_chain_entries(self.installer.as_deref());
        removal.add_release_result(node_handle.release_all().await);
        // A few dozen system calls, in an agent that serves nothing else by then.
        removal.remove_files(&config, self.installer.as_deref(), keep_plugin);
        removal.finish()
    }
}

/// `None` when the node's CNI configuration directory is not configured.
pub(super) fn installer(config: &Config) -> anyhow::Result<Option<Arc<Installer>>> {
    let Some(conf_dir) = config.cni_conf_dir.clone() else {
        return Ok(None);
    };
    let settings = install::Settings {
        conf_dir,
        bin_dir: config.cni_bin_dir.clone(),
        plugin: env::current_exe()?.with_file_name("mesh-cni"),
        socket: config.socket.clone(),
        pin_dir: config.pin_dir.clone(),
        state_dir: config.state_dir.clone(),
    };
    Ok(Some(Arc::new(Installer::new(settings))))
}

fn daemon_set(config: &Config) -> Option<DaemonSetRef> {
    let (namespace, name) = config.namespace.clone().zip(config.daemonset.clone())?;
    Some(DaemonSetRef { namespace, name })
}
