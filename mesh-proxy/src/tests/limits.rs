//! Limits where applications have none: what they do to each other directly, they do through two
//! proxies.

use h2::RecvStream;
use h2::client::SendRequest;
use tokio::task::spawn_local;

use super::app::{App, ask, get, http2, message, read, respond, send, streams};
use super::world::{CLIENT, World, run};

/// The stream limit for the own application and for authenticated peers.
const STREAMS: usize = 1000;

/// An HTTP/2 application whose responses to `/watch` do not end.
fn start_watched(app: App) {
    spawn_local(async move {
        loop {
            let tcp = app.accept().await;
            spawn_local(async move {
                let mut called = streams(tcp).await;
                let mut open = Vec::new();
                while let Some((request, respond_to)) = called.recv().await {
                    open.extend(answer(&request, respond_to));
                }
            });
        }
    });
}

fn answer(
    request: &http::Request<RecvStream>,
    respond_to: h2::server::SendResponse<bytes::Bytes>,
) -> Option<h2::SendStream<bytes::Bytes>> {
    let mut body = respond(respond_to);
    if request.uri().path() == "/watch" {
        return Some(body);
    }
    body.send_data("answer".into(), true).unwrap();
    None
}

/// Opens `count` streams whose responses do not end.
async fn watch(
    mut client: SendRequest<bytes::Bytes>,
    count: usize,
) -> (SendRequest<bytes::Bytes>, Vec<http::Response<RecvStream>>) {
    let mut open = Vec::new();
    for _ in 0..count {
        client = client.ready().await.unwrap();
        let request = http::Request::get("http://web/watch").body(()).unwrap();
        open.push(ask(&mut client, request).await.unwrap().unwrap());
    }
    (client, open)
}

#[test]
fn unary_call_beside_a_thousand_long_streams_is_answered() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (_web, addr) = world.meshed(app.addr).await;
        start_watched(app);
        let proxy = world.proxy(CLIENT);
        let client = http2(proxy.outbound(addr).await).await;
        let (client, open) = watch(client, STREAMS - 1).await;
        let mut client = client.ready().await.unwrap();
        // The clock is paused: the call does not wait for a time limit to expire.
        let response = ask(&mut client, get()).await.unwrap().unwrap();
        assert_eq!(read(&mut response.into_body()).await, "answer");
        drop(open);
    });
}

/// A peer with a certificate may open the application's number of streams on one connection; others
/// get the limit that bounds the bytes that they can make the proxy store.
#[test]
fn stream_limit_depends_on_whether_the_peer_is_authenticated() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (web, _) = world.meshed(app.addr).await;
        let target = app.addr;
        start_watched(app);

        let tls = world.connected(web.inbound(target).await).await;
        let (client, open) = watch(http2(tls).await, STREAMS).await;
        assert_eq!(client.current_max_send_streams(), STREAMS);
        drop(open);

        let client = http2(web.inbound(target).await).await;
        let (client, _open) = watch(client, 200).await;
        assert_eq!(client.current_max_send_streams(), 200);
    });
}

/// The proxies add fields to a request and to a response.
#[test]
fn messages_with_as_many_fields_as_the_first_proxy_accepts_pass_the_second() {
    for (lines, large) in [(98, 10), (10, 20_000)] {
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let (_web, addr) = world.meshed(app.addr).await;
            let proxy = world.proxy(CLIENT);
            let mut client = proxy.outbound(addr).await;
            // Together with `host` or `content-length`, and one more, 100 fields, or 200 KiB.
            let value = "v".repeat(large);
            let fields: String = (0..lines).map(|n| format!("x-{n}: {value}\r\n")).collect();
            let fields = format!("{fields}x-last: 1\r\n");
            send(
                &mut client,
                &format!("GET / HTTP/1.1\r\nhost: web\r\n{fields}\r\n"),
            )
            .await;
            let (mut app, request) = app.receive().await;
            assert!(request.contains("x-last: 1\r\n"));
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{fields}\r\nok");
            send(&mut app, &response).await;
            let response = message(&mut client).await;
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            assert!(response.contains("x-last: 1\r\n"));
        });
    }
}

/// A header section of HTTP/1 that is as long as the limit is a longer header list in HTTP/2.
#[test]
fn header_section_as_long_as_the_first_proxy_accepts_passes_the_second() {
    run(async || {
        let world = World::new().await;
        let app = App::start().await;
        let (_web, addr) = world.meshed(app.addr).await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(addr).await;
        let begin = "GET / HTTP/1.1\r\nhost: web\r\n";
        let short: String = (0..95).map(|n| format!("x-{n}: v\r\n")).collect();
        let rest = 256 * 1024 - begin.len() - short.len() - "x-large: \r\n\r\n".len();
        let large = "v".repeat(rest);
        send(
            &mut client,
            &format!("{begin}{short}x-large: {large}\r\n\r\n"),
        )
        .await;
        let (mut app, request) = app.receive().await;
        assert!(request.contains(&format!("x-large: {large}\r\n")));
        send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert!(message(&mut client).await.starts_with("HTTP/1.1 200 "));
    });
}
