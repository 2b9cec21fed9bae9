//! [`Proxy`]: one proxy of a simulated world, with one data thread's worth of tasks.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mesh_core::tap::{TapFilter, TapRequest};
use mesh_runtime::drain::{self, Drain};
use mesh_runtime::metrics::Registry;
use mesh_simnet::{Network, Role};
use tokio::runtime::Handle;
use tokio::task::spawn_local;
use tokio_util::task::AbortOnDropHandle;

use crate::access_log::AccessLog;
use crate::config::{Config, ControlAddr};
use crate::context::ProcessState;
use crate::control::dns::Resolver;
use crate::control::dns::world::Names;
use crate::control::{Client, Trust};
use crate::discovery::Discovery;
use crate::limits::FreeLimits;
use crate::tap::Tap;
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::tls::Credentials;
use crate::trace::exporter::Exporter;
use crate::transport::listen::ListeningSocket;
use crate::worker::{self, Listeners, WorkerParts};
use crate::{trace, watch};

/// A running proxy. Dropping it ends it as SIGKILL does: its connections are closed, and their
/// tasks do nothing more.
pub struct Proxy {
    inbound: SocketAddr,
    outbound: SocketAddr,
    registry: Registry,
    state: Arc<ProcessState>,
    free_at_start: FreeLimits,
    /// Taken when the drain begins.
    drain: RefCell<Option<Drain>>,
    /// The drain that has begun, until [`Proxy::drain`] waits for it.
    draining: RefCell<Option<AbortOnDropHandle<drain::Outcome>>>,
    /// Taken by the first [`Proxy::drain`].
    serving: RefCell<Option<AbortOnDropHandle<()>>>,
    /// Never changes: a world's certificates do not expire.
    _credentials: watch::Sender<Option<Arc<Credentials>>>,
}

impl Proxy {
    pub(super) fn start(
        network: &Network,
        ip: IpAddr,
        config: Arc<Config>,
        credentials: Arc<Credentials>,
        names: &Names,
    ) -> io::Result<Self> {
        let process = network.process(ip, Role::Proxy);
        let inbound = process.listen(config.inbound.listen.port())?;
        let outbound = process.listen(config.outbound.listen[0].port())?;
        let addresses = (inbound.local_addr(), outbound.local_addr());
        let registry = Registry::with_retention(config.admin.metrics_retain_idle);
        let (publish, credentials) = watch::channel(Some(credentials));
        let (discovery, tracer) = {
            // The client of the control plane belongs to this process.
            let _entered = process.clone().enter();
            let resolver = Resolver::of_world(names.clone(), &registry);
            let client = |name, addr: &ControlAddr| {
                let trust = Trust::Certified(credentials.clone());
                Client::new(name, addr, &config.control, trust, &resolver, &registry)
            };
            let discovery = Discovery::new(
                &config,
                client("destination", &config.discovery.destination),
                client("policy", &config.discovery.policy),
                Handle::current(),
            );
            // A world has no collector: without an exporter spans are dropped.
            let tracer = config.trace.as_ref().map(|trace| {
                let client = client("trace_collector", &trace.collector);
                let (tracer, _exporter) = Exporter::new(trace, &config.control, client, &registry);
                tracer
            });
            (discovery, tracer)
        };
        let families = Arc::new(Families::new(
            &registry,
            trace::exemplars(config.trace.as_ref()),
            ResponseDurations::new(config.admin.response_durations),
        ));
        let mut state = ProcessState::new(&config, Arc::new(Tap::new(&registry)));
        state.tracer = tracer;
        let access_log = config.access_log;
        state.access_log = access_log.map(|format| AccessLog::unwritten(format, &registry));
        let state = Arc::new(state);
        let free_at_start = state.limits.free();
        let (drain, watch) = drain::channel();
        let parts = WorkerParts {
            config,
            discovery,
            credentials,
            families,
            shared: state.clone(),
            probe_listener: None,
            drain: watch,
            listeners: Listeners {
                inbound: ListeningSocket::Simulated(inbound),
                outbound: vec![ListeningSocket::Simulated(outbound)],
            },
        };
        let serving = process.run(async move {
            if let Err(error) = worker::run(parts).await {
                // A simulated listener does not fail.
                tracing::error!(%error, "Data thread failed to start");
            }
        });
        Ok(Self {
            inbound: addresses.0,
            outbound: addresses.1,
            registry,
            state,
            free_at_start,
            drain: RefCell::new(Some(drain)),
            draining: RefCell::default(),
            serving: RefCell::new(Some(AbortOnDropHandle::new(spawn_local(serving)))),
            _credentials: publish,
        })
    }

