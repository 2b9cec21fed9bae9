//! The environment of the code under test: a runtime, sockets without a network, and the inbound
//! side of a data thread as the proxy creates it.
//!
//! Each thread creates it once and uses it for all inputs. Tasks of an input end with its
//! `LocalSet`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::time::Duration;

use mesh_proxy::Config;
use mesh_proxy::fuzzing::{Client, DataThread, Dial, HttpHandler, Inbound, Io, Protocol, Scratch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::join;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{LocalSet, yield_now};
use tokio::time::timeout;

use crate::input::pieces;
use crate::tls;

thread_local! {
    static RUNTIME: Runtime = runtime();
    static THREAD: DataThread = data_thread();
}

/// Client and server of every connection are in this thread, so an input that takes longer is
/// blocked.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Streams that an HTTP/2 client may open: few, so that an input can exceed the limit.
pub(crate) const MAX_STREAMS: usize = 8;
const MAX_STREAMS_TEXT: &str = "8";

/// Runs `scenario` to completion. Tasks that it has spawned end with it.
pub(crate) fn run<T>(scenario: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| {
        let tasks = LocalSet::new();
        let scenario = async { timeout(TIMEOUT, scenario).await };
        let outcome = runtime.block_on(tasks.run_until(scenario));
        outcome.expect("completion within the timeout")
    })
}

/// Returns the inbound side of a data thread with empty connection pools.
pub(crate) fn inbound() -> Rc<Inbound> {
    THREAD.with(|thread| thread.inbound())
}

/// Serves HTTP on an inbound connection until it ends.
pub(crate) async fn serve_http(
    io: Io,
    protocol: Protocol,
    handler: Rc<impl HttpHandler + 'static>,
) {
    let serving = THREAD.with(|thread| thread.serve_http(io, protocol, handler));
    serving.await;
}

pub(crate) fn client<D: Dial + 'static>(dial: D) -> Client<D> {
    THREAD.with(|thread| thread.client(dial))
}

pub(crate) fn scratch() -> Rc<Scratch> {
    THREAD.with(DataThread::scratch)
}

/// Returns a connection of the proxy and the socket of its peer.
pub(crate) fn pipe() -> (Io, TcpStream) {
    let (proxy, peer) = sockets();
    (Io::plain(proxy), peer)
}

/// Returns two connected sockets. They are Unix sockets despite their type, which the proxy does
/// not notice, and use no ports.
pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let (one, other) = StdUnixStream::pair().expect("descriptors");
    let stream = |end: StdUnixStream| {
        end.set_nonblocking(true).expect("a socket");
        TcpStream::from_std(StdTcpStream::from(OwnedFd::from(end))).expect("a runtime")
    };
    (stream(one), stream(other))
}

/// Sends `bytes` with this split and closes the direction. The peer may have closed before.
pub(crate) async fn send(mut to: impl tokio::io::AsyncWrite + Unpin, bytes: &[u8], split: u8) {
    for piece in pieces(bytes, split) {
        if to.write_all(piece).await.is_err() {
            return;
        }
        // The peer reads the piece before this task continues.
        yield_now().await;
    }
    let _error = to.shutdown().await;
}

/// Reads until the peer closes. Returns the bytes and how the connection closed.
pub(crate) async fn receive(
    mut from: impl tokio::io::AsyncRead + Unpin,
) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let end = from.read_to_end(&mut bytes).await;
    (bytes, end.map(drop))
}

const READ_SIZE: usize = 16 << 10;

/// A peer without input for this number of iterations of the runtime is idle. A request takes far
/// fewer.
const IDLE_ITERATIONS: usize = 50;

/// Waits until `can_start` holds for the received bytes or the peer is idle, sends `bytes` with
/// this split, and closes when the peer is idle again. Returns the received bytes.
pub(crate) async fn converse(
    tcp: TcpStream,
    bytes: &[u8],
    split: u8,
    can_start: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let (mut reading, mut writing) = tcp.into_split();
    let received = RefCell::new(Vec::new());
    let read = async {
        let mut buffer = Vec::with_capacity(READ_SIZE);
        while matches!(reading.read_buf(&mut buffer).await, Ok(1..)) {
            received.borrow_mut().append(&mut buffer);
        }
    };
    let write = async {
        wait_until_idle(&received, can_start).await;
        for piece in pieces(bytes, split) {
            if writing.write_all(piece).await.is_err() {
                return;
            }
            yield_now().await;
        }
        wait_until_idle(&received, |_| false).await;
        let _error = writing.shutdown().await;
    };
    join!(read, write);
    received.take()
}

/// Waits until the peer is idle or `is_enough` holds for the received bytes.
async fn wait_until_idle(received: &RefCell<Vec<u8>>, is_enough: impl Fn(&[u8]) -> bool) {
    let (mut idle, mut before) = (0, 0);
    while idle < IDLE_ITERATIONS && !is_enough(&received.borrow()) {
        yield_now().await;
        let now = received.borrow().len();
        idle = if now == before { idle + 1 } else { 0 };
        before = now;
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        // Polls sockets in every iteration, so that pieces are read separately.
        .event_interval(1)
        .build()
        .expect("a runtime")
}

fn data_thread() -> DataThread {
    DataThread::new(config(), runtime()).expect("a resolver")
}

/// Returns the configuration of an injected proxy, with defaults for all optional variables.
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
