//! The engine between a client and a server that speak raw bytes, with one hop and with two: what a
//! server sees and a client gets must be what the other sent, except for what belongs to a
//! connection. Real sockets, no TLS.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::Version;
use mesh_core::endpoint::Http2Params;
use mesh_runtime::drain;
use mesh_runtime::metrics::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::client::{Client, Dial, Params};
use super::orig_proto::Downgraded;
use super::respond::{Asker, Disclosure};
use super::server::Server;
use super::*;
use crate::config::{Http1Pool, HttpLimits};
use crate::error::DialError;
use crate::transport::Io;

mod hostile;
mod http1;
mod http2;

/// How long hops keep connections that nothing runs on.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// As they are, but for what no test would wait for.
const LIMITS: HttpLimits = HttpLimits {
    body_time: Some(Duration::from_secs(5)),
    ..HttpLimits::DEFAULT
};

/// Connects without TLS.
struct To(SocketAddr);

impl Dial for To {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let tcp = TcpStream::connect(self.0).await;
        Ok(Io::plain(tcp.map_err(|_gone| DialError::Closed)?))
    }
}

/// Sends every request to one server; what `inbound` and `outbound` do around it is not what these
/// tests are about.
struct Forward {
    client: Client<To>,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// The only hop.
    Only,
    /// Carries HTTP/1 as HTTP/2.
    First,
    /// Makes it HTTP/1 again.
    Second,
}

impl Handle for Forward {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        if self.role == Role::Second {
            orig_proto::downgrade(request);
        }
        let asker = Asker::of(request);
        let downgraded = request.extensions().get::<Downgraded>().copied();
        uri::set_authority(request, Some("192.0.2.1:80".parse().unwrap()));
        let carry = self.role == Role::First && orig_proto::may_upgrade(request);
        let carried = carry.then(|| orig_proto::upgrade(request));
        match self.client.send(request).await {
            Ok(mut response) => {
                if let Some(version) = carried {
                    orig_proto::restore(&mut response, version);
                }
                if let Some(Downgraded(version)) = downgraded {
                    orig_proto::mark(&mut response, version);
                }
                Ok(response)
            }
            Err(error) => {
                let disclosure = Disclosure {
                    informational: false,
                };
                respond::error(asker, &error.into(), disclosure)
            }
        }
    }
}

fn client_to(server: SocketAddr, limits: HttpLimits, http2: Http2Params) -> Client<To> {
    Client::new(To(server), &params(limits, http2))
}

fn params(limits: HttpLimits, http2: Http2Params) -> Params {
    let pool = Http1Pool {
        max_idle: 10,
        idle_timeout: IDLE_TIMEOUT,
        limits,
    };
    Params::new(&pool, http2)
}

/// Listens and forwards to `server`; returns where. The first hop is spoken to in `protocol`.
async fn hop(
    server: SocketAddr,
    role: Role,
    protocol: Protocol,
    drain: &drain::Watch,
) -> SocketAddr {
    let registry = Registry::new();
    hop_with(LIMITS, &registry, server, role, protocol, drain).await
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
    let engine = Rc::new(Server::for_tests(drain.clone(), limits, registry));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
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

/// What the first hop has begun: upgrades arrive as HTTP/1, everything else as HTTP/2.
async fn detect(tcp: &TcpStream) -> Protocol {
    let mut first = [0; 3];
    tcp.peek(&mut first).await.unwrap();
    if &first == b"PRI" {
        Protocol::Http2
    } else {
        Protocol::Http1
    }
}

/// A chain of one or two hops in front of `server`.
async fn chain(hops: usize, server: SocketAddr, drain: &drain::Watch) -> SocketAddr {
    if hops == 1 {
        return hop(server, Role::Only, Protocol::Http1, drain).await;
    }
    let second = hop(server, Role::Second, Protocol::Http2, drain).await;
    hop(second, Role::First, Protocol::Http1, drain).await
}

/// A server that answers each connection once `until` has arrived, and then closes it if `close`.
/// Returns what it read, by connection.
async fn scripted(
    until: &'static str,
    answer: &'static str,
    close: bool,
) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (seen, sees) = tokio::sync::mpsc::unbounded_channel();
    tokio::task::spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::task::spawn_local(async move {
                loop {
                    let Some(request) = read_until(&mut tcp, until).await else {
                        return;
                    };
                    seen.send(request).unwrap();
                    tcp.write_all(answer.as_bytes()).await.unwrap();
                    if close {
                        return;
                    }
                }
            });
        }
    });
    (addr, sees)
}

/// What arrives up to and with `until`, or nothing when the connection ends before anything came.
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

