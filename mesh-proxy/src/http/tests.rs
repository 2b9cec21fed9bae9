//! The HTTP engine between a client and a server that send raw bytes, with one and two hops: each
//! must receive what the other sent, except for hop-by-hop headers. Real sockets, no TLS.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Version;
use mesh_core::endpoint::Http2Params;
use mesh_runtime::drain;
use mesh_runtime::metrics::{Exemplars, Registry};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::client::{Client, ClientConfig, Dial};
use super::refusal_counter::RefusalCounter;
use super::server::Server;
use super::synthetic_response::{ErrorDetail, RequestContext};
use super::*;
use crate::config::{
    DEFAULT_HALF_CLOSED_IDLE, DEFAULT_STREAM_WINDOW, Http1Pool, Http2Server, HttpLimits,
};
use crate::error::DialError;
use crate::telemetry::Families;
use crate::telemetry::http::ResponseDurations;
use crate::telemetry::labels::Direction;
use crate::transport::Io;

mod hostile;
mod http1;
mod http2;
mod local_reply;

/// How long hops keep idle connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The default limits, except for those that no test would wait for.
const LIMITS: HttpLimits = HttpLimits {
    body_time: Some(Duration::from_secs(5)),
    ..HttpLimits::DEFAULT
};

const RECEIVE_BUFFER: usize = 512 * 1024;

/// Connects without TLS.
struct PlainDial(SocketAddr);

impl Dial for PlainDial {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let tcp = TcpStream::connect(self.0).await;
        let tcp = tcp.map_err(|_gone| DialError::Closed)?;
        // As on a connection that has carried much: a read finds as much as it has room for.
        let _unlimited = SockRef::from(&tcp).set_recv_buffer_size(RECEIVE_BUFFER);
        Ok(Io::plain(tcp))
    }
}

/// Forwards every request to one server, without what `inbound` and `outbound` add.
struct Forward {
    client: Client<PlainDial>,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Only,
    /// The first of two hops: upgrades HTTP/1 to HTTP/2.
    First,
    /// The second of two hops: downgrades it to HTTP/1.
    Second,
}

impl HttpHandler for Forward {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        let is_carried = self.role == Role::Second;
        let downgraded = is_carried.then(|| orig_proto::downgrade(request)).flatten();
        let request_context = RequestContext::new(request, downgraded);
        uri::set_authority(request, Some("192.0.2.1:80".parse().unwrap()));
        let is_upgraded = self.role == Role::First && orig_proto::is_upgradable(request);
        let upgraded_from = is_upgraded.then(|| orig_proto::upgrade(request));
        match self.client.send(request).await {
            Ok(mut response) => {
                if let Some(version) = upgraded_from {
                    orig_proto::downgrade_response(&mut response, version);
                }
                if let Some(version) = downgraded {
                    orig_proto::upgrade_response(&mut response, version);
                }
                Ok(response)
            }
            Err(error) => {
                let detail = ErrorDetail {
                    informational: false,
                };
                synthetic_response::error(request_context, &error.into(), detail)
            }
        }
    }
}

fn client_to(server: SocketAddr, limits: HttpLimits, http2: Http2Params) -> Client<PlainDial> {
    Client::new(PlainDial(server), &params(limits, http2))
}

fn params(limits: HttpLimits, http2: Http2Params) -> ClientConfig {
    let pool = Http1Pool {
        max_idle: 10,
        idle_timeout: IDLE_TIMEOUT,
        limits,
    };
    ClientConfig::new(&pool, http2)
}

/// Starts a hop in front of `server` and returns its address. Clients use `protocol`, except of the
/// second hop.
async fn hop(
    server: SocketAddr,
    role: Role,
    protocol: Protocol,
    drain: &drain::Watch,
) -> SocketAddr {
    let registry = Registry::new();
    hop_with(LIMITS, &registry, server, role, protocol, drain).await
}

/// Starts the only hop in front of `server`, with these limits.
async fn limited_hop(
    limits: HttpLimits,
    registry: &Registry,
    server: SocketAddr,
    protocol: Protocol,
    drain: &drain::Watch,
) -> SocketAddr {
    hop_with(limits, registry, server, Role::Only, protocol, drain).await
}

