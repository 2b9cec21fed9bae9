//! The agent: chooses the tier, adopts the enrolled pods, then serves the socket and reconciles the
//! node until it is terminated.
//!
//! ```text
//! main thread (tokio)                         thread "node" (blocking system calls)
//!   socket server ──Call──────▶ NodeHandle ──▶  NodeWorker: Node + metrics
//!   timer ─────────Reconcile──▶     ◀─result──
//!   Kubernetes ─EnrolInPlace──▶
//!   CNI configuration
//!   admin server
//! ```
//!
//! One thread owns the node, so that commands for the same pod cannot overtake each other and
//! nothing needs a lock. The plugin changes the same files and maps only while the agent does not
//! respond.

mod integrations;
pub mod machine;
mod removal;
mod status_routes;

use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mesh_core::node::NodeStatus;
use mesh_runtime::admin::{self, Admin, Readiness, log_level};
use mesh_runtime::log::{self, chain};
use mesh_runtime::metrics::Registry as MetricsRegistry;
use mesh_runtime::signal::Termination;
use mesh_runtime::{drain, task};
use tokio::time::MissedTickBehavior;

use crate::config::Config;
use crate::ebpf::{Loaded, Programs};
use crate::host;
use crate::kubernetes::ShutdownAction;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::node_api::server::{self, Responders};
use crate::node_handle::NodeHandle;
use crate::node_worker::NodeWorker;
use crate::redirect::Tier;
use crate::registry::{NodeRecord, Registry};
use crate::repairs::Repairs;
use crate::shared_status::SharedStatus;
use crate::tier::{self, Settings, TierChoice};
use integrations::{AgentParts, Integrations};
use removal::Removal;
use status_routes::StatusRoutes;

/// How soon a manual change is noticed and a pod that ended without a CNI DEL is removed.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(10);
/// For responses in flight when the agent stops. Every command takes less.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT. Pods stay redirected afterwards, unless the agent stops because
/// the mesh is uninstalled.
pub async fn run(config: Config, filter: log::FilterHandle) -> anyhow::Result<()> {
    let mut termination = Termination::listen().context("cannot listen for signals")?;
    let registry = Registry::open(&config.state_dir)?;
    let socket = server::bind(&config.socket)?;
    let listener = admin::bind(config.admin_addr).await?;
    let admin_addr = listener.local_addr()?;
    let readiness = Readiness::new();
    let ready = readiness.condition("the redirection tier to be chosen and the pods to be adopted");
    let chained = integrations::condition(&config, &readiness);
    let metrics = MetricsRegistry::new();
    let shared_status = SharedStatus::default();
    let (repairs, repaired) = Repairs::open(&config.state_dir, &metrics);
    let (supervisor, mut ends) = task::supervisor();

    let admin = Admin::new(metrics.clone(), readiness).route("/log-level", move |call| {
        let response = log_level::respond(&filter, &call);
        async move { response }
    });
    let status_routes = StatusRoutes::default();
    let admin = status_routes.add_to(admin);
    supervisor.spawn("admin", admin::serve(listener, admin));

    let choice = tokio::select! {
        choice = choose(&config) => choice?,
        signal = termination.received() => {
            tracing::info!(signal, "Stopping before a tier was chosen; existing pods keep their redirection");
            let _ = std::fs::remove_file(&config.socket);
            return Ok(());
        }
    };
    let status = status(&config, &choice);
    registry.put_node(&NodeRecord { tier: choice.tier })?;
    let programs = match &choice.attached {
        Some(attached) => Some(attached.programs.clone()),
        // Pods that an earlier agent enrolled with an eBPF tier may still run.
        None => Programs::open(&config.pin_dir).ok(),
    };
    let node_worker = NodeWorker::new(
        Node::new(registry, choice.tier, programs),
        Metrics::new(&metrics, &status, choice.guard.mode),
        status,
        choice.attached,
        shared_status.clone(),
        repairs.clone(),
    );
    let (node_handle, adopted) = NodeHandle::start(node_worker, supervisor.watch("node"))?;
    let node_handle = Arc::new(node_handle);
    status_routes.set_node(&node_handle);
    adopted.await.context("the pods could not be adopted")?;
    ready.set(true);

    let (drain, watch) = drain::channel();
    let reconciler = supervisor.spawn(
        "reconcile",
        reconcile_periodically(Arc::clone(&node_handle), RECONCILE_INTERVAL),
    );
    supervisor.spawn(
        "socket",
        server::serve(
            socket,
            Responders::new(Arc::clone(&node_handle), None),
            watch,
        ),
    );
    let parts = AgentParts {
        node_handle: &node_handle,
        shared_status: &shared_status,
        repairs: &repairs,
        metrics: &metrics,
        supervisor: &supervisor,
    };
    let integrations = Integrations::start(&config, chained, repaired, &parts)?;
    tracing::info!(socket = %config.socket.display(), admin = %admin_addr, "Ready");

    let (result, shutdown_action) = tokio::select! {
        signal = termination.received() => {
            tracing::info!(signal, "Stopping");
            // Pods can still be enrolled during this request to the API server.
            (Ok(()), integrations.shutdown_action().await)
        }
        ended = ends.first() => {
            let error = Err(anyhow::anyhow!("{ended}"));
            (error, ShutdownAction::Keep("a task of the agent ended".to_owned()))
        }
    };
    // Without the socket the plugin enrols pods by itself immediately.
    let _ = std::fs::remove_file(&config.socket);
    drain.drain(DRAIN_TIMEOUT).await;
    match shutdown_action {
        ShutdownAction::Keep(reason) => {
            tracing::info!(reason, "Pods stay redirected");
            result
        }
        ShutdownAction::Uninstall(reason) => {
            tracing::info!(reason, "Removing the mesh from this node");
            reconciler.abort();
            integrations.remove(config, node_handle).await
        }
    }
}

