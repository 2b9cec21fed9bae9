//! The agent: chooses the tier, adopts the pods that are there, then answers the socket and looks after the node until it is told to stop.
//!
//! ```text
//! main thread (tokio)                         thread "node" (blocking system calls)
//!   socket server ──Request──▶ Caretaker ──▶  Warden: Node + metrics
//!   timer ─────────LookAfter─▶     ◀──Answer──
//!   admin server
//! ```
//!
//! One thread owns the node, so that commands for the same pod cannot overtake each other and nothing needs a lock. The plugin may change the same files
//! and maps only while the agent does not answer.

mod caretaker;
mod warden;

use std::{env, sync::Arc, time::Duration};

use anyhow::Context;
use mesh_core::node::NodeStatus;
use mesh_runtime::{
    admin::{self, Admin, Readiness, log_level},
    drain, log,
    metrics::Registry as MetricsRegistry,
    signal::Termination,
    task,
};
use tokio::time::MissedTickBehavior;

pub use caretaker::Caretaker;

use crate::{
    config::Config,
    ebpf::{self, Loaded, Programs},
    metrics::Metrics,
    node::Node,
    node_api::server,
    redirect::Tier,
    registry::{NodeRecord, Registry},
    tier::{self, Choice, Settings},
};
use warden::Warden;

/// How soon a change by hand is noticed and a pod that died without a CNI DEL is forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// For answers that are being given when the agent is told to stop. Any command takes less.
const GRACE: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT. Pods stay redirected afterwards.
pub async fn run(config: Config, filter: log::FilterHandle) -> anyhow::Result<()> {
    let mut termination = Termination::listen().context("cannot listen for signals")?;
    let registry = Registry::open(&config.state_dir)?;
    let socket = server::bind(&config.socket)?;
    let listener = admin::bind(config.admin_addr).await?;
    let admin_addr = listener.local_addr()?;
    let readiness = Readiness::new();
    let ready = readiness.condition("the redirection tier to be chosen and the pods to be adopted");
    let metrics = MetricsRegistry::new();
    let (supervisor, mut ends) = task::supervisor();

    let admin = Admin::new(metrics.clone(), readiness).route("/log-level", move |call| {
        let answer = log_level::respond(&filter, &call);
        async move { answer }
    });
    supervisor.spawn("admin", admin::serve(listener, admin));

    let choice = choose(&config).await?;
    let status = status(&config, &choice);
    registry.put_node(&NodeRecord { tier: choice.tier })?;
    let programs = match &choice.attached {
        Some(attached) => Some(attached.programs.clone()),
        // Pods of an agent that chose better may still be there.
        None => Programs::open(&config.pin_dir).ok(),
    };
    let warden = Warden::new(
        Node::new(registry, choice.tier, programs),
        Metrics::new(&metrics, &status, choice.guard.mode),
        status,
        choice.attached,
    );
    let (caretaker, adopted) = Caretaker::start(warden, supervisor.watch("node"))?;
    let caretaker = Arc::new(caretaker);
    adopted.await.context("the pods could not be adopted")?;
    ready.set(true);

    let (drain, watch) = drain::channel();
    supervisor.spawn("sweeps", sweep_now_and_then(Arc::clone(&caretaker)));
    supervisor.spawn("socket", server::serve(socket, caretaker, watch));
    tracing::info!(socket = %config.socket.display(), admin = %admin_addr, "Ready");

    let result = tokio::select! {
        signal = termination.received() => {
            tracing::info!(signal, "Stopping; pods stay redirected");
            Ok(())
        }
        ended = ends.first() => Err(anyhow::anyhow!("{ended}")),
    };
    // The plugin goes on alone at once, instead of waiting for an answer.
    let _ = std::fs::remove_file(&config.socket);
    drain.drain(GRACE).await;
    result
}

/// Takes the redirection from every pod and removes programs, pins and state. Meshed pods that still run are then in the clear: their proxies see
/// nothing more.
pub fn uninstall(config: &Config) -> anyhow::Result<()> {
    anyhow::ensure!(
        !server::is_taken(&config.socket),
        "a mesh agent answers on {} and would undo this; stop it first",
        config.socket.display()
    );
    let registry = Registry::open(&config.state_dir)?;
    let programs = Programs::open(&config.pin_dir).ok();
    let tier = registry.node()?.map_or(Tier::Nft, |node| node.tier);
    let failures = Node::new(registry, tier, programs).release_all()?;
    ebpf::unload(&config.pin_dir).context("the kernel programs could not be removed")?;
    tier::clear_self_test(&config.pin_dir, config.cgroup_root.as_deref())?;
    // Only the directory itself is left; what somebody else put there keeps it.
    let _ = std::fs::remove_dir(&config.pin_dir);
    for failure in &failures {
        tracing::error!("{failure}");
    }
    anyhow::ensure!(
        failures.is_empty(),
        "the redirection of {} pods could not be removed",
        failures.len()
    );
    tracing::info!("No pod of this node is redirected any more");
    Ok(())
}

/// The trials block for up to a second; the admin server answers meanwhile.
async fn choose(config: &Config) -> anyhow::Result<Choice> {
    let settings = Settings {
        forced: config.tier.forced(),
        cgroup_root: config.cgroup_root.clone(),
        pin_dir: config.pin_dir.clone(),
        bpf_object: config.bpf_object.clone(),
        guard: config.guard,
        program: env::current_exe().context("cannot find this program's own file")?,
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
        programs = loaded.map(describe),
        "Redirection tier chosen"
    );
    match &choice.guard.problem {
        Some(problem) => tracing::error!("{problem}"),
        None => tracing::info!(mode = choice.guard.mode.as_str(), "Guard set"),
    }
    Ok(choice)
}

fn describe(loaded: Loaded) -> &'static str {
    match loaded {
        Loaded::Fresh => "loaded",
        Loaded::Adopted => "adopted as they were",
        Loaded::Replaced => "replaced in place",
    }
}

fn status(config: &Config, choice: &Choice) -> NodeStatus {
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
    }
}

fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

async fn sweep_now_and_then(caretaker: Arc<Caretaker>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    // After a long command one sweep is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, and the adoption has just looked at everything.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        caretaker.look_after().await;
    }
}
