//! Request bodies of HTTP/1 clients whose exchange ends before, or otherwise than, the body.

use mesh_core::endpoint::ProtocolHint;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::app::{App, expect, head, http2, read, rest, send, streams};
use super::world::{CLIENT, WEB, World, pod, run, settle, while_time_passes};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A client whose request has a body of ten bytes, with three of them sent.
async fn begin_post(client: &mut TcpStream, fields: &str) {
    let head = format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 10\r\n{fields}\r\n");
    send(client, &format!("{head}abc")).await;
}

#[test]
fn rest_of_a_body_that_the_server_does_not_want_is_discarded() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        begin_post(&mut client, "").await;
        let mut server = app.accept().await;
        assert!(head(&mut server).await.starts_with("POST"));
        send(
            &mut server,
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        )
        .await;
        expect(&mut client, 200).await;
        drop(server);
        settle().await;
        // The client has its response, and sends the rest and another request.
        send(&mut client, "defghij").await;
        send(&mut client, "GET /next HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut server, request) = while_time_passes(app.receive()).await;
        assert!(request.starts_with("GET /next "), "{request}");
        send(&mut server, OK).await;
        expect(&mut client, 200).await;
    });
}

/// It need not be read: nothing follows it.
#[test]
fn rest_of_the_last_body_of_a_connection_is_not_waited_for() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        begin_post(&mut client, "connection: close\r\n").await;
        let mut server = app.accept().await;
        head(&mut server).await;
        send(
            &mut server,
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        )
        .await;
        drop(server);
        // Without time passing: discarding the rest would take it.
        assert!(rest(&mut client).await.ends_with("\r\n\r\nok"));
    });
}

#[test]
fn client_that_closes_after_a_long_body_ends_it_only_when_all_was_sent() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        const LENGTH: usize = 16 << 20;
        send(
            &mut client,
            &format!("PUT / HTTP/1.1\r\nhost: web\r\ncontent-length: {LENGTH}\r\n\r\n"),
        )
        .await;
        let writing = tokio::task::spawn_local(async move {
            client.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        let mut server = app.accept().await;
        assert!(head(&mut server).await.starts_with("PUT"));
        // The server reads nothing while the buffers fill up.
        for _ in 0..10 {
            settle().await;
        }
        let mut received = 0;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let length = while_time_passes(server.read(&mut buffer)).await.unwrap();
            if length == 0 {
                break;
            }
            received += length;
        }
        assert_eq!(received, LENGTH);
        let _client = writing.await.unwrap();
    });
}

#[test]
fn client_that_leaves_after_its_response_closes_no_connection_of_the_next_one() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        let proxy = world.proxy(CLIENT);
        let request = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
        let mut first = proxy.outbound(app.addr).await;
        send(&mut first, request).await;
        let (mut server, _request) = app.receive().await;
        send(&mut server, OK).await;
        expect(&mut first, 200).await;
        first.shutdown().await.unwrap();
        assert_eq!(rest(&mut first).await, "");
        drop(first);
        settle().await;
        for _ in 0..2 {
            let mut next = proxy.outbound(app.addr).await;
            send(&mut next, request).await;
            // On the same connection.
            assert!(head(&mut server).await.starts_with("GET"));
            send(&mut server, OK).await;
            expect(&mut next, 200).await;
        }
    });
}

/// A chunk without data would end the body.
#[test]
fn empty_frame_of_an_http2_client_does_not_end_the_body_of_http1() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        let web = world.proxy(WEB);
        let connected = world.connected(web.inbound(app.addr).await).await;
        let mut client = http2(connected).await;
        let request = http::Request::post("http://web/").header("l5d-orig-proto", "HTTP/1.1");
        let (_response, mut body) = client
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        for (part, is_last) in [("a", false), ("", false), ("b", true)] {
            body.send_data(part.into(), is_last).unwrap();
            settle().await;
        }
        let mut server = app.accept().await;
        assert!(
            head(&mut server)
                .await
                .contains("transfer-encoding: chunked")
        );
        let mut received = [0; 17];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    });
}

/// The body of a client that waits for no 100 is sent with its request, whatever the server's proxy
/// is.
#[test]
fn body_is_sent_before_the_settings_of_the_servers_proxy() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        world.knows(app.addr, pod(app.addr, ProtocolHint::Http2, None));
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        begin_post(&mut client, "").await;
        let mut server = world.terminated(app.accept().await).await;
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        while !received.windows(3).any(|bytes| bytes == b"abc") {
            let length = server.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0);
            received.extend_from_slice(&buffer[..length]);
        }
    });
}

/// The response to a request says nothing about its body, unless its client waits for a 100.
#[test]
fn body_that_begins_after_the_response_is_sent() {
    run(async || {
        let (world, app) = (World::new().await, App::start().await);
        world.knows(app.addr, pod(app.addr, ProtocolHint::Http2, None));
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(app.addr).await;
        send(
            &mut client,
            "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 3\r\n\r\n",
        )
        .await;
        let mut calls = streams(world.terminated(app.accept().await).await).await;
        let (request, mut to) = calls.recv().await.unwrap();
        let mut response = to.send_response(http::Response::new(()), false).unwrap();
        head(&mut client).await;
        send(&mut client, "abc").await;
        let mut received = request.into_body();
        assert_eq!(read(&mut received).await, "abc");
        response.send_data("ok".into(), true).unwrap();
    });
}