fn engine(drain: drain::Watch, limits: HttpLimits, registry: &Registry) -> Server {
    let families = Families::new(registry, Exemplars::Off, ResponseDurations::Off);
    Server {
        http2: Http2Server {
            stream_window: DEFAULT_STREAM_WINDOW,
            connection_window: 1 << 20,
            adaptive_window: false,
            keep_alive: None,
            max_concurrent_streams: Some(200),
            max_frame_size: None,
            max_header_list_size: 1 << 18,
            max_pending_accept_reset_streams: None,
            max_send_buf_size: None,
        },
        limits,
        refusals: RefusalCounter::new(Direction::Inbound, families.refused),
        scratch: Rc::default(),
        half_closed_idle: DEFAULT_HALF_CLOSED_IDLE,
        drain,
    }
}

async fn hop_with(
    limits: HttpLimits,
    registry: &Registry,
    server: SocketAddr,
    role: Role,
    protocol: Protocol,
    drain: &drain::Watch,
) -> SocketAddr {
    let handler = Rc::new(Forward {
        client: client_to(server, limits, Http2Params::default()),
        role,
    });
    let engine = Rc::new(engine(drain.clone(), limits, registry));
    let (listener, addr) = listen().await;
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (engine, handler) = (engine.clone(), handler.clone());
            tokio::task::spawn_local(async move {
                let protocol = match role {
                    Role::Second => detect(&tcp).await,
                    Role::Only | Role::First => protocol,
                };
                let _ended = engine.serve(Io::plain(tcp), protocol, handler).await;
            });
        }
    });
    addr
}

/// Detects what the first hop sends: upgrade requests as HTTP/1, everything else as HTTP/2.
async fn detect(tcp: &TcpStream) -> Protocol {
    let mut first = [0; 3];
    tcp.peek(&mut first).await.unwrap();
    if &first == b"PRI" {
        Protocol::Http2
    } else {
        Protocol::Http1
    }
}

/// Starts a chain of one or two hops in front of `server` and returns its address.
async fn chain(hops: usize, server: SocketAddr, drain: &drain::Watch) -> SocketAddr {
    if hops == 1 {
        return hop(server, Role::Only, Protocol::Http1, drain).await;
    }
    let second = hop(server, Role::Second, Protocol::Http2, drain).await;
    hop(second, Role::First, Protocol::Http1, drain).await
}

/// Connects to a chain of hops in front of `server`.
async fn connect(hops: usize, server: SocketAddr, drain: &drain::Watch) -> TcpStream {
    TcpStream::connect(chain(hops, server, drain).await)
        .await
        .unwrap()
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}

async fn send(tcp: &mut TcpStream, text: &str) {
    tcp.write_all(text.as_bytes()).await.unwrap();
}

/// Starts a server that sends `response` whenever it has read up to `until`, and then closes the
/// connection if `close`. Returns its address and the requests it reads.
async fn scripted(
    until: &'static str,
    response: &'static str,
    close: bool,
) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (listener, addr) = listen().await;
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::task::spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::task::spawn_local(async move {
                while let Some(request) = read_until(&mut tcp, until).await {
                    sender.send(request).unwrap();
                    send(&mut tcp, response).await;
                    if close {
                        return;
                    }
                }
            });
        }
    });
    (addr, requests)
}

fn metrics(registry: &Registry) -> String {
    String::from_utf8(registry.encode()).unwrap()
}

/// Reads up to and including `until`. Returns `None` if the connection ends before the first byte.
async fn read_until(tcp: &mut TcpStream, until: &str) -> Option<String> {
    let mut text = String::new();
    while !text.ends_with(until) {
        let mut byte = [0];
        match tcp.read(&mut byte).await {
            Ok(1) => text.push(char::from(byte[0])),
            _ if text.is_empty() => return None,
            end => panic!("{end:?} after {text:?}"),
        }
    }
    Some(text)
}

/// Runs a test with one and with two hops, each in its own runtime.
fn run_with_hops(test: impl AsyncFn(usize, drain::Watch)) {
    for hops in [1, 2] {
        run(async |drain| test(hops, drain).await);
    }
}

/// Runs a test in its own runtime, with a time limit.
fn run(test: impl AsyncFnOnce(drain::Watch)) {
    let (_drain, watch) = drain::channel();
    run_local(test(watch));
}

fn run_local(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(20), test).await };
    LocalSet::new()
        .block_on(&runtime, limited)
        .expect("the exchange must complete within the time limit");
}

