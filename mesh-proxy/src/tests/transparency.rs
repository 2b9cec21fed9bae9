//! Transparent forwarding through the outbound proxy, the inbound proxy, and both.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::profile::Profile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::app::{
    App, ask, get, head, http2, message, rest, send, status_of, streams, unused_addr,
};
use super::world::{CLIENT, Proxy, WEB, World, run, while_time_passes};

mod ends;
mod http1;
mod repeats;
mod targets;

/// The proxies that a connection passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Outbound,
    Inbound,
    Both,
}

const WAYS: [Way; 3] = [Way::Outbound, Way::Inbound, Way::Both];

/// The proxies between clients and one application.
struct Between {
    way: Way,
    client: Proxy,
    server: Proxy,
    /// The application's address by discovery.
    addr: SocketAddr,
    app: SocketAddr,
}

impl Between {
    async fn new(way: Way, app: SocketAddr) -> Self {
        let world = World::new().await;
        let (server, meshed) = world.meshed(app).await;
        Self {
            way,
            client: world.proxy(CLIENT),
            server,
            addr: if way == Way::Both { meshed } else { app },
            app,
        }
    }

    async fn connect(&self) -> TcpStream {
        match self.way {
            Way::Outbound | Way::Both => self.client.outbound(self.addr).await,
            Way::Inbound => self.server.inbound(self.app).await,
        }
    }
}

/// A client's connection, the application, and the proxies between them.
async fn open(way: Way) -> (TcpStream, App, Between) {
    let app = App::start().await;
    let between = Between::new(way, app.addr).await;
    (between.connect().await, app, between)
}

fn each_way(story: impl AsyncFn(Way) + Sync) {
    for way in WAYS {
        run(async || story(way).await);
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn check(name: &str, way: Way, text: &str, has: &[&str], has_not: &[&str]) {
    for part in has {
        let is_contained = text.contains(part);
        assert!(is_contained, "{name}, {way:?}: no {part:?} in\n{text}");
    }
    for part in has_not {
        assert!(!text.contains(part), "{name}, {way:?}: {part:?} in\n{text}");
    }
}

#[test]
fn head_response_keeps_framing_fields_without_body() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        let request = "HEAD / HTTP/1.1\r\nhost: web\r\n\r\n";
        send(&mut client, request).await;
        let (mut app, _) = app.receive().await;
        send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 55\r\n\r\n").await;
        let response = head(&mut client).await;
        let (length, chunked) = (
            "\r\ncontent-length: 55\r\n",
            "\r\ntransfer-encoding: chunked\r\n",
        );
        check("HEAD", way, &response, &[length], &[chunked]);
        send(&mut client, request).await;
        head(&mut app).await;
        send(
            &mut app,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await;
        let response = head(&mut client).await;
        check("HEAD", way, &response, &[chunked], &["content-length"]);
        // The next response follows immediately.
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        head(&mut app).await;
        send(&mut app, "HTTP/1.1 204 No Content\r\n\r\n").await;
        let response = head(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 204 "), "{way:?}: {response}");
    });
}

#[test]
fn upgraded_connection_becomes_tunnel() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        let upgrade =
            "GET /chat HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n";
        send(&mut client, upgrade).await;
        let (mut app, request) = app.receive().await;
        check("upgrade", way, &request, &["\r\nupgrade: chat\r\n"], &[]);
        let text =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n";
        send(&mut app, text).await;
        let response = head(&mut client).await;
        let expected = ["HTTP/1.1 101 ", "\r\nupgrade: chat\r\n"];
        check("upgrade", way, &response, &expected, &[]);
        talk(&mut client, &mut app).await;
    });
}

/// The response to CONNECT has no body, even if it declares one
/// (<https://github.com/linkerd/linkerd2/issues/8539>).
#[test]
fn connect_becomes_tunnel() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        let host = app.addr;
        let line = format!("CONNECT {host} HTTP/1.1\r\n");
        send(&mut client, &format!("{line}host: {host}\r\n\r\n")).await;
        let (mut app, request) = app.receive().await;
        check("CONNECT", way, &request, &[&line], &[]);
        send(&mut app, "HTTP/1.1 200 OK\r\n\r\n").await;
        let response = head(&mut client).await;
        let absent = ["content-length", "transfer-encoding"];
        check("CONNECT", way, &response, &["HTTP/1.1 200 "], &absent);
        talk(&mut client, &mut app).await;
    });
}

#[test]
fn invalid_connect_is_bad_request() {
    for request in [
        "CONNECT / HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT http://web/ HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT web HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT web: HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT web:0 HTTP/1.1\r\nhost: web\r\n\r\n",
        "CONNECT web:65536 HTTP/1.1\r\nhost: web\r\n\r\n",
        "GET web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n",
    ] {
        each_way(async |way| {
            let (mut client, _app, _between) = open(way).await;
            send(&mut client, request).await;
            let response = rest(&mut client).await;
            let is_rejected =
                response.starts_with("HTTP/1.1 400 ") || response.starts_with("HTTP/1.0 400 ");
            assert!(is_rejected, "{way:?}: {request}: {response}");
        });
    }
}

