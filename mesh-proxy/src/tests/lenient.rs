//! Responses of the pod's own application that only lenient parsers understand, and request targets
//! that a URI must not contain: what clients and servers do to each other directly, they do through
//! the proxy.

use mesh_core::endpoint::ProtocolHint;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::app::{App, expect, head, message, rest, send};
use super::world::{CLIENT, WEB, World, pod, run};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nhost: web\r\n\r\n";

/// Requests, responses of the application, and what the client receives.
const RESPONSES: [(&str, &str, &str); 12] = [
    (
        GET,
        "HTTP/1.1 200 OK\r\ncontent-length : 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ),
    (
        GET,
        "HTTP/1.1 200 OK\nx-a: 1\ncontent-length: 2\n\nok",
        "HTTP/1.1 200 OK\r\nx-a: 1\r\ncontent-length: 2\r\n\r\nok",
    ),
    (
        GET,
        "HTTP/1.1 200 OK\r\ncontent-length: 2\n\r\nok",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ),
    // Transfer-Encoding takes precedence.
    (
        GET,
        "HTTP/1.1 200 OK\r\ncontent-length: 7\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ),
    // The blank is removed before framing is read.
    (
        GET,
        "HTTP/1.1 200 OK\r\ntransfer-encoding : chunked\r\ncontent-length: 7\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ),
    // The bytes after it are discarded with the connection.
    (
        GET,
        "HTTP/1.1 200 OK\ncontent-length: 2\n\nokHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ),
    (
        GET,
        "HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ),
    (
        GET,
        "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ),
    (
        GET,
        "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\n\r\n",
    ),
    (
        HEAD,
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    ),
    (
        GET,
        "HTTP/1.1 103 Early Hints\nlink: a\n\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n",
    ),
    (
        GET,
        "HTTP/1.1 102 Processing\r\ncontent-length: 5\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 102 Processing\r\n\r\n",
    ),
];

/// A client, and the application of the pod that has received its request.
struct Exchange {
    client: TcpStream,
    app: App,
    /// The application's connection.
    tcp: TcpStream,
    /// The head of the request that it received.
    received: String,
}

/// Runs a test of an exchange with the pod's own application, which begins with this request.
fn exchange(request: &str, story: impl AsyncFn(Exchange) + Sync) {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let proxy = world.proxy(WEB);
        let mut client = proxy.inbound(app.addr).await;
        send(&mut client, request).await;
        let (tcp, received) = app.receive().await;
        let exchange = Exchange {
            client,
            app,
            tcp,
            received,
        };
        story(exchange).await;
    });
}

#[test]
fn response_of_own_application_is_normalised_and_its_connection_closed() {
    for (request, response, expected) in RESPONSES {
        exchange(request, async |exchange| {
            let Exchange {
                mut client,
                app,
                mut tcp,
                ..
            } = exchange;
            send(&mut tcp, response).await;
            let received = match request {
                HEAD => head(&mut client).await,
                _ => message(&mut client).await,
            };
            assert_eq!(without_date(&received), expected, "{response:?}");
            if expected.starts_with("HTTP/1.1 1") {
                assert!(message(&mut client).await.ends_with("ok"), "{response:?}");
            }
            // The client's connection stays, and the next request gets a new one.
            assert_eq!(rest(&mut tcp).await, "", "{response:?}");
            send(&mut client, GET).await;
            let (mut tcp, _) = app.receive().await;
            send(&mut tcp, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            expect(&mut client, 200).await;
        });
    }
}

fn without_date(response: &str) -> String {
    let lines = response.split_inclusive("\r\n");
    lines.filter(|line| !line.starts_with("date:")).collect()
}

#[test]
fn identity_alone_lasts_until_the_application_closes() {
    exchange(GET, async |mut exchange| {
        let response = "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\nall of it";
        send(&mut exchange.tcp, response).await;
        drop(exchange.tcp);
        let response = message(&mut exchange.client).await;
        assert!(!response.contains("identity"), "{response}");
        assert!(response.contains("all of it"), "{response}");
    });
}

/// Still ambiguous, or invalid, for all clients.
const INVALID: [&str; 12] = [
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: identity, identity\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nx: a\rb\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\rx: a\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx: a\r\n folded\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\n content-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\nx a: 1\r\ncontent-length: 2\r\n\r\nok",
];

#[test]
fn ambiguous_response_of_own_application_is_refused() {
    for response in INVALID {
        exchange(GET, async |mut exchange| {
            send(&mut exchange.tcp, response).await;
            expect(&mut exchange.client, 502).await;
        });
    }
}

#[test]
fn bare_line_feeds_within_a_chunked_body_are_refused() {
    for body in ["2\nok\r\n0\r\n\r\n", "2\r\nok\r\n0\r\nx: 1\n\r\n"] {
        exchange(GET, async |mut exchange| {
            let head = "HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n";
            send(&mut exchange.tcp, &format!("{head}{body}")).await;
            let received = rest(&mut exchange.client).await;
            assert!(!received.ends_with("0\r\n\r\n"), "{received:?}");
        });
    }
}

/// The outbound proxy's servers are strangers: the other proxy has normalised lenient responses.
#[test]
fn lenient_response_of_another_server_is_refused() {
    for (_, response, _) in &RESPONSES[..5] {
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let proxy = world.proxy(CLIENT);
            let mut client = proxy.outbound(app.addr).await;
            send(&mut client, GET).await;
            // The proxy may repeat the request.
            let responding = async {
                loop {
                    let (mut tcp, _) = app.receive().await;
                    send(&mut tcp, response).await;
                }
            };
            tokio::select! {
                () = responding => {}
                _ = expect(&mut client, 502) => {}
            }
        });
    }
}

/// Through two proxies, which carry other requests over HTTP/2.
#[test]
fn target_beyond_the_syntax_of_uris_reaches_the_application_unchanged() {
    for target in [
        &b"/a<b>?c=<d>"[..],
        b"/\"quoted\"",
        b"/caf\xe9",
        "/caf\u{e9}".as_bytes(),
        b"http://web/<a>",
    ] {
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let (_web, addr) = world.meshed(app.addr).await;
            let proxy = world.proxy(CLIENT);
            let mut client = proxy.outbound(addr).await;
            let line = [b"GET ", target, b" HTTP/1.1\r\n"].concat();
            let request = [&line, &b"host: web\r\n\r\n"[..]].concat();
            client.write_all(&request).await.unwrap();
            let mut tcp = app.accept().await;
            assert_eq!(read(&mut tcp, line.len()).await, line);
            head(&mut tcp).await;
            send(&mut tcp, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            expect(&mut client, 200).await;
        });
    }
}

async fn read(tcp: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tokio::io::AsyncReadExt::read_exact(tcp, &mut bytes)
        .await
        .unwrap();
    bytes
}

#[test]
fn connect_in_http10_becomes_a_tunnel() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        send(&mut client, "CONNECT web:80 HTTP/1.0\r\n\r\n").await;
        let (mut tcp, request) = app.receive().await;
        assert!(
            request.starts_with("CONNECT web:80 HTTP/1.0\r\n"),
            "{request}"
        );
        send(&mut tcp, "HTTP/1.0 200 Established\r\n\r\n").await;
        assert_eq!(head(&mut client).await, "HTTP/1.0 200 Established\r\n\r\n");
        send(&mut client, "up").await;
        assert_eq!(read(&mut tcp, 2).await, b"up");
        send(&mut tcp, "down").await;
        assert_eq!(read(&mut client, 4).await, b"down");
    });
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[test]
fn connection_of_an_upgrade_that_is_not_accepted_is_used_again() {
    for offer in ["TLS/1.2, TLS/1.3", "websocket"] {
        let request = format!(
            "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: {offer}\r\n\r\n"
        );
        exchange(&request, async |exchange| {
            let Exchange {
                mut client,
                app: _listening,
                mut tcp,
                received,
            } = exchange;
            let offered = format!("upgrade: {offer}\r\n");
            assert!(received.contains(&offered), "{received}");
            send(&mut tcp, OK).await;
            expect(&mut client, 200).await;
            for _ in 0..2 {
                let again = if offer.starts_with("TLS") {
                    &request
                } else {
                    GET
                };
                send(&mut client, again).await;
                head(&mut tcp).await;
                send(&mut tcp, OK).await;
                expect(&mut client, 200).await;
            }
        });
    }
}

