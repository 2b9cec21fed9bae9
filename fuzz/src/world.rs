//! What a target needs around the code under test: a runtime, sockets without a network, and the
//! inbound side of a data thread as the proxy builds it.
//!
//! Everything is made once per thread and used for all inputs; what an input leaves behind ends
//! with the `LocalSet` it ran in.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mesh_proxy::config::Config;
use mesh_proxy::control::dns::Resolver;
use mesh_proxy::control::{Client, Trust};
use mesh_proxy::discovery::Discovery;
use mesh_proxy::http::server::Server;
use mesh_proxy::inbound::Inbound;
use mesh_proxy::telemetry::Families;
use mesh_proxy::telemetry::labels::Direction;
use mesh_proxy::transport::{Io, Scratch};
use mesh_proxy::worker::{ProcessState, Worker};
use mesh_runtime::drain::{self, Drain};
use mesh_runtime::metrics::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{LocalSet, yield_now};
use tokio::time::timeout;

use crate::input::pieces;
use crate::tls;

thread_local! {
    static RUNTIME: Runtime = runtime();
    static SIDE: Side = Side::new();
}

/// Both ends of every connection of an input are in this thread and end by themselves, so whoever
/// waits as long waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Streams that an HTTP/2 client may have open: few, so that an input can have more.
pub(crate) const MAX_STREAMS: usize = 8;
const MAX_STREAMS_TEXT: &str = "8";

/// What a data thread owns, and what keeps it alive.
struct Side {
    worker: Rc<Worker>,
    _drain: Drain,
    /// Discovery's tasks are spawned on it and never run: the first connection waits a second for a
    /// policy, the default one stays in force, and nothing looks for a control plane.
    _control: Runtime,
}

/// Runs `story` to its end. What it has spawned ends with it.
pub(crate) fn run<T>(story: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| {
        let tasks = LocalSet::new();
        let story = async { timeout(PATIENCE, story).await };
        let ended = runtime.block_on(tasks.run_until(story));
        ended.expect("something is waited for that never comes")
    })
}

/// The inbound side of a data thread, with nothing in its pools.
pub(crate) fn inbound() -> Rc<Inbound> {
    Rc::new(Inbound::new(worker()))
}

/// The HTTP servers of its connections.
pub(crate) fn server() -> Server {
    Server::new(Direction::Inbound, &worker())
}

pub(crate) fn worker() -> Rc<Worker> {
    SIDE.with(|side| side.worker.clone())
}

pub(crate) fn scratch() -> Rc<Scratch> {
    SIDE.with(|side| side.worker.scratch.clone())
}

/// A connection of the proxy, and its other end.
pub(crate) fn pipe() -> (Io, TcpStream) {
    let (ours, theirs) = sockets();
    (Io::plain(ours), theirs)
}

/// Both ends of a connection. They are no TCP, although the type says so: the proxy does not look,
/// and no ports are used up.
pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let (one, other) = StdUnixStream::pair().expect("descriptors");
    let stream = |end: StdUnixStream| {
        end.set_nonblocking(true).expect("a socket");
        TcpStream::from_std(StdTcpStream::from(OwnedFd::from(end))).expect("a runtime")
    };
    (stream(one), stream(other))
}

/// Sends `bytes` cut as `how` says, and closes the sending half. The other side may have closed
/// before.
pub(crate) async fn send(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8], how: u8) {
    for piece in pieces(bytes, how) {
        if to.write_all(piece).await.is_err() {
            return;
        }
        // The other side has read it when it is our turn again.
        yield_now().await;
    }
    let _gone = to.shutdown().await;
}

/// Everything that comes until the other side closes, and whether it closed properly.
pub(crate) async fn receive(
    mut from: impl tokio::io::AsyncRead + Unpin,
) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let end = from.read_to_end(&mut bytes).await;
    (bytes, end.map(drop))
}

/// What is read at a time.
const READ: usize = 16 << 10;

/// Turns of the runtime in which nothing comes, after which nothing will: far more than a request
/// takes.
const QUIET_TURNS: usize = 50;

