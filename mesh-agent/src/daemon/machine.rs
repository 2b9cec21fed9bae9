//! The agent of a host without Kubernetes: tests the kernel programs, adopts the enrolled units,
//! then serves the socket and reconciles until it is terminated. It needs no API server, no
//! container runtime and, for the redirection, no network: only joining a mesh and the certificate
//! of the machine take the identity service.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use mesh_core::node::{NodeStatus, SelfTestCase, TierAttempt};
use mesh_runtime::admin::{self, Admin, Readiness, log_level};
use mesh_runtime::log::{self, chain};
use mesh_runtime::metrics::Registry as MetricsRegistry;
use mesh_runtime::signal::Termination;
use mesh_runtime::{drain, task};

use super::status_routes::StatusRoutes;
use super::{DRAIN_TIMEOUT, kernel_release, reconcile_periodically};
use crate::config::{Config, MachineArgs};
use crate::ebpf::{Object, Settings};
use crate::machine::{AddressChanges, Identities, Machine};
use crate::machine_worker::MachineWorker;
use crate::membership::renewal::{self, RenewalMetrics};
use crate::membership::{Membership, anchors};
use crate::metrics::MachineMetrics;
use crate::node_api::server::{self, Responders};
use crate::node_handle::NodeHandle;
use crate::redirect::{GuardMode, Tier};
use crate::registry::Registry;
use crate::repairs::Repairs;
use crate::sys::notify;
use crate::tier;

/// How soon a socket that listened before its unit was enrolled, and has ended, is noticed.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(2);
/// Addresses often change several at a time.
const ADDRESS_PAUSE: Duration = Duration::from_millis(50);

/// Runs until SIGTERM or SIGINT. Units stay redirected afterwards.
pub async fn run(
    config: Config,
    args: MachineArgs,
    filter: log::FilterHandle,
) -> anyhow::Result<()> {
    check(&config)?;
    let mut termination = Termination::listen().context("cannot listen for signals")?;
    // Deletes the record of repairs of an earlier boot.
    Registry::open(&config.state_dir)?;
    let socket = server::bind(&config.socket)?;
    let listener = admin::bind(config.admin_addr).await?;
    let admin_addr = listener.local_addr()?;
    let readiness = Readiness::new();
    let ready = readiness.condition("the kernel programs to be tested and the units to be adopted");
    let metrics = MetricsRegistry::new();
    // There is no API server to publish events of repairs.
    let (repairs, _events) = Repairs::open(&config.state_dir, &metrics);
    let (supervisor, mut ends) = task::supervisor();
    let admin = Admin::new(metrics.clone(), readiness).route("/log-level", move |call| {
        let response = log_level::respond(&filter, &call);
        async move { response }
    });
    let status_routes = StatusRoutes::default();
    let admin = status_routes.add_to(admin);
    supervisor.spawn("admin", admin::serve(listener, admin));

    let settings = settings(&config, &args)?;
    let object = Object::open_for_units(config.bpf_object.as_deref())?;
    let tested = tokio::select! {
        tested = test(&config, &settings, &object) => tested?,
        signal = termination.received() => {
            tracing::info!(signal, "Stopping before the kernel programs were tested; units keep their redirection");
            let _ = std::fs::remove_file(&config.socket);
            return Ok(());
        }
    };
    let status = status(&config, &settings, tested);
    let membership = Arc::new(Membership::open(&config.units_dir));
    let renewals = RenewalMetrics::new(&metrics, &membership);
    let identities = Identities::new(membership.clone(), &config.state_dir, args.proxy_user);
    let machine = Machine::open(
        &config.units_dir,
        settings,
        object,
        args.systemctl,
        identities,
    )?;
    let worker = MachineWorker::new(
        machine,
        MachineMetrics::new(&metrics, &status),
        status,
        repairs,
    );
    // Before the addresses are read for the first time.
    let changes = AddressChanges::observe()?;
    let (node_handle, adopted) = NodeHandle::start(worker, supervisor.watch("node"))?;
    let node_handle = Arc::new(node_handle);
    status_routes.set_node(&node_handle);
    adopted.await.context("the units could not be adopted")?;
    ready.set(true);

    let (drain, watch) = drain::channel();
    supervisor.spawn(
        "reconcile",
        reconcile_periodically(Arc::clone(&node_handle), RECONCILE_INTERVAL),
    );
    supervisor.spawn(
        "addresses",
        follow_addresses(changes, Arc::clone(&node_handle)),
    );
    supervisor.spawn(
        "socket",
        server::serve(
            socket,
            Responders::new(Arc::clone(&node_handle), Some(membership.clone())),
            watch,
        ),
    );
    supervisor.spawn("renewal", renewal::run(membership.clone(), renewals));
    supervisor.spawn("trust anchors", anchors::run(membership));
    tracing::info!(socket = %config.socket.display(), admin = %admin_addr, "Ready");
    if let Err(error) = notify::ready() {
        tracing::warn!(%error, "Cannot tell the service manager that the agent is ready");
    }

    let result = tokio::select! {
        signal = termination.received() => {
            tracing::info!(signal, "Stopping");
            Ok(())
        }
        ended = ends.first() => Err(anyhow::anyhow!("{ended}")),
    };
    let _ = std::fs::remove_file(&config.socket);
    drain.drain(DRAIN_TIMEOUT).await;
    tracing::info!("Units stay redirected");
    result
}