    /// Subscribes to all requests, and reads the events.
    pub(super) fn observe(&self) {
        let request = TapRequest {
            limit: u32::MAX,
            filter: TapFilter::All(Vec::new()),
            with_headers: true,
        };
        // There is no other subscription.
        if let Ok(mut events) = self.state.tap.subscribe(request) {
            spawn_local(async move { while events.next().await.is_some() {} });
        }
    }

    /// The address that inbound connections are redirected to.
    pub fn inbound(&self) -> SocketAddr {
        self.inbound
    }

    /// The address that outbound connections are redirected to.
    pub fn outbound(&self) -> SocketAddr {
        self.outbound
    }

    /// The metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        String::from_utf8_lossy(&self.registry.encode()).into_owned()
    }

    /// The sum of the metrics whose lines begin with `begins`.
    pub fn metric(&self, begins: &str) -> f64 {
        let text = self.metrics();
        let lines = text.lines().filter(|line| line.starts_with(begins));
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The number of connections, and of tasks that outlive them.
    pub fn open_tasks(&self) -> usize {
        self.state.tasks.len()
    }

    /// Ends the proxy as SIGTERM does, with this grace period, and does not wait. Later calls do
    /// nothing.
    pub(super) fn begin_drain(&self, grace: Duration) {
        if let Some(drain) = self.drain.take() {
            let draining = AbortOnDropHandle::new(spawn_local(drain.drain(grace)));
            self.draining.replace(Some(draining));
        }
    }

    /// Ends the proxy as SIGTERM does, with this grace period unless it is ending already. Returns
    /// what it still holds when it has exited. Later calls do nothing.
    pub async fn drain(&self, grace: Duration) -> Vec<String> {
        let Some(serving) = self.serving.take() else {
            return Vec::new();
        };
        // The series ends with the proxy, and connections between proxies are still open.
        let gauge = self.metric("tcp_open_connections");
        let is_running = self.drain.borrow().is_some();
        if is_running && gauge != self.open_connections() {
            return vec![format!("{gauge} connections in the gauge")];
        }
        self.begin_drain(grace);
        if let Some(draining) = self.draining.take()
            && let Ok(drain::Outcome::Expired { remaining }) = draining.await
        {
            return vec![format!("{remaining} holders after the grace period")];
        }
        // Fails only if a task panicked, which the panic hook has reported.
        let _ended = serving.await;
        self.held()
    }

    /// What a proxy without connections must not hold: tasks, permits, memory, and counts of open
    /// connections.
    fn held(&self) -> Vec<String> {
        let mut held = Vec::new();
        let mut count = |name: &str, n: usize| {
            if n > 0 {
                held.push(format!("{n} {name}"));
            }
        };
        count("tasks of connections", self.open_tasks());
        let free = self.state.limits.free();
        for ((name, before), (_, now)) in self.free_at_start.into_iter().zip(free) {
            count(name, before.saturating_sub(now));
        }
        count("open connections", self.open_connections().abs() as usize);
        held
    }

    /// By the counters of connections that were opened and closed.
    fn open_connections(&self) -> f64 {
        self.metric("tcp_open_total") - self.metric("tcp_close_total")
    }
}
