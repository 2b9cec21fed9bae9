//! The test environment: a control plane, and proxies whose connections and original destinations
//! come from the test instead of a listener.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use mesh_core::endpoint::{Endpoint, EndpointUpdate, ProtocolHint, TlsPeer};
use mesh_core::identity::Identity;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::profile::Profile;
use mesh_runtime::drain::{self, Drain};
use mesh_runtime::metrics::Registry;
use mesh_runtime::task;
use nix::sched::{CloneFlags, unshare};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, advance, timeout};
use tonic::Status;

use crate::config::Config;
use crate::config::tests::with_control_plane;
use crate::context::{ProcessState, ProxyContext};
use crate::control::dns::Resolver;
use crate::control::{Client, Trust};
use crate::discovery::tests::discovery;
use crate::inbound::Inbound;
use crate::limits::Limits;
use crate::limits::connections::ConnectionLimit;
use crate::outbound::Outbound;
use crate::tap::Tap;
use crate::tap_server::{self, TapServer};
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::telemetry::labels::Direction;
use crate::tests::fake_control_plane::ControlPlane;
use crate::tls::tests::TestCa;
use crate::tls::{self, Credentials, CredentialsRx, Purpose};
use crate::trace::exporter::{Exporter, ExporterTask};
use crate::trace::{self, Tracer};
use crate::transport::header::{self, TransportHeader};
use crate::transport::listen::{self, AcceptedConnection, Listener};
use crate::transport::{Io, SocketOptions};
use crate::watch;
use crate::worker::{self, Relief};

/// The port of direct connections, as in every pod.
pub(super) const INBOUND_PORT: u16 = 4143;
const OUTBOUND_PORT: u16 = 4140;

pub(super) const WEB: &str = "web.shop.serviceaccount.identity.linkerd.cluster.local";
pub(super) const CLIENT: &str = "client.shop.serviceaccount.identity.linkerd.cluster.local";

/// Longer than all timeouts of the proxy.
const TEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// The applications' address. The proxy refuses endpoints on loopback addresses.
pub(super) const POD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Runs a test in its own network namespace, with a clock that only `tokio::time::advance` moves.
pub(super) fn run(story: impl AsyncFn() + Sync) {
    thread::scope(|scope| {
        let ended = scope.spawn(|| match enter_network_namespace() {
            Ok(()) => block_on(story()),
            Err(error) => println!("skipped: no network namespace without root ({error})"),
        });
        ended.join().unwrap();
    });
}

/// Moves the calling thread to a new network namespace with the address [`POD`].
fn enter_network_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    for command in ["link set lo up", &format!("addr add {POD}/32 dev lo")] {
        let status = Command::new("ip")
            .args(command.split(' '))
            .status()
            .unwrap();
        assert!(status.success(), "ip {command}");
    }
    Ok(())
}

fn block_on(story: impl Future<Output = ()>) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        // Sockets are polled in every turn, so that awaited data arrives before a test times out.
        .event_interval(1)
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        let _still = Still::new();
        let ended = timeout(TEST_TIMEOUT, story).await;
        ended.expect("something is waited for that never comes");
    });
}

/// Prevents the paused clock from advancing by itself, by blocking a thread of the runtime. The
/// block times out, so that a hanging test ends.
struct Still {
    _release: Sender<()>,
}

const TIMEOUT: Duration = Duration::from_secs(60);

impl Still {
    fn new() -> Self {
        let (release, released) = channel();
        tokio::task::spawn_blocking(move || released.recv_timeout(TIMEOUT));
        Self { _release: release }
    }
}

