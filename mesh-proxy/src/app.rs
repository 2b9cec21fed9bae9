//! Creates and connects the components of the proxy, and starts and stops them in order.
//!
//! The *control thread* (the process's first) runs identity, discovery, DNS, the admin interface
//! and metrics encoding. N *data threads* accept, serve and open connections; see
//! [`crate::worker`]. The control thread publishes immutable snapshots; the data threads update
//! counters.
//!
//! Start: the listeners are bound first, because the redirection needs them and connections may
//! wait in their backlog; then the admin interface, identity and discovery start; then the data
//! threads, which accept after the first certificate. Stop: the proxy drains. Data threads accept
//! until all connections are closed, and then end; the admin interface responds until the process
//! exits.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_runtime::admin::{Condition, Readiness};
use mesh_runtime::build_info::BuildInfo;
use mesh_runtime::drain::{self, Drain, Outcome};
use mesh_runtime::log::FilterHandle;
use mesh_runtime::metrics::Registry;
use mesh_runtime::signal::Termination;
use mesh_runtime::task::{self, Supervisor, TaskMonitor};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::LocalSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access_log::AccessLog;
use crate::config::{Config, ControlAddr, IdentitySource};
use crate::context::{ProcessState, ProxyContext};
use crate::control::dns::{DnsError, Resolver};
use crate::control::{Client, Trust};
use crate::discovery::Discovery;
use crate::inbound::Inbound;
use crate::redirection::{self, ProbeListener};
use crate::tap::Tap;
use crate::tap_server::{self, TapServer};
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::tls::{self, CredentialsRx};
use crate::trace::exporter::{Exporter, ExporterTask};
use crate::trace::{self, Tracer};
use crate::transport::listen::{self, Acceptor, DEFAULT_BACKLOG, ListenError, ListeningSocket};
use crate::worker::{self, Listeners, WorkerParts};
use crate::{admin, identity, time_slice};

/// Runs the proxy until it has drained. The calling thread becomes the control thread.
pub fn run(config: Config, log: FilterHandle) -> Result<(), impl std::error::Error> {
    App::bind(config, log).and_then(App::run)
}

/// A proxy whose sockets are bound, ready to run.
#[derive(Debug)]
pub(crate) struct App {
    config: Arc<Config>,
    log: FilterHandle,
    listeners: Vec<Listeners>,
    admin: Acceptor,
    /// `None` if no identity may observe requests.
    tap: Option<Acceptor>,
    control: Runtime,
    termination: Termination,
}

/// The bound addresses, with the ports that the kernel chose for port 0.
#[derive(Clone, Debug)]
pub(crate) struct BoundAddrs {
    pub(crate) inbound: SocketAddr,
    pub(crate) outbound: Vec<SocketAddr>,
    pub(crate) admin: SocketAddr,
    pub(crate) tap: Option<SocketAddr>,
}