#[test]
fn offer_of_tls_is_carried_over_http2_without_the_offer() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        world.knows(app.addr, pod(app.addr, ProtocolHint::Http2, None));
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        send(
            &mut client,
            "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: TLS/1.2\r\n\r\n",
        )
        .await;
        let mut called = super::app::streams(world.terminated(app.accept().await).await).await;
        let (request, mut answer) = called.recv().await.unwrap();
        assert_eq!(request.headers().get("upgrade"), None);
        answer.send_response(http::Response::new(()), true).unwrap();
        expect(&mut client, 200).await;
    });
}

/// An application that accepts the offer, and one that its client requires to do so.
#[test]
fn accepted_offer_of_tls_becomes_a_tunnel() {
    for line in ["GET /", "OPTIONS *"] {
        let fields = "host: web\r\nconnection: upgrade\r\nupgrade: TLS/1.2\r\n\r\n";
        let request = format!("{line} HTTP/1.1\r\n{fields}");
        exchange(&request, async |exchange| {
            let Exchange {
                mut client,
                mut tcp,
                ..
            } = exchange;
            let response = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: TLS/1.2\r\n\r\n";
            send(&mut tcp, response).await;
            assert_eq!(head(&mut client).await, response);
            send(&mut client, "hello").await;
            assert_eq!(read(&mut tcp, 5).await, b"hello");
        });
    }
}