/// Advances time until the future completes.
///
/// The kernel's timers, such as the one of a delayed acknowledgement, run in real time, which the
/// proxy's time must not outrun: its first ten seconds take at least 0.1 s.
pub(super) async fn while_time_passes<T>(waiting: impl Future<Output = T>) -> T {
    tokio::pin!(waiting);
    let mut steps = 0;
    loop {
        tokio::select! {
            biased;
            done = &mut waiting => return done,
            () = settle() => advance(Duration::from_millis(100)).await,
        }
        steps += 1;
        if steps <= 100 {
            #[expect(
                clippy::disallowed_methods,
                reason = "no event tells of the kernel's timers"
            )]
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Yields until all work is done that needs no time to pass.
pub(super) async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

/// The state shared by a test's proxies.
pub(super) struct World {
    control_plane: SocketAddr,
    ca: TestCa,
    /// The profiles of the control plane that responds by itself, by address or name.
    profiles: Rc<RefCell<HashMap<String, Profile>>>,
    /// Its policy of every port.
    default_policy: Rc<Cell<DefaultPolicy>>,
    /// The port without protocol detection, if there is one.
    opaque_port: Rc<Cell<Option<u32>>>,
}

impl World {
    /// With a control plane whose responses the test sends.
    pub(super) async fn scripted() -> (Self, ControlPlane) {
        let control = ControlPlane::start().await;
        let world = Self {
            control_plane: control.addr,
            ca: TestCa::new(),
            profiles: Rc::default(),
            default_policy: Rc::new(Cell::new(DefaultPolicy::AllUnauthenticated)),
            opaque_port: Rc::default(),
        };
        (world, control)
    }

    /// With a control plane that has no services, only pods.
    pub(super) async fn new() -> Self {
        let (world, mut control) = Self::scripted().await;
        let profiles = world.profiles.clone();
        let default_policy = world.default_policy.clone();
        let opaque_port = world.opaque_port.clone();
        spawn_local(async move {
            let (mut streams, mut inbound) = (Vec::new(), Vec::new());
            loop {
                tokio::select! {
                    Some(call) = control.outbound.recv() => call.refuse(Status::not_found("no service")),
                    Some(call) = control.inbound.recv() => {
                        let is_opaque = opaque_port.get() == Some(call.request.port);
                        let stream = call.stream();
                        let policy = of_default(default_policy.get(), is_opaque);
                        stream.send(Ok(policy)).unwrap();
                        inbound.push(stream);
                    }
                    Some(call) = control.profiles.recv() => {
                        let profile = profiles.borrow().get(&call.request.path).cloned();
                        let profile = profile.unwrap_or_default();
                        let stream = call.stream();
                        stream.send(Ok(mesh_api::destination::profile_to_proto(&profile))).unwrap();
                        streams.push(stream);
                    }
                }
            }
        });
        world
    }

    pub(super) fn credentials(&self, name: &str) -> Arc<Credentials> {
        self.ca.credentials(name)
    }

    /// Accepts a proxy's TLS connection without a proxy.
    pub(super) async fn terminated(&self, tcp: TcpStream) -> Io {
        let credentials = self.credentials(WEB);
        let shaken = tls::server::terminate(Io::plain(tcp), &credentials, false, Purpose::Traffic);
        shaken.await.unwrap().0
    }

    /// Connects to a proxy without a proxy.
    pub(super) async fn connected(&self, tcp: TcpStream) -> Io {
        self.connected_as(CLIENT, tcp).await
    }

    /// The same for a client with another name.
    pub(super) async fn connected_as(&self, name: &str, tcp: TcpStream) -> Io {
        self.connected_to(WEB, name, tcp).await
    }

    /// The same for a proxy with another name.
    pub(super) async fn connected_to(&self, server: &str, name: &str, tcp: TcpStream) -> Io {
        let (credentials, peer) = (self.credentials(name), peer(server));
        let io = Io::plain(tcp);
        let shaken = tls::client::connect(io, &credentials, &peer, false, Purpose::Traffic);
        shaken.await.unwrap().0
    }

    /// Connects to a proxy's own inbound port and declares the target and the session protocol.
    pub(super) async fn connected_directly(&self, tcp: TcpStream, header: &TransportHeader) -> Io {
        self.connected_directly_as(CLIENT, tcp, header).await
    }

    /// The same for a client with another name.
    pub(super) async fn connected_directly_as(
        &self,
        name: &str,
        tcp: TcpStream,
        header: &TransportHeader,
    ) -> Io {
        let (credentials, peer) = (self.credentials(name), peer(WEB));
        let io = Io::plain(tcp);
        let shaken = tls::client::connect(io, &credentials, &peer, true, Purpose::Traffic);
        let mut io = shaken.await.unwrap().0;
        header::write(&mut io, header).await.unwrap();
        io
    }

    /// Sets the profile of an address or a name.
    pub(super) fn knows(&self, destination: impl ToString, profile: Profile) {
        let mut profiles = self.profiles.borrow_mut();
        profiles.insert(destination.to_string(), profile);
    }

    pub(super) fn proxy(&self, name: &str) -> Proxy {
        self.proxy_with(name, &[])
    }

    pub(super) fn proxy_with(&self, name: &str, changes: &[(&str, Option<&str>)]) -> Proxy {
        // The policy service responds in the same way on a cluster.
        for change in changes {
            match *change {
                ("INBOUND_DEFAULT_POLICY", Some(policy)) => {
                    self.default_policy.set(policy.parse().unwrap());
                }
                ("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", Some(port)) => {
                    self.opaque_port.set(Some(port.parse().unwrap()));
                }
                _ => {}
            }
        }
        Proxy::new(self.control_plane, Some(self.credentials(name)), changes)
    }

    /// A proxy that has no certificate yet.
    pub(super) fn uncertified_proxy(&self) -> Proxy {
        Proxy::new(self.control_plane, None, &[])
    }

    /// A proxy for an application, which other proxies connect to instead of the pod's address.
    pub(super) async fn meshed(&self, app: SocketAddr) -> (Proxy, SocketAddr) {
        let proxy = self.proxy(WEB);
        let addr = proxy.listen(app).await;
        self.knows(addr, pod(addr, ProtocolHint::Http2, None));
        (proxy, addr)
    }

    /// The same for connections with a transport header.
    pub(super) async fn meshed_directly(&self, app: SocketAddr, hint: ProtocolHint) -> Proxy {
        let proxy = self.proxy(WEB);
        let port = proxy.listen((app.ip(), INBOUND_PORT).into()).await.port();
        self.knows(app, pod(app, hint, Some(port)));
        proxy
    }
}

/// A policy that allows all clients.
pub(super) fn all_unauthenticated() -> mesh_api::proto::inbound::Server {
    of_default(DefaultPolicy::AllUnauthenticated, false)
}

fn of_default(policy: DefaultPolicy, is_opaque: bool) -> mesh_api::proto::inbound::Server {
    mesh_api::inbound::to_proto(&policy.server_policy(&[], Duration::from_secs(10), is_opaque))
}

/// The endpoint of a pod with a proxy.
pub(super) fn pod(
    addr: SocketAddr,
    hint: ProtocolHint,
    opaque_transport_port: Option<u16>,
) -> Profile {
    let endpoint = Endpoint {
        tls: Some(peer(WEB)),
        hint,
        opaque_transport_port,
        ..Endpoint::plain(addr)
    };
    Profile {
        endpoint: Some(endpoint),
        ..Profile::default()
    }
}

fn peer(name: &str) -> TlsPeer {
    TlsPeer {
        id: Identity::parse(name).unwrap(),
        server_name: name.into(),
    }
}

/// One proxy with a single data thread.
pub(super) struct Proxy {
    pub(super) context: Rc<ProxyContext>,
    pub(super) registry: Registry,
    pub(super) certified: watch::Sender<Option<Arc<Credentials>>>,
    inbound: Rc<Inbound>,
    outbound: Rc<Outbound>,
    drain: RefCell<Option<Drain>>,
    exporter: RefCell<Option<ExporterTask>>,
}

impl Proxy {
    fn new(
        control_plane: SocketAddr,
        credentials: Option<Arc<Credentials>>,
        changes: &[(&str, Option<&str>)],
    ) -> Self {
        let defaults = [("INBOUND_DEFAULT_POLICY", Some("all-unauthenticated"))];
        let changes = [&defaults, changes].concat();
        let config = Arc::new(with_control_plane(control_plane, &changes));
        let registry = Registry::new();
        let (certified, credentials) = watch::channel(credentials);
        let (drain, watch) = drain::channel();
        let mut shared = ProcessState::new(&config, Arc::new(Tap::new(&registry)));
        let tracing = tracing(&config, &credentials, &registry);
        let (tracer, exporter) = tracing.unzip();
        shared.tracer = tracer;
        let exemplars = trace::exemplars(config.trace.as_ref());
        let durations = ResponseDurations::new(config.admin.response_durations);
        let shared = Arc::new(shared);
        let context = Rc::new(ProxyContext {
            families: Arc::new(Families::new(&registry, exemplars, durations)),
            tasks: shared.tasks.clone(),
            shared,
            scratch: Rc::default(),
            probe_listener: None,
            drain: watch,
            discovery: discovery(&config, &registry),
            config,
            credentials,
        });
        let outbound = Rc::new(Outbound::new(context.clone()));
        Self {
            inbound: Rc::new(Inbound::new(context.clone()).with_gateway(&outbound)),
            outbound,
            context,
            registry,
            certified,
            drain: RefCell::new(Some(drain)),
            exporter: RefCell::new(exporter),
        }
    }

    /// A connection of the application to `dst`.
    pub(super) async fn outbound(&self, dst: SocketAddr) -> TcpStream {
        let (ours, theirs) = sockets().await;
        let outbound = self.outbound.clone();
        let accepted = accepted(theirs, OUTBOUND_PORT, dst);
        self.context.tasks.spawn_local(outbound.serve(accepted));
        ours
    }

    /// An external client's connection to `dst`, an address of this pod.
    pub(super) async fn inbound(&self, dst: SocketAddr) -> TcpStream {
        let (ours, theirs) = sockets().await;
        let inbound = self.inbound.clone();
        let accepted = accepted(theirs, INBOUND_PORT, dst);
        self.context.tasks.spawn_local(inbound.serve(accepted));
        ours
    }

    /// Serves connections to the returned address as inbound connections to `dst`.
    pub(super) async fn listen(&self, dst: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind((POD, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (inbound, tasks) = (self.inbound.clone(), self.context.tasks.clone());
        spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let accepted = accepted(tcp, INBOUND_PORT, dst);
                tasks.spawn_local(inbound.clone().serve(accepted));
            }
        });
        addr
    }

    /// Accepts connections of one direction as a data thread does, above their limit, which must be
    /// 1, for as long as the second value is kept.
    pub(super) async fn accept_above_limit(
        &self,
        direction: Direction,
    ) -> (SocketAddr, impl Sized) {
        let limits = &self.context.shared.limits;
        let limit = match direction {
            Direction::Inbound => &limits.inbound_connections,
            Direction::Outbound => &limits.outbound_connections,
        };
        let held = limit.try_acquire(&limits.memory, &self.context.families.refused, || {});
        assert!(held.is_some());
        let socket = listen::bind((POD, 0).into(), 16, 1).unwrap().remove(0);
        let addr = socket.local_addr().unwrap();
        let listener = Listener::new(socket, SocketOptions::default()).unwrap();
        let relief = Relief::new(self.inbound.clone(), self.outbound.clone());
        let serve = |_accepted| async { panic!("a connection above the limit is served") };
        spawn_local(worker::accept(
            listener,
            self.context.clone(),
            limit.clone(),
            Rc::new(relief),
            serve,
        ));
        (addr, held)
    }

    /// Serves an admin interface and returns its address.
    pub(super) async fn admin(&self, admin: mesh_runtime::admin::Admin) -> SocketAddr {
        let listener = TcpListener::bind((POD, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        spawn_local(crate::admin::serve(
            listener.into(),
            admin,
            self.inbound.clone(),
        ));
        addr
    }

    /// Serves a tap service and returns its address.
    pub(super) async fn tap(&self, observer: &str) -> SocketAddr {
        let listener = TcpListener::bind((POD, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let observer = Identity::parse(observer).unwrap();
        let tap = self.context.shared.tap.clone();
        let server = TapServer::new(tap, observer, self.inbound.clone());
        spawn_local(tap_server::serve(listener.into(), Rc::new(server)));
        addr
    }

    /// Drains the proxy, as on a signal. Completes when the last connection has closed.
    pub(super) fn drain(&self) -> impl Future<Output = ()> + 'static {
        let drain = self.drain.borrow_mut().take().unwrap();
        let tasks = self.context.tasks.clone();
        let draining = spawn_local(drain.drain(TEST_TIMEOUT));
        async move {
            tasks.close();
            tasks.wait().await;
            draining.abort();
        }
    }

    /// Exports the queued spans, as a proxy that has drained. `grace` is what remains of the grace
    /// period.
    pub(super) fn flush_spans(&self, grace: Duration) -> impl Future<Output = ()> + 'static {
        let exporter = self.exporter.borrow_mut().take().unwrap();
        exporter.flush(Instant::now() + grace)
    }

    pub(super) fn enforcers(&self) -> usize {
        self.inbound.enforcers()
    }

    /// Evicts idle values on a timer, as on a data thread.
    pub(super) fn evict_idle(&self) {
        spawn_local(self.inbound.clone().evict_idle());
        spawn_local(self.outbound.clone().evict_idle());
    }

    /// The number of HTTP targets, and of balancers of opaque connections.
    pub(super) fn outbound_cached(&self) -> (usize, usize) {
        self.outbound.cached()
    }

    /// Makes `count` enforcers of clients with open connections, without the connections.
    pub(super) fn hold_enforcers(&self, count: usize) -> Vec<impl Sized + use<>> {
        self.inbound.hold_enforcers(count)
    }

    pub(super) fn make_app_clients(&self, count: u16) {
        self.inbound.make_app_clients(count);
    }

    pub(super) fn app_clients(&self) -> usize {
        self.inbound.app_clients()
    }

    /// Whether one more connection is accepted within `limit`. If memory is short, it is freed.
    pub(super) fn accepts(&self, limit: impl Fn(&Limits) -> &ConnectionLimit) -> bool {
        let relief = Relief::new(self.inbound.clone(), self.outbound.clone());
        let limits = &self.context.shared.limits;
        let refused = &self.context.families.refused;
        let permit = limit(limits).try_acquire(&limits.memory, refused, || relief.evict_unused());
        permit.is_some()
    }

    /// The number of names of inbound requests whose profiles are looked up.
    pub(super) fn profiles(&self) -> usize {
        self.inbound.profiles()
    }

    /// The value of the metric whose line begins with `begins`.
    pub(super) fn metric(&self, begins: &str) -> u64 {
        let text = String::from_utf8(self.registry.encode()).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(begins));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }
}

/// Starts to export spans if the configuration has a collector.
fn tracing(
    config: &Config,
    credentials: &CredentialsRx,
    registry: &Registry,
) -> Option<(Tracer, ExporterTask)> {
    let trace = config.trace.as_ref()?;
    let resolver = Resolver::from_system(&config.control, registry).unwrap();
    let trust = Trust::Certified(credentials.clone());
    let client = Client::new(
        "trace_collector",
        &trace.collector,
        &config.control,
        trust,
        &resolver,
        registry,
    );
    let (tracer, exporter) = Exporter::new(trace, &config.control, client, registry);
    let (supervisor, _monitor) = task::supervisor();
    Some((tracer, exporter.start(&supervisor)))
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((POD, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::join!(TcpStream::connect(addr), listener.accept());
    (ours.unwrap(), theirs.unwrap().0)
}

fn accepted(tcp: TcpStream, port: u16, original_dst: SocketAddr) -> AcceptedConnection {
    let peer = tcp.peer_addr().unwrap();
    AcceptedConnection::new(tcp, peer, (POD, port).into(), original_dst)
}

/// The message that adds these endpoints.
pub(super) fn add(endpoints: &[Endpoint]) -> mesh_api::proto::destination::Update {
    mesh_api::destination::update_to_proto(&EndpointUpdate::Add {
        endpoints: endpoints.to_vec(),
        set_labels: Default::default(),
    })
}

pub(super) fn none(exists: bool) -> mesh_api::proto::destination::Update {
    mesh_api::destination::update_to_proto(&EndpointUpdate::Empty { exists })
}