/// Uninstalls the mesh from the node, as an agent does whose DaemonSet is deleted.
pub fn uninstall(config: &Config, keep_plugin: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        !server::has_listener(&config.socket),
        "a mesh agent listens on {} and would undo this; stop it first",
        config.socket.display()
    );
    let installer = integrations::installer(config)?;
    let mut removal = Removal::default();
    removal.remove_chain_entries(installer.as_deref());
    let registry = Registry::open(&config.state_dir)?;
    let programs = Programs::open(&config.pin_dir).ok();
    let tier = registry.node()?.map_or(Tier::Nft, |node| node.tier);
    removal.add_release_result(Node::new(registry, tier, programs).release_all());
    removal.remove_files(config, installer.as_deref(), keep_plugin);
    removal.finish()
}

/// Chooses the tier on a blocking thread: trying the tiers takes up to a second, and the admin
/// server responds meanwhile.
async fn choose(config: &Config) -> anyhow::Result<TierChoice> {
    let settings = Settings {
        forced: config.tier.forced(),
        cgroup_root: config.cgroup_root.clone(),
        pin_dir: config.pin_dir.clone(),
        bpf_object: config.bpf_object.clone(),
        guard: config.guard,
        program: env::current_exe().context("cannot find this program's own file")?,
        // Pins on a bpffs of the agent's container would end with it, and with them the redirection
        // of every pod.
        pin_problem: host::ensure_bpffs(&config.pin_dir)
            .err()
            .map(|error| chain(&error)),
    };
    let choice = tokio::task::spawn_blocking(move || tier::choose(&settings)).await??;
    for trial in choice.trials.iter().filter(|trial| !trial.works) {
        tracing::warn!(tier = %trial.tier, reason = trial.reason, "Tier does not work here");
    }
    let loaded = choice.attached.as_ref().map(|attached| attached.loaded);
    tracing::info!(
        tier = %choice.tier,
        reason = choice.reason,
        kernel = kernel_release(),
        programs = loaded.map(loaded_description),
        "Redirection tier chosen"
    );
    match &choice.guard.problem {
        Some(problem) => tracing::error!("{problem}"),
        None => tracing::info!(mode = choice.guard.mode.as_str(), "Guard set"),
    }
    Ok(choice)
}

fn loaded_description(loaded: Loaded) -> &'static str {
    match loaded {
        Loaded::Fresh => "loaded",
        Loaded::Adopted => "adopted unchanged",
        Loaded::Replaced => "replaced in place",
    }
}

fn status(config: &Config, choice: &TierChoice) -> NodeStatus {
    NodeStatus {
        agent_version: mesh_runtime::build_info::BuildInfo::CURRENT
            .version
            .to_owned(),
        kernel: kernel_release(),
        tier: choice.tier,
        reason: choice.reason.clone(),
        forced: choice.forced,
        trials: choice.trials.clone(),
        self_test: choice.self_test.clone(),
        cgroup_root: choice
            .attached
            .as_ref()
            .map(|attached| attached.cgroup_root.clone()),
        pin_dir: config.pin_dir.clone(),
        programs: Vec::new(),
        warnings: choice.guard.problem.iter().cloned().collect(),
        pods: Default::default(),
        connections: Default::default(),
        cni: None,
        waiting: Vec::new(),
        repairs: Vec::new(),
    }
}

fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

async fn reconcile_periodically(node_handle: Arc<NodeHandle>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    // After a long command one reconciliation is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, and adopting the pods has just reconciled all of them.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        node_handle.reconcile().await;
    }
}