/// Each address of the application has one pool, for all hosts.
#[test]
fn clients_share_connections_to_application() {
    each_way(async |way| {
        let app = App::start().await;
        let between = Between::new(way, app.addr).await;
        let requests = [
            "GET / HTTP/1.1\r\nhost: web\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: other\r\n\r\n",
        ];
        let mut served = None;
        for request in requests {
            let mut client = between.connect().await;
            send(&mut client, request).await;
            let served = match &mut served {
                Some(served) => served,
                None => served.insert(app.accept().await),
            };
            head(served).await;
            send(served, OK).await;
            message(&mut client).await;
        }
    });
}

#[test]
fn requests_without_host_do_not_share_connections() {
    each_way(async |way| {
        let app = App::start().await;
        let between = Between::new(way, app.addr).await;
        for request in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        ] {
            let mut client = between.connect().await;
            send(&mut client, request).await;
            let (mut served, _) = app.receive().await;
            send(&mut served, OK).await;
            assert_eq!(rest(&mut served).await, "", "{way:?}: it is not kept");
            message(&mut client).await;
        }
    });
}

#[test]
fn opaque_bytes_are_forwarded_in_both_directions() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        client.write_all(b"\0hello").await.unwrap();
        let mut app = app.accept().await;
        let mut hello = [0; 6];
        app.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"\0hello", "{way:?}");
        talk(&mut client, &mut app).await;
    });
}

#[test]
fn close_by_client_closes_application_connection() {
    each_way(async |way| {
        let (mut client, app, _between) = open(way).await;
        client.write_all(b"\0hello").await.unwrap();
        let mut app = app.accept().await;
        drop(client);
        assert_eq!(rest(&mut app).await, "\0hello", "{way:?}");
    });
}

#[test]
fn server_first_protocol_works_on_opaque_port() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let opaque = Profile {
            opaque: true,
            ..Profile::default()
        };
        world.knows(app.addr, opaque);
        let proxy = world.proxy(CLIENT);
        greeted(&app, proxy.outbound(app.addr).await).await;
        let port = app.addr.port().to_string();
        let skipped = ("INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", Some(&*port));
        let proxy = world.proxy_with(WEB, &[skipped]);
        greeted(&app, proxy.inbound(app.addr).await).await;
    });
}

/// The server is connected immediately: on an opaque port nothing waits for the client's bytes.
async fn greeted(app: &App, mut client: TcpStream) {
    let begin = Instant::now();
    let mut app = app.accept().await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    app.write_all(b"220 welcome").await.unwrap();
    let mut greeting = [0; 11];
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 welcome");
    talk(&mut client, &mut app).await;
}

/// <https://github.com/linkerd/linkerd2/issues/10090>
#[test]
fn missing_application_is_reported_to_client() {
    each_way(async |way| {
        let between = Between::new(way, unused_addr().await).await;
        let mut client = between.connect().await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let response = while_time_passes(rest(&mut client)).await;
        let expected = ["HTTP/1.1 50", "\r\nconnection: close\r\n"];
        check("no application", way, &response, &expected, &[]);
    });
}

#[test]
fn http2_request_without_authority_is_forwarded_to_original_destination() {
    each_way(async |way| {
        let (client, app, _between) = open(way).await;
        let mut client = http2(client).await;
        let request = http::Request::get("/a").body(()).unwrap();
        let asking = ask(&mut client, request);
        let mut calls = streams(app.accept().await).await;
        let (request, mut answer) = calls.recv().await.unwrap();
        assert_eq!(request.uri().path(), "/a", "{way:?}");
        answer.send_response(http::Response::new(()), true).unwrap();
        assert_eq!(status_of(asking).await, 200, "{way:?}");
    });
}

#[test]
fn http2_stream_reset_reaches_client() {
    each_way(async |way| {
        let (client, app, _between) = open(way).await;
        let mut client = http2(client).await;
        let asking = ask(&mut client, get());
        let mut calls = streams(app.accept().await).await;
        let (_, mut answer) = calls.recv().await.unwrap();
        answer.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
        let error = asking.await.unwrap().unwrap_err();
        let expected = Some(h2::Reason::ENHANCE_YOUR_CALM);
        assert_eq!(error.reason(), expected, "{way:?}");
    });
}

/// A connection to the proxy's own port would loop.
#[test]
fn connection_to_own_port_is_refused() {
    run(async || {
        let world = World::new().await;
        let proxy = world.proxy(CLIENT);
        let own = |port| SocketAddr::new(super::world::POD.into(), port);
        assert_eq!(rest(&mut proxy.outbound(own(4140)).await).await, "");
        assert_eq!(rest(&mut proxy.inbound(own(4140)).await).await, "");
    });
}

async fn talk(client: &mut TcpStream, app: &mut TcpStream) {
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let ends = [&mut *client, &mut *app];
        ends[from].write_all(b"\x01ping").await.unwrap();
        let mut ping = [0; 5];
        ends[to].read_exact(&mut ping).await.unwrap();
        assert_eq!(&ping, b"\x01ping");
    }
}