/// Sends `request` through one and two hops to a server that sends `response` once it has read the
/// request, and compares what the server and the client receive.
fn check_exchange(
    request: &'static str,
    server_receives: &'static str,
    response: &'static str,
    client_receives: &'static str,
) {
    let body = server_receives.split_once(END).unwrap().1;
    let until = if body.is_empty() { END } else { body };
    run_with_hops(async |hops, drain| {
        let (server, mut requests) = scripted(until, response, true).await;
        let mut client = connect(hops, server, &drain).await;
        send(&mut client, request).await;
        client.shutdown().await.unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, client_receives, "{hops} hops: {request:?}");
        let received = requests.recv().await.unwrap();
        assert_eq!(received, server_receives, "{hops} hops");
    });
}

/// Checks that neither message changes.
fn check_unchanged(request: &'static str, response: &'static str) {
    check_exchange(request, request, response, response);
}

const END: &str = "\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn request_target_forms_are_preserved() {
    for request in [
        "GET /a?b=c HTTP/1.1\r\nhost: web\r\n\r\n",
        "GET http://other/a HTTP/1.1\r\nhost: other\r\n\r\n",
        "GET /a HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: web\r\n\r\n",
    ] {
        check_unchanged(request, OK);
    }
}

#[test]
fn http10_version_is_preserved() {
    for request in [
        "GET /a HTTP/1.0\r\n\r\n",
        "GET /a HTTP/1.0\r\nhost: web\r\n\r\n",
    ] {
        check_unchanged(request, "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok");
    }
}

#[test]
fn hop_by_hop_headers_are_not_forwarded() {
    check_exchange(
        "GET / HTTP/1.1\r\nhost: web\r\nconnection: close, x-hop\r\nkeep-alive: timeout=5\r\nproxy-connection: close\r\nx-hop: 1\r\nx-end: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: web\r\nx-end: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    );
    check_exchange(
        "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n\r\n",
        GET,
        OK,
        OK,
    );
    check_exchange(
        "GET / HTTP/1.1\r\nhost: web\r\nconnection: Upgrade\r\nupgrade: H2C\r\n\r\n",
        GET,
        OK,
        OK,
    );
}

#[test]
fn request_body_framing_is_preserved() {
    for request in [
        "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n\r\n",
        "DELETE / HTTP/1.1\r\nhost: web\r\n\r\n",
    ] {
        check_unchanged(request, OK);
    }
}

#[test]
fn response_body_framing_is_preserved_or_chunked() {
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for response in [
        CHUNKED,
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ] {
        check_unchanged(GET, response);
    }
    // The server ends the body by closing the connection. The client gets chunks instead, so that
    // it can distinguish the end from a failure.
    check_exchange(GET, GET, "HTTP/1.1 200 OK\r\n\r\nhello", CHUNKED);
}

#[test]
fn head_response_keeps_content_length_without_body() {
    check_unchanged(
        "HEAD / HTTP/1.1\r\nhost: web\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 55\r\n\r\n",
    );
}

#[test]
fn requests_with_mismatched_target_form_are_rejected() {
    for request in [
        "CONNECT /a HTTP/1.1\r\nhost: web\r\n\r\n",
        "GET web:80 HTTP/1.1\r\nhost: web\r\n\r\n",
    ] {
        run_with_hops(async |hops, drain| {
            let (server, _requests) = scripted(END, OK, true).await;
            let mut client = connect(hops, server, &drain).await;
            send(&mut client, request).await;
            let response = read_until(&mut client, END).await.unwrap();
            assert!(response.contains(" 400 "), "{request:?}: {response:?}");
        });
    }
}

/// Sends bytes in both directions: with the handshake, after it, and after the client has closed
/// its half.
fn check_tunnel(request: &'static str, server_receives: &'static str, response: &'static str) {
    run_with_hops(async |hops, drain| {
        let (listener, server) = listen().await;
        let mut client = connect(hops, server, &drain).await;
        send(&mut client, request).await;
        let mut server = accept(&listener).await;
        assert_eq!(read_until(&mut server, END).await.unwrap(), server_receives);
        send(&mut server, response).await;
        send(&mut server, "server first").await;
        let got = read_until(&mut client, "server first").await.unwrap();
        assert_eq!(got, format!("{response}server first"), "{hops} hops");
        send(&mut client, "ping").await;
        assert_eq!(read_until(&mut server, "ping").await.unwrap(), "ping");
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        send(&mut server, "after half-close").await;
        drop(server);
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "after half-close");
    });
}

