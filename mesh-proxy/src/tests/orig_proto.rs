//! HTTP/1 that is upgraded to HTTP/2 between proxies.

use mesh_core::endpoint::ProtocolHint;
use tokio::net::TcpStream;

use super::app::{
    App, Call, Calls, ask, head, http2, message, read, respond, send, status_of, streams,
};
use super::world::{CLIENT, Proxy, World, pod, run};

const ORIGIN: &str = "GET /a?b HTTP/1.1\r\nhost: web:80\r\n\r\n";
const ABSOLUTE: &str = "GET http://web:80/a?b HTTP/1.1\r\nhost: web:80\r\n\r\n";

#[test]
fn upgraded_request_declares_original_protocol() {
    for (request, was) in [
        (ORIGIN, "HTTP/1.1"),
        (ABSOLUTE, "HTTP/1.1; absolute-form"),
        ("GET /a?b HTTP/1.0\r\nhost: web:80\r\n\r\n", "HTTP/1.0"),
    ] {
        run(async || {
            let (mut client, (carried, answer), _proxy) = carried(request).await;
            assert_eq!(carried.headers()["l5d-orig-proto"], was);
            assert_eq!(carried.uri(), "http://web:80/a?b");
            respond(answer).send_data("ok".into(), true).unwrap();
            let response = head(&mut client).await;
            assert!(!response.contains("l5d-orig-proto"), "{response}");
        });
    }
}

#[test]
fn upgraded_request_is_restored() {
    for (was, line) in [
        ("HTTP/1.1", "GET /a?b HTTP/1.1\r\n"),
        (
            "HTTP/1.1; absolute-form",
            "GET http://web:80/a?b HTTP/1.1\r\n",
        ),
        ("HTTP/1.0", "GET /a?b HTTP/1.0\r\n"),
    ] {
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let (proxy, _) = world.meshed(app.addr).await;
            let tls = world.connected(proxy.inbound(app.addr).await).await;
            let mut client = http2(tls).await;
            let request = http::Request::get("http://web:80/a?b")
                .header("l5d-orig-proto", was)
                .header("host", "web:80")
                .body(())
                .unwrap();
            let asking = ask(&mut client, request);
            let (mut app, request) = app.receive().await;
            assert!(request.starts_with(line), "{was}: {request}");
            assert!(!request.contains("l5d-orig-proto"), "{was}: {request}");
            assert!(request.contains("host: web:80\r\n"), "{was}: {request}");
            send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            assert_eq!(status_of(asking).await, 200);
        });
    }
}

#[test]
fn orig_proto_header_is_hidden_from_client_and_application() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (_web, addr) = world.meshed(app.addr).await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(addr).await;
        let text = "GET / HTTP/1.1\r\nhost: web\r\nl5d-orig-proto: HTTP/1.0\r\n\r\n";
        send(&mut client, text).await;
        let (mut app, request) = app.receive().await;
        assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
        assert!(!request.contains("l5d-orig-proto"), "{request}");
        let response = "HTTP/1.1 200 OK\r\nl5d-orig-proto: HTTP/1.0\r\ncontent-length: 2\r\n\r\nok";
        send(&mut app, response).await;
        let response = message(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(!response.contains("l5d-orig-proto"), "{response}");
    });
}

/// Applications may forward headers, which their proxy would then act upon.
#[test]
fn headers_between_proxies_never_reach_applications() {
    let names = [
        "l5d-orig-proto",
        "l5d-require-id",
        "l5d-proxy-error",
        "l5d-proxy-connection",
        "l5d-proxy-undelivered",
    ];
    for meshed in [true, false] {
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let (proxy, _) = world.meshed(app.addr).await;
            let tcp = proxy.inbound(app.addr).await;
            let fields: String = names.map(|name| format!("{name}: HTTP/1.0\r\n")).concat();
            let request = format!("GET / HTTP/1.1\r\nhost: web\r\n{fields}\r\n");
            let mut tls;
            let mut plain = tcp;
            let request = if meshed {
                tls = world.connected(plain).await;
                send(&mut tls, &request).await;
                app.receive().await.1
            } else {
                send(&mut plain, &request).await;
                app.receive().await.1
            };
            assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
            for name in names {
                assert!(!request.contains(name), "meshed: {meshed}: {request}");
            }
        });
    }
}

#[test]
fn stream_reset_becomes_502_for_http1_client() {
    run(async || {
        let (mut client, (_, mut answer), _proxy) = carried(ORIGIN).await;
        answer.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
        let response = message(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    });
}

/// Linkerd's inbound proxy does not forward the application's 100: the client gets one when its
/// body is first read, and no other.
#[test]
fn expected_100_is_sent_in_place_of_a_proxy_of_another_project() {
    run(async || {
        let request =
            "POST / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
        let (mut client, (mut carried, mut answer), _proxy) = carried(request).await;
        let interim = head(&mut client).await;
        assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
        send(&mut client, "hi").await;
        assert_eq!(read(carried.body_mut()).await, "hi");
        let second = http::Response::builder().status(100).body(()).unwrap();
        answer.send_informational(second).unwrap();
        respond(answer).send_data("ok".into(), true).unwrap();
        let response = head(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    });
}

/// The connection of a client that has sent `request`, the upgraded stream, and a guard that keeps
/// the proxy.
async fn carried(request: &str) -> (TcpStream, Call, (Proxy, Calls)) {
    let world = World::new().await;
    let peer = App::start().await;
    world.knows(peer.addr, pod(peer.addr, ProtocolHint::Http2, None));
    let proxy = world.proxy(CLIENT);
    let mut client = proxy.outbound(peer.addr).await;
    send(&mut client, request).await;
    let mut calls = streams(world.terminated(peer.accept().await).await).await;
    let call = calls.recv().await.unwrap();
    (client, call, (proxy, calls))
}