/// Waits until `begins` says so of what has come, or nothing more comes; sends `bytes` cut as `how`
/// says, and closes when the other side has nothing more to say. Returns what it said. Who closed
/// earlier would be told nothing.
pub(crate) async fn converse(
    tcp: TcpStream,
    bytes: &[u8],
    how: u8,
    begins: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let (mut reading, mut writing) = tcp.into_split();
    let got = RefCell::new(Vec::new());
    let read = async {
        let mut some = Vec::with_capacity(READ);
        while matches!(reading.read_buf(&mut some).await, Ok(1..)) {
            got.borrow_mut().append(&mut some);
        }
    };
    let write = async {
        quiet(&got, begins).await;
        for piece in pieces(bytes, how) {
            if writing.write_all(piece).await.is_err() {
                return;
            }
            yield_now().await;
        }
        quiet(&got, |_| false).await;
        let _gone = writing.shutdown().await;
    };
    join!(read, write);
    got.take()
}

/// Waits until nothing more comes, or until enough has come.
async fn quiet(got: &RefCell<Vec<u8>>, is_enough: impl Fn(&[u8]) -> bool) {
    let (mut turns, mut before) = (0, 0);
    while turns < QUIET_TURNS && !is_enough(&got.borrow()) {
        yield_now().await;
        let now = got.borrow().len();
        turns = if now == before { turns + 1 } else { 0 };
        before = now;
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        // Sockets are looked at in every turn, so that pieces are read as they were sent.
        .event_interval(1)
        .build()
        .expect("a runtime")
}

impl Side {
    fn new() -> Self {
        let control = runtime();
        let entered = control.enter();
        let config = Arc::new(config());
        let registry = Registry::new();
        let (_publish, credentials) = watch::channel(None);
        let resolver = Resolver::from_system(&config.control, &registry).expect("a resolver");
        let client = |name, addr| {
            let trust = Trust::Certified(credentials.clone());
            Client::new(name, addr, &config.control, trust, &resolver, &registry)
        };
        let discovery = Discovery::new(
            &config,
            client("destination", &config.discovery.destination),
            client("policy", &config.discovery.policy),
            control.handle().clone(),
        );
        let (drain, watch) = drain::channel();
        let shared = Arc::new(ProcessState::new(&config));
        let worker = Worker {
            families: Arc::new(Families::new(&registry)),
            tasks: shared.tasks.clone(),
            shared,
            scratch: Rc::default(),
            probe_listener: None,
            drain: watch,
            config,
            discovery,
            credentials,
        };
        drop(entered);
        Self {
            worker: Rc::new(worker),
            _drain: drain,
            _control: control,
        }
    }
}

/// As the injector sets the environment, with the defaults for everything that may be left out.
fn config() -> Config {
    let anchors = tls::anchors();
    let variables: HashMap<String, &str> = [
        ("IDENTITY_TRUST_ANCHORS", anchors.as_str()),
        (
            "IDENTITY_LOCAL_NAME",
            "web.shop.serviceaccount.identity.linkerd.cluster.local",
        ),
        ("IDENTITY_SVC_ADDR", "127.0.0.1:8080"),
        (
            "IDENTITY_SVC_NAME",
            "linkerd-identity.linkerd.serviceaccount.identity.linkerd.cluster.local",
        ),
        (
            "IDENTITY_TOKEN_FILE",
            "/var/run/secrets/tokens/linkerd-identity-token",
        ),
        ("DESTINATION_SVC_ADDR", "127.0.0.1:8086"),
        ("POLICY_SVC_ADDR", "127.0.0.1:8090"),
        ("POLICY_WORKLOAD", "{\"ns\":\"shop\",\"pod\":\"web\"}"),
        ("INBOUND_DEFAULT_POLICY", "all-unauthenticated"),
        (
            "INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS",
            MAX_STREAMS_TEXT,
        ),
    ]
    .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value))
    .into();
    Config::from_env(|name| variables.get(name).map(|value| (*value).to_owned()))
        .expect("a configuration")
}
