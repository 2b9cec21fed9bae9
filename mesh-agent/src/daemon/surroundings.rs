//! The parts of the agent that deal with the rest of the node and the cluster: the CNI
//! configuration and the API server. Both are optional, and neither is waited for: a mesh on one
//! machine without Kubernetes has neither.

use std::{env, sync::Arc};

use mesh_runtime::{
    admin::{Condition, Readiness},
    metrics::Registry,
    task::Supervisor,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::{Caretaker, removal};
use crate::{
    config::Config,
    findings::Findings,
    install::{self, Installer},
    kubernetes::{self, DaemonSetRef, Departure, Kubernetes},
    metrics::{CniChain, WaitingPods},
    repairs::{Repaired, Repairs},
};

pub(super) struct Surroundings {
    installer: Option<Arc<Installer>>,
    keeper: Option<JoinHandle<()>>,
    kubernetes: Option<Kubernetes>,
}

/// What the rest of the agent has made by then.
pub(super) struct Agent<'a> {
    pub(super) caretaker: &'a Arc<Caretaker>,
    pub(super) findings: &'a Findings,
    pub(super) repairs: &'a Repairs,
    pub(super) metrics: &'a Registry,
    pub(super) supervisor: &'a Supervisor,
}

/// The condition that the plugin is in the chain, where that is looked after. Made early: an agent
/// must not be ready before all of its conditions are known.
pub(super) fn condition(config: &Config, readiness: &Readiness) -> Option<Condition> {
    config
        .cni_conf_dir
        .as_ref()
        .map(|_| readiness.condition("mesh-cni to be in the node's CNI configuration"))
}

impl Surroundings {
    /// To be called when the socket is served: from then on pods depend on what this installs.
    pub(super) fn start(
        config: &Config,
        chained: Option<Condition>,
        repaired: mpsc::Receiver<Repaired>,
        agent: &Agent<'_>,
    ) -> anyhow::Result<Self> {
        let (can_enrol, enrollable) = watch::channel(chained.is_none());
        let installer = installer(config)?;
        let keeper = installer.clone().zip(chained).map(|(installer, chained)| {
            let findings = agent.findings.clone();
            let metrics = CniChain::new(agent.metrics);
            let repairs = agent.repairs.clone();
            let chained_in = repairs.chained_in();
            let report = move |outcome: install::Outcome| {
                let is_chained = outcome.status.chained;
                for (kind, detail) in &outcome.repairs {
                    tracing::warn!(detail, "Repaired the installation: {}", kind.describe());
                    repairs.note(*kind, detail);
                }
                if let (true, Some(file)) = (is_chained, &outcome.status.file) {
                    repairs.set_chained_in(file);
                }
                metrics.looked(is_chained, outcome.has_written);
                findings.set_cni(outcome.status, outcome.warnings);
                chained.set(is_chained);
                can_enrol.send_replace(is_chained);
            };
            agent
                .supervisor
                .spawn("cni", install::keep(installer, chained_in, report))
        });
        let kubernetes = config.node_name.as_ref().map(|node| {
            let settings = kubernetes::Settings {
                kubeconfig: config.kubeconfig.clone(),
                node: node.clone(),
                daemon_set: daemon_set(config),
                startup_taint: config.startup_taint.clone(),
            };
            let around = kubernetes::Surroundings {
                caretaker: Arc::clone(agent.caretaker),
                findings: agent.findings.clone(),
                waiting: WaitingPods::new(agent.metrics),
                can_enrol: enrollable,
            };
            kubernetes::start(settings, around, repaired, agent.supervisor)
        });
        Ok(Self {
            installer,
            keeper,
            kubernetes,
        })
    }

    /// The agent is told to stop: for how long?
    pub(super) async fn departure(&self) -> Departure {
        match &self.kubernetes {
            Some(kubernetes) => kubernetes.departure().await,
            None => Departure::Stay("it was not told its node's name".to_owned()),
        }
    }

    /// Removes everything from the node, in the order of [`removal`].
    pub(super) async fn remove(
        self,
        config: Config,
        caretaker: Arc<Caretaker>,
    ) -> anyhow::Result<()> {
        let mut keeps_plugin = false;
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.stop();
            let runtime = kubernetes.container_runtime();
            keeps_plugin = runtime.is_some_and(|runtime| kubernetes::keeps_chains(&runtime));
        }
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        let mut removal = removal::Removal::default();
        removal.leave_chain(self.installer.as_deref());
        removal.released(caretaker.release_all().await);
        // A few dozen system calls, by an agent that does nothing else any more.
        removal.remove_files(&config, self.installer.as_deref(), keeps_plugin);
        removal.finish()
    }
}

/// `None` when the agent is not told where the node's CNI configuration is.
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