/// Sends `request` through one and two hops to a server that waits for `until` and says `answer`;
/// what the server sees and the client gets.
struct Case {
    request: &'static str,
    until: &'static str,
    sees: &'static str,
    answer: &'static str,
    gets: &'static str,
}

impl Case {
    async fn check(self) {
        for hops in [1, 2] {
            let case = &self;
            run(async |drain| {
                let (server, mut sees) = scripted(case.until, case.answer, true).await;
                let proxy = chain(hops, server, &drain).await;
                let mut client = TcpStream::connect(proxy).await.unwrap();
                client.write_all(case.request.as_bytes()).await.unwrap();
                client.shutdown().await.unwrap();
                let mut gets = String::new();
                client.read_to_string(&mut gets).await.unwrap();
                assert_eq!(gets, case.gets, "{hops} hops: {:?}", case.request);
                assert_eq!(sees.recv().await.unwrap(), case.sees, "{hops} hops");
            })
            .await;
        }
    }
}

/// Runs a test on a local task set, with a limit that only a hang can reach.
async fn run(test: impl AsyncFnOnce(drain::Watch)) {
    let (_drain, watch) = drain::channel();
    run_local(test(watch)).await;
}

async fn run_local(test: impl Future<Output = ()>) {
    let limited = tokio::time::timeout(Duration::from_secs(20), test);
    LocalSet::new()
        .run_until(limited)
        .await
        .expect("the exchange hangs");
}

const END: &str = "\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn forms_of_the_request_line_survive() {
    for request in [
        "GET /a?b=c HTTP/1.1\r\nhost: web\r\n\r\n",
        "GET http://other/a HTTP/1.1\r\nhost: other\r\n\r\n",
        "GET /a HTTP/1.1\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: web\r\n\r\n",
    ] {
        Case {
            request,
            until: END,
            sees: request,
            answer: OK,
            gets: OK,
        }
        .check()
        .await;
    }
}

#[tokio::test]
async fn http10_stays_http10() {
    for request in [
        "GET /a HTTP/1.0\r\n\r\n",
        "GET /a HTTP/1.0\r\nhost: web\r\n\r\n",
    ] {
        Case {
            request,
            until: END,
            sees: request,
            answer: "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
            gets: "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        }
        .check()
        .await;
    }
}

#[tokio::test]
async fn what_concerns_a_connection_stays_there() {
    Case {
        request: "GET / HTTP/1.1\r\nhost: web\r\nconnection: close, x-hop\r\nkeep-alive: timeout=5\r\nproxy-connection: close\r\nx-hop: 1\r\nx-end: 2\r\n\r\n",
        until: END,
        sees: "GET / HTTP/1.1\r\nhost: web\r\nx-end: 2\r\n\r\n",
        answer: "HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\ncontent-length: 2\r\n\r\nok",
        gets: "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
    }
    .check()
    .await;
    Case {
        request: "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAA\r\n\r\n",
        until: END,
        sees: "GET / HTTP/1.1\r\nhost: web\r\n\r\n",
        answer: OK,
        gets: OK,
    }
    .check()
    .await;
}

#[tokio::test]
async fn request_bodies_keep_their_framing() {
    for (request, until) in [
        (
            "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello",
            "hello",
        ),
        (
            "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "0\r\n\r\n",
        ),
        (
            "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n\r\n",
            END,
        ),
        ("DELETE / HTTP/1.1\r\nhost: web\r\n\r\n", END),
    ] {
        Case {
            request,
            until,
            sees: request,
            answer: OK,
            gets: OK,
        }
        .check()
        .await;
    }
}

#[tokio::test]
async fn response_bodies_keep_their_framing() {
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
    for (answer, gets) in [
        (CHUNKED, CHUNKED),
        // Ended by the server's closing: the client learns the end in a way that it can tell from a
        // failure.
        ("HTTP/1.1 200 OK\r\n\r\nhello", CHUNKED),
        (
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ),
    ] {
        Case {
            request: GET,
            until: END,
            sees: GET,
            answer,
            gets,
        }
        .check()
        .await;
    }
}

#[tokio::test]
async fn head_has_the_length_but_no_body() {
    let request = "HEAD / HTTP/1.1\r\nhost: web\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 55\r\n\r\n";
    Case {
        request,
        until: END,
        sees: request,
        answer,
        gets: answer,
    }
    .check()
    .await;
}

#[tokio::test]
async fn requests_that_mean_nothing_are_refused() {
    for request in [
        "CONNECT /a HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT web:80 HTTP/1.0\r\n\r\n",
        "GET web:80 HTTP/1.1\r\nhost: web\r\n\r\n",
    ] {
        for hops in [1, 2] {
            run(async |drain| {
                let (server, _sees) = scripted(END, OK, true).await;
                let proxy = chain(hops, server, &drain).await;
                let mut client = TcpStream::connect(proxy).await.unwrap();
                client.write_all(request.as_bytes()).await.unwrap();
                let answer = read_until(&mut client, END).await.unwrap();
                assert!(answer.contains(" 400 "), "{request:?}: {answer:?}");
            })
            .await;
        }
    }
}

/// Both ways, after the handshake, and with bytes that follow the handshake at once.
async fn check_tunnel(request: &'static str, sees: &'static str, answer: &'static str) {
    for hops in [1, 2] {
        run(async |drain| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server = listener.local_addr().unwrap();
            let proxy = chain(hops, server, &drain).await;
            let mut client = TcpStream::connect(proxy).await.unwrap();
            client.write_all(request.as_bytes()).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            assert_eq!(read_until(&mut server, END).await.unwrap(), sees);
            server.write_all(answer.as_bytes()).await.unwrap();
            server.write_all(b"server first").await.unwrap();
            let got = read_until(&mut client, "server first").await.unwrap();
            assert_eq!(got, format!("{answer}server first"), "{hops} hops");
            client.write_all(b"ping").await.unwrap();
            assert_eq!(read_until(&mut server, "ping").await.unwrap(), "ping");
            client.shutdown().await.unwrap();
            let mut rest = Vec::new();
            assert_eq!(server.read_to_end(&mut rest).await.unwrap(), 0);
            server.write_all(b"after half-close").await.unwrap();
            drop(server);
            let mut rest = String::new();
            client.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "after half-close");
        })
        .await;
    }
}

