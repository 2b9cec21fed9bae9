//! HTTP/1 that is carried as HTTP/2 from proxy to proxy.

use mesh_core::endpoint::ProtocolHint;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::app::{App, head, http2, message, respond, send, streams};
use super::world::{CLIENT, POD, WEB, World, peer, pod, run};
use crate::tls::{self, Purpose};
use crate::transport::Io;

const ORIGIN: &str = "GET /a?b HTTP/1.1\r\nhost: web:80\r\n\r\n";
const ABSOLUTE: &str = "GET http://web:80/a?b HTTP/1.1\r\nhost: web:80\r\n\r\n";

#[test]
fn a_request_says_what_it_was() {
    for (request, was) in [
        (ORIGIN, "HTTP/1.1"),
        (ABSOLUTE, "HTTP/1.1; absolute-form"),
        ("GET /a?b HTTP/1.0\r\nhost: web:80\r\n\r\n", "HTTP/1.0"),
    ] {
        run(async || {
            let world = World::new().await;
            let listener = TcpListener::bind((POD, 0)).await.unwrap();
            let addr = listener.local_addr().unwrap();
            world.knows(addr, pod(addr, ProtocolHint::Http2, None));
            let proxy = world.proxy(CLIENT);
            let mut client = proxy.outbound(addr).await;
            send(&mut client, request).await;
            let mut calls =
                streams(terminated(&world, listener.accept().await.unwrap().0).await).await;
            let (carried, answer) = calls.recv().await.unwrap();
            assert_eq!(carried.headers()["l5d-orig-proto"], was);
            assert_eq!(carried.uri(), "http://web:80/a?b");
            respond(answer).send_data("ok".into(), true).unwrap();
            let response = head(&mut client).await;
            assert!(!response.contains("l5d-orig-proto"), "{response}");
        });
    }
}

#[test]
fn it_becomes_that_again() {
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
            let tls = connected(&world, proxy.inbound(app.addr).await).await;
            let mut client = http2(tls).await;
            let request = http::Request::get("http://web:80/a?b")
                .header("l5d-orig-proto", was)
                .header("host", "web:80")
                .body(())
                .unwrap();
            let (response, _) = client.send_request(request, true).unwrap();
            let asking = spawn_local(response);
            let mut app = app.accept().await;
            let request = head(&mut app).await;
            assert!(request.starts_with(line), "{was}: {request}");
            assert!(!request.contains("l5d-orig-proto"), "{was}: {request}");
            assert!(request.contains("host: web:80\r\n"), "{was}: {request}");
            send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            assert_eq!(asking.await.unwrap().unwrap().status(), 200);
        });
    }
}

/// Only another proxy may say what a request was, and nobody hears of it at either end.
#[test]
fn the_ends_never_see_it() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (_web, addr) = world.meshed(app.addr).await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(addr).await;
        send(
            &mut client,
            "GET / HTTP/1.1\r\nhost: web\r\nl5d-orig-proto: HTTP/1.0\r\n\r\n",
        )
        .await;
        let mut app = app.accept().await;
        let request = head(&mut app).await;
        assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
        assert!(!request.contains("l5d-orig-proto"), "{request}");
        let response = "HTTP/1.1 200 OK\r\nl5d-orig-proto: HTTP/1.0\r\ncontent-length: 2\r\n\r\nok";
        send(&mut app, response).await;
        let response = message(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(!response.contains("l5d-orig-proto"), "{response}");
    });
}

/// The client speaks HTTP/1: it cannot be told of a stream that was reset.
#[test]
fn a_reset_stream_is_a_502() {
    run(async || {
        let world = World::new().await;
        let listener = TcpListener::bind((POD, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        world.knows(addr, pod(addr, ProtocolHint::Http2, None));
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(addr).await;
        send(&mut client, ORIGIN).await;
        let mut calls = streams(terminated(&world, listener.accept().await.unwrap().0).await).await;
        let (_, mut answer) = calls.recv().await.unwrap();
        answer.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
        let response = message(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    });
}

/// The server's end of a proxy's connection, without a proxy.
async fn terminated(world: &World, tcp: TcpStream) -> Io {
    let credentials = world.credentials(WEB);
    let shaken = tls::server::terminate(Io::plain(tcp), &credentials, false, Purpose::Traffic);
    Io::tls(shaken.await.unwrap().0)
}

/// The client's.
async fn connected(world: &World, tcp: TcpStream) -> Io {
    let credentials = world.credentials(CLIENT);
    let peer = peer(WEB);
    let shaken = tls::client::connect(Io::plain(tcp), &credentials, &peer, false, Purpose::Traffic);
    Io::tls(shaken.await.unwrap().0)
}
