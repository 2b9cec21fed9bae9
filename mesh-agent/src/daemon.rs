//! The agent: chooses the tier, adopts the pods that are there, then answers the socket and looks
//! after the node until it is told to stop.
//!
//! ```text
//! main thread (tokio)                         thread "node" (blocking system calls)
//!   socket server ──Request──▶ Caretaker ──▶  Warden: Node + metrics
//!   timer ─────────LookAfter─▶     ◀──Answer──
//!   Kubernetes ─EnrolInPlace─▶
//!   CNI configuration
//!   admin server
//! ```
//!
//! One thread owns the node, so that commands for the same pod cannot overtake each other and
//! nothing needs a lock. The plugin may change the same files and maps only while the agent does
//! not answer.

mod caretaker;
mod questions;
mod removal;
mod surroundings;
mod warden;

use std::{env, sync::Arc, time::Duration};

use anyhow::Context;
use mesh_core::node::NodeStatus;
use mesh_runtime::{
    admin::{self, Admin, Readiness, log_level},
    drain,
    log::{self, chain},
    metrics::Registry as MetricsRegistry,
    signal::Termination,
    task,
};
use tokio::time::MissedTickBehavior;

pub use caretaker::Caretaker;

use crate::{
    config::Config,
    ebpf::{Loaded, Programs},
    findings::Findings,
    host,
    kubernetes::Departure,
    metrics::Metrics,
    node::Node,
    node_api::server,
    redirect::Tier,
    registry::{NodeRecord, Registry},
    repairs::Repairs,
    tier::{self, Choice, Settings},
};
use questions::Questions;
use removal::Removal;
use surroundings::{Agent, Surroundings};
use warden::Warden;

/// How soon a change by hand is noticed and a pod that died without a CNI DEL is forgotten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// For answers that are being given when the agent is told to stop. Any command takes less.
const GRACE: Duration = Duration::from_secs(5);

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
    let chained = surroundings::condition(&config, &readiness);
    let metrics = MetricsRegistry::new();
    let findings = Findings::default();
    let (repairs, repaired) = Repairs::open(&config.state_dir, &metrics);
    let (supervisor, mut ends) = task::supervisor();

    let admin = Admin::new(metrics.clone(), readiness).route("/log-level", move |call| {
        let answer = log_level::respond(&filter, &call);
        async move { answer }
    });
    let questions = Questions::default();
    let admin = questions.add_to(admin);
    supervisor.spawn("admin", admin::serve(listener, admin));

    let choice = tokio::select! {
        choice = choose(&config) => choice?,
        signal = termination.received() => {
            tracing::info!(signal, "Stopping before the tier was chosen; what is there stays");
            let _ = std::fs::remove_file(&config.socket);
            return Ok(());
        }
    };
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
        findings.clone(),
        repairs.clone(),
    );
    let (caretaker, adopted) = Caretaker::start(warden, supervisor.watch("node"))?;
    let caretaker = Arc::new(caretaker);
    questions.answered_by(&caretaker);
    adopted.await.context("the pods could not be adopted")?;
    ready.set(true);

    let (drain, watch) = drain::channel();
    let sweeps = supervisor.spawn("sweeps", sweep_now_and_then(Arc::clone(&caretaker)));
    supervisor.spawn(
        "socket",
        server::serve(socket, Arc::clone(&caretaker), watch),
    );
    let agent = Agent {
        caretaker: &caretaker,
        findings: &findings,
        repairs: &repairs,
        metrics: &metrics,
        supervisor: &supervisor,
    };
    let surroundings = Surroundings::start(&config, chained, repaired, &agent)?;
    tracing::info!(socket = %config.socket.display(), admin = %admin_addr, "Ready");

    let (result, departure) = tokio::select! {
        signal = termination.received() => {
            tracing::info!(signal, "Stopping");
            // Pods go on being enrolled while this asks the API server.
            (Ok(()), surroundings.departure().await)
        }
        ended = ends.first() => {
            let error = Err(anyhow::anyhow!("{ended}"));
            (error, Departure::Stay("a part of the agent ended".to_owned()))
        }
    };
    // The plugin goes on alone at once, instead of waiting for an answer.
    let _ = std::fs::remove_file(&config.socket);
    drain.drain(GRACE).await;
    match departure {
        Departure::Stay(reason) => {
            tracing::info!(reason, "Pods stay redirected");
            result
        }
        Departure::Leave(reason) => {
            tracing::info!(reason, "Removing the mesh from this node");
            sweeps.abort();
            surroundings.remove(config, caretaker).await
        }
    }
}

/// Removes everything that an agent ever did to the node, as an agent does whose DaemonSet is
/// deleted.
pub fn uninstall(config: &Config, keep_plugin: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        !server::is_taken(&config.socket),
        "a mesh agent answers on {} and would undo this; stop it first",
        config.socket.display()
    );
    let installer = surroundings::installer(config)?;
    let mut removal = Removal::default();
    removal.leave_chain(installer.as_deref());
    let registry = Registry::open(&config.state_dir)?;
    let programs = Programs::open(&config.pin_dir).ok();
    let tier = registry.node()?.map_or(Tier::Nft, |node| node.tier);
    removal.released(Node::new(registry, tier, programs).release_all());
    removal.remove_files(config, installer.as_deref(), keep_plugin);
    removal.finish()
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
        // Pins that are not the node's would end with the agent's container, and with them the
        // redirection of every pod.
        no_pins: host::ensure_bpffs(&config.pin_dir)
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
        cni: None,
        waiting: Vec::new(),
        repairs: Vec::new(),
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