#[test]
fn upgrade_request_becomes_tunnel() {
    check_tunnel(
        "GET /chat HTTP/1.1\r\nhost: web\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\norigin: http://web\r\nsec-websocket-protocol: a, b\r\nsec-websocket-extensions: c\r\nsec-websocket-extensions: d\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n",
        "GET /chat HTTP/1.1\r\nhost: web\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\norigin: http://web\r\nsec-websocket-protocol: a, b\r\nsec-websocket-extensions: c\r\nsec-websocket-extensions: d\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nsec-websocket-accept: y\r\nsec-websocket-protocol: b\r\nsec-websocket-extensions: d\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    );
}

#[test]
fn connect_request_becomes_tunnel() {
    check_tunnel(
        "CONNECT web:443 HTTP/1.1\r\nhost: web:443\r\n\r\n",
        "CONNECT web:443 HTTP/1.1\r\nhost: web:443\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    );
}

/// Its framing fields have no meaning: no body precedes the bytes of the tunnel.
#[test]
fn accepted_connect_has_no_framing_fields() {
    run_with_hops(async |hops, drain| {
        let (listener, server) = listen().await;
        let mut client = connect(hops, server, &drain).await;
        send(
            &mut client,
            "CONNECT web:443 HTTP/1.1\r\nhost: web:443\r\n\r\n",
        )
        .await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        let fields = "content-length: 5\r\ntransfer-encoding: chunked\r\nx: 1";
        send(
            &mut server,
            &format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nserver first"),
        )
        .await;
        let received = read_until(&mut client, "server first").await.unwrap();
        let expected = "HTTP/1.1 200 OK\r\nx: 1\r\n\r\nserver first";
        assert_eq!(received, expected, "{hops} hops");
    });
}

#[test]
fn upgrade_of_http10_is_ignored() {
    check_exchange(
        "GET / HTTP/1.0\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "GET / HTTP/1.0\r\nhost: web\r\n\r\n",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    );
}

#[test]
fn connection_is_kept_for_pipelined_requests() {
    run_with_hops(async |hops, drain| {
        let (server, mut requests) = scripted(END, OK, false).await;
        let mut client = connect(hops, server, &drain).await;
        let pipelined = "GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n";
        send(&mut client, pipelined).await;
        let both = format!("{OK}{OK}");
        assert_eq!(read_until(&mut client, &both).await.unwrap(), both);
        assert!(requests.recv().await.unwrap().starts_with("GET /1 "));
        assert!(requests.recv().await.unwrap().starts_with("GET /2 "));
    });
}

#[test]
fn connections_closed_by_server_are_replaced_transparently() {
    run(async |drain| {
        let (server, _requests) = scripted(END, OK, true).await;
        let mut client = connect(1, server, &drain).await;
        for _ in 0..200 {
            send(&mut client, GET).await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
    });
}

#[test]
fn unreachable_server_gives_502_and_closes() {
    run_with_hops(async |hops, drain| {
        let (closed, server) = listen().await;
        drop(closed);
        let mut client = connect(hops, server, &drain).await;
        send(&mut client, GET).await;
        let response = read_until(&mut client, END).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
        assert!(response.contains("content-length: 0\r\n"), "{response}");
        // An upgraded request shares its connection, so only the hop that synthesized the error
        // closes it.
        let closes = response.contains("connection: close\r\n");
        assert_eq!(closes, hops == 1, "{response}");
    });
}

#[test]
fn drain_closes_idle_connections_and_completes_requests() {
    let (drain, watch) = drain::channel();
    let test = async move {
        let (listener, server) = listen().await;
        let proxy = chain(2, server, &watch).await;
        let mut idle = TcpStream::connect(proxy).await.unwrap();
        let mut busy = TcpStream::connect(proxy).await.unwrap();
        send(&mut busy, GET).await;
        let mut app = accept(&listener).await;
        read_until(&mut app, END).await.unwrap();
        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        send(&mut app, OK).await;
        let response = read_until(&mut busy, "ok").await.unwrap();
        assert!(response.contains("connection: close\r\n"), "{response}");
        assert_eq!(busy.read(&mut [0]).await.unwrap(), 0);
    };
    run_local(test);
}

#[test]
fn http_versions_are_ordered() {
    assert!(Version::HTTP_10 < Version::HTTP_11 && Version::HTTP_11 < Version::HTTP_2);
}