#[tokio::test]
async fn upgrades_become_tunnels() {
    check_tunnel(
        "GET /chat HTTP/1.1\r\nhost: web\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n\r\n",
        "GET /chat HTTP/1.1\r\nhost: web\r\nsec-websocket-key: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    )
    .await;
}

#[tokio::test]
async fn connect_becomes_a_tunnel() {
    check_tunnel(
        "CONNECT web:443 HTTP/1.1\r\nhost: web:443\r\n\r\n",
        "CONNECT web:443 HTTP/1.1\r\nhost: web:443\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    )
    .await;
}

#[tokio::test]
async fn connections_are_kept_and_requests_may_be_pipelined() {
    for hops in [1, 2] {
        run(async |drain| {
            let (server, mut sees) = scripted(END, OK, false).await;
            let proxy = chain(hops, server, &drain).await;
            let mut client = TcpStream::connect(proxy).await.unwrap();
            let requests = "GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n";
            client.write_all(requests.as_bytes()).await.unwrap();
            let both = read_until(
                &mut client,
                "okHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            )
            .await;
            assert_eq!(both.unwrap(), format!("{OK}{OK}"));
            assert!(sees.recv().await.unwrap().starts_with("GET /1 "));
            assert!(sees.recv().await.unwrap().starts_with("GET /2 "));
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_is_not_noticed() {
    run(async |drain| {
        let (server, _sees) = scripted(END, OK, true).await;
        let proxy = chain(1, server, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        for _ in 0..200 {
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_gives_502_and_closes() {
    for hops in [1, 2] {
        run(async |drain| {
            let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server = gone.local_addr().unwrap();
            drop(gone);
            let proxy = chain(hops, server, &drain).await;
            let mut client = TcpStream::connect(proxy).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            let answer = read_until(&mut client, END).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
            assert!(answer.contains("content-length: 0\r\n"), "{answer}");
            // A carried request shares its connection, so only the hop that made the error closes.
            assert_eq!(
                answer.contains("connection: close\r\n"),
                hops == 1,
                "{answer}"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn the_drain_closes_idle_connections_and_finishes_busy_ones() {
    let (drain, watch) = drain::channel();
    let test = async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let proxy = chain(2, server, &watch).await;
        let mut idle = TcpStream::connect(proxy).await.unwrap();
        let mut busy = TcpStream::connect(proxy).await.unwrap();
        busy.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let (mut app, _) = listener.accept().await.unwrap();
        read_until(&mut app, END).await.unwrap();
        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        app.write_all(OK.as_bytes()).await.unwrap();
        let answer = read_until(&mut busy, "ok").await.unwrap();
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert_eq!(busy.read(&mut [0]).await.unwrap(), 0);
    };
    run_local(test).await;
}

#[test]
fn versions_order_as_the_engine_assumes() {
    assert!(Version::HTTP_10 < Version::HTTP_11 && Version::HTTP_11 < Version::HTTP_2);
}