/// Why a proxy cannot start or has failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Admin(#[from] mesh_runtime::admin::BindError),
    #[error("cannot start a thread or its runtime")]
    Thread(#[source] std::io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] std::io::Error),
    #[error("cannot read a bound address")]
    Address(#[source] std::io::Error),
    #[error(transparent)]
    Dns(#[from] DnsError),
    #[error("{0}")]
    Ended(task::TaskExit),
}

/// Why the proxy shuts down gracefully.
enum StopReason {
    Signal(&'static str),
    Admin,
}

/// The interval of warnings that there is no certificate yet, as in Linkerd's proxy.
const NO_CERTIFICATE_WARNING_INTERVAL: Duration = Duration::from_secs(15);

impl App {
    /// Binds all sockets.
    pub(crate) fn bind(config: Config, log: FilterHandle) -> Result<Self, AppError> {
        let config = Arc::new(config);
        let available = thread::available_parallelism().map_or(1, usize::from);
        let listeners = bind_listeners(&config, config.workers.count(available))?;
        let control = new_runtime()?;
        let entered = control.enter();
        let admin = control
            .block_on(mesh_runtime::admin::bind(config.admin.listen))?
            .into();
        let tap = bind_tap(&config)?;
        let termination = Termination::listen().map_err(AppError::Signals)?;
        drop(entered);
        Ok(Self {
            config,
            log,
            listeners,
            admin,
            tap,
            control,
            termination,
        })
    }

    pub(crate) fn bound(&self) -> Result<BoundAddrs, AppError> {
        let local = |socket: &ListeningSocket| socket.local_addr().map_err(AppError::Address);
        // All data threads have the same addresses, and there is at least one thread.
        let first = &self.listeners[0];
        Ok(BoundAddrs {
            inbound: local(&first.inbound)?,
            outbound: first.outbound.iter().map(local).collect::<Result<_, _>>()?,
            admin: self.admin.local_addr().map_err(AppError::Address)?,
            tap: match &self.tap {
                Some(tap) => Some(tap.local_addr().map_err(AppError::Address)?),
                None => None,
            },
        })
    }

    /// Runs until the proxy has drained. The calling thread becomes the control thread.
    pub(crate) fn run(self) -> Result<(), AppError> {
        self.announce()?;
        let Self {
            config,
            log,
            listeners,
            admin,
            tap: tap_listener,
            control,
            mut termination,
        } = self;
        let registry = Registry::with_retention(config.admin.metrics_retain_idle);
        export_static(&registry);
        let (supervisor, mut monitor) = task::supervisor();
        let (drain, watch) = drain::channel();
        let stop = CancellationToken::new();
        let readiness = Readiness::new();

        let local = LocalSet::new();
        let mut control_plane = {
            let _entered = control.enter();
            ControlPlane::start(&config, &registry, &readiness, &supervisor)?
        };
        let families = Arc::new(Families::new(
            &registry,
            trace::exemplars(config.trace.as_ref()),
            ResponseDurations::new(config.admin.response_durations),
        ));
        let endpoint = config.admin.shutdown_endpoint.then(|| stop.clone());
        let routes = admin::routes(registry.clone(), readiness, log, endpoint);
        let guard = supervisor.watch("admin");
        let tap = Arc::new(Tap::new(&registry));
        let context = admin_context(&config, &control_plane, &families, &tap);
        let inbound = Rc::new(Inbound::new(context));
        local.spawn_local(inbound.clone().evict_idle());
        if let (Some(listener), Some(observer)) = (tap_listener, &config.tap.observer) {
            let server = TapServer::new(tap.clone(), observer.clone(), inbound.clone());
            let guard = supervisor.watch("tap");
            local.spawn_local(async move {
                tap_server::serve(listener, Rc::new(server)).await;
                drop(guard);
            });
        }
        local.spawn_local(async move {
            admin::serve(admin, routes, inbound).await;
            drop(guard);
        });
        let mut shared = ProcessState::new(&config, tap);
        if let Some(format) = config.access_log {
            let log = AccessLog::start(format, std::io::stderr(), &registry);
            shared.access_log = Some(log.map_err(AppError::Thread)?);
        }
        let (tracer, exporter) = control_plane.tracing.take().unzip();
        shared.tracer = tracer;
        let shared = Arc::new(shared);
        let data = start_data_threads(
            &config,
            listeners,
            &control_plane,
            &families,
            &supervisor,
            &shared,
            watch,
        )?;

        let grace = config.shutdown_grace;
        local.block_on(&control, async {
            let reason = wait_for_stop(&mut termination, &stop, &mut monitor).await?;
            let deadline = Instant::now() + grace;
            shut_down(reason, drain, grace, data).await;
            if let Some(exporter) = exporter {
                exporter.flush(deadline).await;
            }
            if let Some(log) = &shared.access_log {
                log.flush();
            }
            Ok(())
        })
    }

    /// Logs the lines that operators know from Linkerd's proxy.
    fn announce(&self) -> Result<(), AppError> {
        let bound = self.bound()?;
        tracing::info!("{}", BuildInfo::CURRENT);
        tracing::info!(threads = self.listeners.len(), "Starting data threads");
        tracing::info!("Admin interface on {}", bound.admin);
        tracing::info!("Inbound interface on {}", bound.inbound);
        for outbound in bound.outbound {
            tracing::info!("Outbound interface on {outbound}");
        }
        match bound.tap {
            Some(tap) => tracing::info!("Tap interface on {tap}"),
            None => tracing::info!("Tap DISABLED"),
        }
        let identity = &self.config.identity;
        tracing::info!("SNI is {}", identity.server_name);
        tracing::info!("Local identity is {}", identity.id);
        let discovery = &self.config.discovery;
        if let IdentitySource::WorkloadApi(api) = &identity.source {
            tracing::info!("Identity verified via the Workload API at {:?}", api.socket);
        }
        if let Some(service) = identity.source.service() {
            let what = match &identity.source {
                IdentitySource::Service(_) => "Identity verified",
                IdentitySource::WorkloadApi(_) => "Trust anchors followed",
            };
            announce_service(what, service);
        }
        announce_service("Destinations resolved", &discovery.destination);
        announce_service("Policies watched", &discovery.policy);
        if let Some(trace) = &self.config.trace {
            announce_service("Spans exported", &trace.collector);
        }
        if self.config.inbound.ips.is_empty() {
            tracing::info!("Connections to all target addresses are allowed");
        }
        Ok(())
    }
}

fn announce_service(what: &str, addr: &ControlAddr) {
    let id = addr.identity.as_ref().map_or("localhost", Identity::as_str);
    tracing::info!("{what} via {} ({id})", addr.authority());
}

fn export_static(registry: &Registry) {
    registry.export_process();
    tls::export_rustls_info(registry);
    BuildInfo::CURRENT.export(registry, "proxy_build_info");
}

/// Binds one set of sockets for each data thread.
fn bind_listeners(config: &Config, threads: usize) -> Result<Vec<Listeners>, ListenError> {
    let outbound_backlog = config.outbound.backlog.unwrap_or(DEFAULT_BACKLOG);
    let inbound_backlog = config.inbound.backlog.unwrap_or(DEFAULT_BACKLOG);
    let inbound = listen::bind(config.inbound.listen, inbound_backlog, threads)?;
    let mut all: Vec<_> = inbound
        .into_iter()
        .map(|inbound| Listeners {
            inbound,
            outbound: Vec::new(),
        })
        .collect();
    for addr in &config.outbound.listen {
        let outbound = listen::bind(*addr, outbound_backlog, threads)?;
        for (listeners, outbound) in all.iter_mut().zip(outbound) {
            listeners.outbound.push(outbound);
        }
    }
    Ok(all)
}

/// Opens the socket of the tap service if an identity may use it. Needs the control thread's
/// runtime.
fn bind_tap(config: &Config) -> Result<Option<Acceptor>, AppError> {
    let tap = &config.tap;
    if tap.observer.is_none() {
        return Ok(None);
    }
    let bound = listen::bind(tap.listen, DEFAULT_BACKLOG, 1)?;
    let listener = bound.into_iter().next().map(Acceptor::new);
    listener.transpose().map_err(AppError::Address)
}

/// The outputs of the control thread for the data threads.
struct ControlPlane {
    credentials: CredentialsRx,
    discovery: Discovery,
    probe_listener: Option<ProbeListener>,
    /// Taken when the data threads start. `None` if there is no collector.
    tracing: Option<(Tracer, ExporterTask)>,
}

impl ControlPlane {
    /// Starts identity, discovery and the export of spans on the current runtime.
    fn start(
        config: &Arc<Config>,
        registry: &Registry,
        readiness: &Readiness,
        supervisor: &Supervisor,
    ) -> Result<Self, DnsError> {
        let resolver = Resolver::from_system(&config.control, registry)?;
        let client = |name, addr: &_, trust| {
            Client::new(name, addr, &config.control, trust, &resolver, registry)
        };

        let credentials = identity::start(
            config,
            |service, trust| client("identity", service, trust),
            readiness.condition("identity"),
            registry,
            supervisor,
        );
        tokio::spawn(warn_without_certificate(credentials.clone()));
        let probe_listener = config.outbound.redirect_check.map(|addr| {
            let ready = readiness.condition(redirection::CONDITION);
            let (probe, probe_listener) = redirection::new(addr, ready, registry);
            supervisor.spawn("redirection", probe.run(credentials.clone()));
            probe_listener
        });

        let trust = || Trust::Certified(credentials.clone());
        let discovery = Discovery::new(
            config,
            client("destination", &config.discovery.destination, trust()),
            client("policy", &config.discovery.policy, trust()),
            Handle::current(),
        );
        let tracing = config.trace.as_ref().map(|trace| {
            let client = client("trace_collector", &trace.collector, trust());
            let (tracer, exporter) = Exporter::new(trace, &config.control, client, registry);
            (tracer, exporter.start(supervisor))
        });
        if !config.is_control_plane_pod() {
            let ready = readiness.condition("the policies of this pod's ports");
            tokio::spawn(wait_for_policies(
                discovery.clone(),
                credentials.clone(),
                ready,
            ));
        }
        Ok(Self {
            credentials,
            discovery,
            probe_listener,
            tracing,
        })
    }
}

/// How long a proxy with a certificate waits for the policies of its ports, which normally takes
/// milliseconds. Without them the default policy applies, which may allow or deny other requests,
/// but an unreachable policy service must not keep applications from starting.
const POLICY_TIMEOUT: Duration = Duration::from_secs(5);

/// Delays readiness until the policies of the ports authorize the first requests.
async fn wait_for_policies(discovery: Discovery, mut credentials: CredentialsRx, ready: Condition) {
    // Fails only when the process is exiting.
    if credentials.wait_for(Option::is_some).await.is_err() {
        return;
    }
    if tokio::time::timeout(POLICY_TIMEOUT, discovery.wait_for_declared_policies())
        .await
        .is_err()
    {
        tracing::warn!(
            ports = ?discovery.ports_without_policy(),
            waited = ?POLICY_TIMEOUT,
            "No response from the policy service for these ports; applying the default policy until it responds"
        );
    }
    ready.set(true);
}

async fn warn_without_certificate(mut credentials: CredentialsRx) {
    while tokio::time::timeout(
        NO_CERTIFICATE_WARNING_INTERVAL,
        credentials.wait_for(Option::is_some),
    )
    .await
    .is_err()
    {
        tracing::warn!("Waiting for identity to be initialized...");
    }
}

/// The most concurrent requests of one admin connection, whose responses may be large.
const ADMIN_STREAMS: u32 = 4;

/// Creates the control thread's context for admin connections. It has separate limits, so that the
/// application's load does not fail probes, and never drains.
fn admin_context(
    config: &Arc<Config>,
    control: &ControlPlane,
    families: &Arc<Families>,
    tap: &Arc<Tap>,
) -> Rc<ProxyContext> {
    let (_never_drains, drain) = drain::channel();
    let mut config = Config::clone(config);
    config.inbound.http2_server.max_concurrent_streams = Some(ADMIN_STREAMS);
    let shared = Arc::new(ProcessState::new(&config, tap.clone()));
    Rc::new(ProxyContext {
        config: Arc::new(config),
        discovery: control.discovery.clone(),
        credentials: control.credentials.clone(),
        families: families.clone(),
        tasks: shared.tasks.clone(),
        shared,
        scratch: Rc::default(),
        probe_listener: None,
        drain,
    })
}

fn start_data_threads(
    config: &Arc<Config>,
    listeners: Vec<Listeners>,
    control: &ControlPlane,
    families: &Arc<Families>,
    supervisor: &Supervisor,
    shared: &Arc<ProcessState>,
    drain: drain::Watch,
) -> Result<Vec<JoinHandle<()>>, AppError> {
    let mut threads = Vec::with_capacity(listeners.len());
    for (number, listeners) in listeners.into_iter().enumerate() {
        let parts = WorkerParts {
            config: config.clone(),
            discovery: control.discovery.clone(),
            credentials: control.credentials.clone(),
            families: families.clone(),
            shared: shared.clone(),
            probe_listener: control.probe_listener.clone(),
            drain: drain.clone(),
            listeners,
        };
        let runtime = new_runtime()?;
        let guard = supervisor.watch("data");
        let thread = thread::Builder::new()
            .name(format!("data-{number}"))
            .spawn(move || {
                time_slice::request_shortest();
                if let Err(error) = runtime.block_on(worker::run(parts)) {
                    tracing::error!(%error, "Data thread failed to start");
                }
                drop(guard);
            })
            .map_err(AppError::Thread)?;
        threads.push(thread);
    }
    Ok(threads)
}

fn new_runtime() -> Result<Runtime, AppError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AppError::Thread)
}

async fn wait_for_stop(
    termination: &mut Termination,
    stop: &CancellationToken,
    monitor: &mut TaskMonitor,
) -> Result<StopReason, AppError> {
    tokio::select! {
        biased;
        signal = termination.received() => Ok(StopReason::Signal(signal)),
        () = stop.cancelled() => Ok(StopReason::Admin),
        ended = monitor.first() => Err(AppError::Ended(ended)),
    }
}

/// Ends the proxy's work, in this order: HTTP/2 connections get GOAWAY and HTTP/1 responses
/// `connection: close`; new connections are accepted until none is open, or until the grace period
/// ends; then the data threads end. [`App::run`] sends the last spans and access log entries
/// afterwards, and the admin interface closes with the process.
async fn shut_down(reason: StopReason, drain: Drain, grace: Duration, data: Vec<JoinHandle<()>>) {
    match reason {
        StopReason::Signal(name) => tracing::info!("Received {name}, draining"),
        StopReason::Admin => tracing::info!("Received shutdown via admin interface, draining"),
    }
    match drain.drain(grace).await {
        Outcome::Complete => {
            for thread in data {
                // The panic hook has reported a panic.
                let _ = thread.join();
            }
            tracing::info!("All connections are closed");
        }
        Outcome::Expired { remaining } => {
            tracing::warn!(
                remaining,
                ?grace,
                "Connections remain after the grace period; closing them"
            );
        }
    }
}
