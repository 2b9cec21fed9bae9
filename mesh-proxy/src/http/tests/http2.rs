//! HTTP/2 through the engine, with the `h2` crate at both ends.

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::mpsc;

use super::*;

/// One stream that arrived at the server.
type Call = (http::Request<RecvStream>, SendResponse<Bytes>);

/// A server that hands every stream to the test.
async fn server(max_streams: u32) -> (SocketAddr, mpsc::UnboundedReceiver<Call>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (calls, called) = mpsc::unbounded_channel();
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let calls = calls.clone();
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                builder
                    .max_concurrent_streams(max_streams)
                    .max_header_list_size(1 << 20);
                let mut connection = builder.handshake(tcp).await.unwrap();
                while let Some(Ok(call)) = connection.accept().await {
                    // The test may be over.
                    let _ = calls.send(call);
                }
            });
        }
    });
    (addr, called)
}

async fn client(proxy: SocketAddr) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(proxy).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.max_header_list_size(1 << 20);
    let (client, connection) = builder.handshake(tcp).await.unwrap();
    tokio::task::spawn_local(connection);
    client.ready().await.unwrap()
}

/// An HTTP/2 client, one hop, and a server that allows `max_streams` at a time.
async fn setup(
    max_streams: u32,
    drain: &drain::Watch,
) -> (SendRequest<Bytes>, mpsc::UnboundedReceiver<Call>) {
    let (server, called) = server(max_streams).await;
    let proxy = hop(server, Role::Only, Protocol::Http2, drain).await;
    (client(proxy).await, called)
}

fn request() -> http::Request<()> {
    http::Request::post("http://web/service/method")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn response() -> http::Response<()> {
    http::Response::new(())
}

async fn read(body: &mut RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    (bytes, body.trailers().await.unwrap())
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (answer, mut upload) = client.send_request(request(), false).unwrap();
        upload.send_data("ask".into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("checksum", HeaderValue::from_static("1"));
        upload.send_trailers(trailers).unwrap();

        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.headers()["te"], "trailers");
        assert_eq!(request.uri().authority().unwrap(), "web");
        let (bytes, trailers) = read(&mut request.into_body()).await;
        assert_eq!(bytes, b"ask");
        assert_eq!(trailers.unwrap()["checksum"], "1");

        let mut download = respond.send_response(response(), false).unwrap();
        download.send_data("reply".into(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        download.send_trailers(trailers).unwrap();
        let (bytes, trailers) = read(&mut answer.await.unwrap().into_body()).await;
        assert_eq!(bytes, b"reply");
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
    })
    .await;
}

#[tokio::test]
async fn resets_pass_both_ways() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        // Before the response, and within it.
        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        respond.send_reset(Reason::ENHANCE_YOUR_CALM);
        let reason = answer.await.unwrap_err().reason();
        assert_eq!(reason, Some(Reason::ENHANCE_YOUR_CALM));

        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        let mut body = answer.await.unwrap().into_body();
        download.send_reset(Reason::INTERNAL_ERROR);
        let reason = body.data().await.unwrap().unwrap_err().reason();
        assert_eq!(reason, Some(Reason::INTERNAL_ERROR));

        let (answer, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        upload.send_reset(Reason::CANCEL);
        let ended = request.into_body().data().await.unwrap();
        assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
        let reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
        assert_eq!(reset.unwrap(), Reason::CANCEL);
        drop(answer);
    })
    .await;
}

#[tokio::test]
async fn a_carried_request_that_is_reset_is_a_502() {
    run(async |drain| {
        let (server, mut called) = server(100).await;
        let proxy = hop(server, Role::First, Protocol::Http1, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.headers()["l5d-orig-proto"], "HTTP/1.1");
        respond.send_reset(Reason::CANCEL);
        let answer = read_until(&mut client, END).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn streams_beyond_the_peers_limit_get_another_connection() {
    run(async |drain| {
        let (client, mut called) = setup(2, &drain).await;
        let mut open = Vec::new();
        for n in 0..7 {
            let mut client = client.clone().ready().await.unwrap();
            let (answer, _) = client.send_request(request(), true).unwrap();
            // None of the earlier ones has been answered.
            open.push((answer, called.recv().await.unwrap(), n));
        }
        for (answer, (_, mut respond), n) in open {
            let response = http::Response::builder().header("n", n).body(()).unwrap();
            respond.send_response(response, true).unwrap();
            assert_eq!(answer.await.unwrap().headers()["n"], n.to_string());
        }
    })
    .await;
}

/// With 200 streams on each, 4,000 clients that read slowly fill 20 connections.
#[tokio::test]
async fn requests_are_sent_while_twenty_connections_are_full() {
    run(async |drain| {
        let (client, mut called) = setup(2, &drain).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            let mut client = client.clone().ready().await.unwrap();
            let (answer, _) = client.send_request(request(), true).unwrap();
            held.push((answer, called.recv().await.unwrap()));
        }
        let mut client = client.ready().await.unwrap();
        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        respond.send_response(response(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        drop(held);
    })
    .await;
}

#[tokio::test]
async fn large_headers_pass_both_ways() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let name = HeaderName::from_static("large");
        let value = HeaderValue::try_from("x".repeat(100_000)).unwrap();
        let mut asked = request();
        asked.headers_mut().insert(name.clone(), value.clone());
        let (answer, _) = client.send_request(asked, true).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.headers()[&name].len(), value.len());
        let mut answered = response();
        answered.headers_mut().insert(name.clone(), value.clone());
        respond.send_response(answered, true).unwrap();
        assert_eq!(answer.await.unwrap().headers()[&name].len(), value.len());
    })
    .await;
}

#[tokio::test]
async fn a_server_that_goes_away_is_replaced() {
    run(async |drain| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            // One stream per connection, and then the announcement that there will be no more.
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let mut connection = h2::server::handshake(tcp).await.unwrap();
                    let Some(Ok((_, mut respond))) = connection.accept().await else {
                        return;
                    };
                    connection.graceful_shutdown();
                    respond.send_response(response(), true).unwrap();
                    while connection.accept().await.is_some() {}
                });
            }
        });
        let proxy = hop(addr, Role::Only, Protocol::Http2, &drain).await;
        let client = client(proxy).await;
        for _ in 0..50 {
            let mut client = client.clone().ready().await.unwrap();
            let (answer, _) = client.send_request(request(), true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 200);
        }
    })
    .await;
}