/// Refuses settings of an agent for pods.
fn check(config: &Config) -> anyhow::Result<()> {
    let of_pods = [
        ("--cni-conf-dir", config.cni_conf_dir.is_some()),
        ("--node-name", config.node_name.is_some()),
        ("--kubeconfig", config.kubeconfig.is_some()),
        ("--namespace", config.namespace.is_some()),
        ("--daemonset", config.daemonset.is_some()),
        ("--guard", config.guard != GuardMode::Off),
    ];
    if let Some((flag, _)) = of_pods.iter().find(|(_, is_set)| *is_set) {
        anyhow::bail!(
            "{flag} is for pods, and mesh-agent machine redirects systemd units; remove it"
        );
    }
    let forced = config.tier.forced();
    ensure!(
        forced.is_none_or(|tier| tier == Tier::Full),
        "systemd units are redirected by tier full only; remove --tier"
    );
    Ok(())
}

fn settings(config: &Config, args: &MachineArgs) -> anyhow::Result<Settings> {
    let mount = tier::cgroup2_mount()?;
    let unit_root = match &config.cgroup_root {
        Some(configured) => configured.clone(),
        None => system_slice(&mount)?,
    };
    let proxy_root = args.proxy_root.clone();
    let proxy_root = proxy_root.unwrap_or_else(|| mount.join("mesh.slice"));
    Ok(Settings {
        pin_dir: config.pin_dir.clone(),
        unit_root: absolute(&unit_root)?,
        // It may not exist yet.
        proxy_root,
    })
}

/// Returns the slice that systemd starts services in. It exists before the first of them does where
/// the agent is the first.
fn system_slice(mount: &Path) -> anyhow::Result<PathBuf> {
    let path = mount.join("system.slice");
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Resolves symbolic links, which have other parents.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let absolute = std::fs::canonicalize(path);
    absolute.with_context(|| {
        format!(
            "cannot find {}, where the programs for units are attached; name a cgroup with --cgroup-root",
            path.display()
        )
    })
}

/// Tests redirection on a blocking thread: it takes up to a second, and the admin server responds
/// meanwhile.
async fn test(
    config: &Config,
    settings: &Settings,
    object: &Object,
) -> anyhow::Result<Vec<SelfTestCase>> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let trial = tier::UnitTrial {
        object: object.clone(),
        program,
        pin_dir: config.pin_dir.clone(),
        unit_root: settings.unit_root.clone(),
    };
    let tested = tokio::task::spawn_blocking(move || trial.run()).await?;
    let cases = tested.map_err(|reason| {
        anyhow::anyhow!("systemd units cannot be redirected on this host: {reason}")
    })?;
    tracing::info!(kernel = kernel_release(), "The kernel programs work");
    Ok(cases)
}

fn status(config: &Config, settings: &Settings, self_test: Vec<SelfTestCase>) -> NodeStatus {
    NodeStatus {
        agent_version: mesh_runtime::build_info::BuildInfo::CURRENT
            .version
            .to_owned(),
        kernel: kernel_release(),
        tier: Tier::Full,
        reason: "systemd units are redirected by it, and it passed the self-test".to_owned(),
        forced: config.tier.forced().is_some(),
        trials: vec![TierAttempt {
            tier: Tier::Full,
            works: true,
            reason: String::new(),
        }],
        self_test,
        cgroup_root: Some(settings.unit_root.clone()),
        pin_dir: config.pin_dir.clone(),
        programs: Vec::new(),
        warnings: Vec::new(),
        pods: Default::default(),
        connections: Default::default(),
        cni: None,
        waiting: Vec::new(),
        repairs: Vec::new(),
    }
}

/// Connections are redirected to an address of the host, and those from its addresses are local.
async fn follow_addresses(mut changes: AddressChanges, node_handle: Arc<NodeHandle>) {
    loop {
        if let Err(error) = changes.next().await {
            tracing::warn!(
                error = chain(&error),
                "Changes of the host's addresses take effect with the next reconciliation"
            );
            std::future::pending::<()>().await;
        }
        node_handle.reconcile().await;
        tokio::time::sleep(ADDRESS_PAUSE).await;
    }
}
