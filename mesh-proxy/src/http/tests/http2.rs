//! HTTP/2 through the engine, with the `h2` crate as client and server.

mod connections;
mod interim;
mod unread;

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue};
use mesh_core::endpoint::KeepAlive;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::config::{ClientTrust, DEFAULT_STREAM_WINDOW};
use crate::http::client::SendError;

/// One stream that the server has accepted.
type Call = (http::Request<RecvStream>, SendResponse<Bytes>);

/// Starts a server that passes every stream to the test.
async fn server(max_streams: u32) -> (SocketAddr, mpsc::UnboundedReceiver<Call>) {
    let (listener, addr) = listen().await;
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
                    // The test may have ended.
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

/// Returns an HTTP/2 client behind one hop, and the streams of a server that allows `max_streams`
/// at a time.
async fn setup(
    max_streams: u32,
    drain: &drain::Watch,
) -> (SendRequest<Bytes>, mpsc::UnboundedReceiver<Call>) {
    let (server, called) = server(max_streams).await;
    let proxy = hop(server, Role::Only, Protocol::Http2, drain).await;
    (client(proxy).await, called)
}

/// Both ends of a request that waits for its response.
type Open = (ResponseFuture, SendResponse<Bytes>);

/// Sends a request without a body, which the server accepts.
async fn open(client: &mut SendRequest<Bytes>, called: &mut mpsc::UnboundedReceiver<Call>) -> Open {
    let (response_future, _) = client.send_request(request(), true).unwrap();
    (response_future, called.recv().await.unwrap().1)
}

async fn complete((response_future, mut respond): Open) {
    respond.send_response(response(), true).unwrap();
    assert_eq!(response_future.await.unwrap().status(), 200);
}

/// The error code of the peer's reset of the body.
async fn reset_of(body: &mut RecvStream) -> Option<Reason> {
    body.data().await.unwrap().unwrap_err().reason()
}

fn request() -> http::Request<()> {
    http::Request::post("http://web/service/method")
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn request_with(name: &'static str, value: &str) -> http::Request<()> {
    let mut request = request();
    let value = HeaderValue::from_str(value).unwrap();
    request.headers_mut().insert(name, value);
    request
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

#[test]
fn trailers_are_forwarded_in_both_directions() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (response_future, mut upload) = client.send_request(request(), false).unwrap();
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
        let (bytes, trailers) = read(&mut response_future.await.unwrap().into_body()).await;
        assert_eq!(bytes, b"reply");
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
    });
}

#[test]
fn mesh_headers_in_trailers_of_a_client_do_not_reach_the_server() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (_response, mut upload) = client.send_request(request(), false).unwrap();
        let names = ["l5d-client-id", "checksum", "l5d-orig-proto", "l5d-other"];
        let fields = names.map(|name| (name.parse().unwrap(), HeaderValue::from_static("1")));
        upload.send_trailers(HeaderMap::from_iter(fields)).unwrap();
        let (request, _respond) = called.recv().await.unwrap();
        let (_, trailers) = read(&mut request.into_body()).await;
        let trailers = trailers.unwrap();
        let received: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
        assert_eq!(received, ["checksum"]);
    });
}

#[test]
fn resets_are_forwarded_in_both_directions() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        // Before the response, and within it.
        let (response_future, mut respond) = open(&mut client, &mut called).await;
        respond.send_reset(Reason::ENHANCE_YOUR_CALM);
        let reason = response_future.await.unwrap_err().reason();
        assert_eq!(reason, Some(Reason::ENHANCE_YOUR_CALM));

        let (response_future, mut respond) = open(&mut client, &mut called).await;
        let mut download = respond.send_response(response(), false).unwrap();
        let mut body = response_future.await.unwrap().into_body();
        download.send_reset(Reason::INTERNAL_ERROR);
        assert_eq!(reset_of(&mut body).await, Some(Reason::INTERNAL_ERROR));

        let (response_future, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        upload.send_reset(Reason::CANCEL);
        let reason = reset_of(&mut request.into_body()).await;
        assert_eq!(reason, Some(Reason::CANCEL));
        let reset = poll_fn(|cx| respond.poll_reset(cx)).await;
        assert_eq!(reset.unwrap(), Reason::CANCEL);
        drop(response_future);
    });
}

#[test]
fn reset_of_upgraded_request_becomes_502() {
    run(async |drain| {
        let (server, mut called) = server(100).await;
        let proxy = hop(server, Role::First, Protocol::Http1, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        send(&mut client, GET).await;
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.headers()["l5d-orig-proto"], "HTTP/1.1");
        respond.send_reset(Reason::CANCEL);
        let response = read_until(&mut client, END).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    });
}

#[test]
fn large_headers_are_forwarded_in_both_directions() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let value = HeaderValue::try_from("x".repeat(100_000)).unwrap();
        let large = request_with("large", value.to_str().unwrap());
        let (response_future, _) = client.send_request(large, true).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.headers()["large"], value);
        let mut large = response();
        large.headers_mut().insert("large", value.clone());
        respond.send_response(large, true).unwrap();
        assert_eq!(response_future.await.unwrap().headers()["large"], value);
    });
}

#[test]
fn connect_on_stream_becomes_tunnel() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let connect = http::Request::connect("web:443").body(()).unwrap();
        let (response_future, mut upload) = client.send_request(connect, false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.method(), http::Method::CONNECT);
        assert_eq!(request.uri(), "web:443");
        let mut download = respond.send_response(response(), false).unwrap();
        let mut from_server = response_future.await.unwrap().into_body();
        let mut from_client = request.into_body();

        for n in 0..3 {
            upload.send_data(format!("ping {n}").into(), false).unwrap();
            let ping = from_client.data().await.unwrap().unwrap();
            assert_eq!(ping, format!("ping {n}"));
            download.send_data("pong".into(), false).unwrap();
            assert_eq!(from_server.data().await.unwrap().unwrap(), "pong");
        }
        // The client closes its half; the server does not.
        upload.send_data(Bytes::new(), true).unwrap();
        assert_eq!(read(&mut from_client).await.0, b"");
        download.send_data("the end".into(), true).unwrap();
        assert_eq!(read(&mut from_server).await.0, b"the end");
    });
}

#[test]
fn unread_response_does_not_block_request() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (response_future, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        // More than all windows on the path hold.
        let body = vec![b'x'; 1 << 20];
        download.send_data(body.into(), true).unwrap();
        let mut body = response_future.await.unwrap().into_body();
        for _ in 0..100 {
            upload.send_data("more".into(), false).unwrap();
        }
        upload.send_data(Bytes::new(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await.0.len(), 400);
        assert_eq!(read(&mut body).await.0.len(), 1 << 20);
    });
}

#[test]
fn unread_response_occupies_at_most_two_windows() {
    const CLIENT_WINDOW: usize = mesh_http2::DEFAULT_WINDOW as usize;
    const PROXY_WINDOW: usize = DEFAULT_STREAM_WINDOW as usize;
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (response_future, mut respond) = open(&mut client, &mut called).await;
        let mut download = respond.send_response(response(), false).unwrap();
        let (sent, mut sending) = watch::channel(0);
        tokio::task::spawn_local(async move {
            loop {
                // Not a divisor of the window, so the last frame before it is full is smaller.
                download.reserve_capacity(10_000);
                let capacity = poll_fn(|cx| download.poll_capacity(cx)).await;
                let bytes = Bytes::from(vec![0; capacity.unwrap().unwrap()]);
                sent.send_modify(|sent| *sent += bytes.len());
                download.send_data(bytes, false).unwrap();
            }
        });
        let _unread = response_future.await.unwrap();
        // The client's window is full, and half of the proxy's: the proxy sends no WINDOW_UPDATE
        // for less.
        let is_full = |sent: &usize| *sent >= CLIENT_WINDOW + PROXY_WINDOW / 2;
        sending.wait_for(is_full).await.unwrap();
        // This exchange completes after any further WINDOW_UPDATE of the proxy.
        complete(open(&mut client, &mut called).await).await;
        assert!(*sending.borrow() <= CLIENT_WINDOW + PROXY_WINDOW);
    });
}

/// The client cancels the response before its request has ended.
#[test]
fn cancelled_response_resets_request() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (response_future, upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let _download = respond.send_response(response(), false).unwrap();
        drop((response_future.await.unwrap(), upload));
        let reason = reset_of(&mut request.into_body()).await;
        assert_eq!(reason, Some(Reason::CANCEL));
    });
}

/// A truncated response must not count as complete, whatever the error code.
#[test]
fn truncated_response_is_an_error() {
    run(async |drain| {
        for (reason, length) in [
            (Reason::CANCEL, None),
            (Reason::NO_ERROR, Some("10")),
            (Reason::NO_ERROR, None),
        ] {
            let (mut client, mut called) = setup(100, &drain).await;
            let (response_future, mut respond) = open(&mut client, &mut called).await;
            let mut partial = response();
            if let Some(length) = length {
                let length = HeaderValue::from_static(length);
                partial.headers_mut().insert("content-length", length);
            }
            let mut download = respond.send_response(partial, false).unwrap();
            download.send_data("half".into(), false).unwrap();
            let mut body = response_future.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "half");
            download.send_reset(reason);
            body.data().await.unwrap().unwrap_err();
        }
    });
}

/// Neither other streams nor the endpoint are affected.
#[test]
fn cancelled_requests_do_not_affect_connection() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        for _ in 0..20 {
            let (response_future, mut upload) = client.send_request(request(), false).unwrap();
            let (cancelled, respond) = called.recv().await.unwrap();
            upload.send_reset(Reason::CANCEL);
            let reason = reset_of(&mut cancelled.into_body()).await;
            assert_eq!(reason, Some(Reason::CANCEL));
            drop((response_future, respond));
        }
        complete(open(&mut client, &mut called).await).await;
    });
}

/// The server responds before it has read the request, and does not want the rest.
#[test]
fn early_response_is_complete() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (response_future, mut upload) = client.send_request(request(), false).unwrap();
        upload.send_data("some".into(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        download.send_data("enough".into(), true).unwrap();
        // h2 resets the stream with NO_ERROR when all handles are dropped.
        drop((request, respond, download));
        let mut body = response_future.await.unwrap().into_body();
        assert_eq!(read(&mut body).await.0, b"enough");
    });
}

#[test]
fn contradictory_content_lengths_are_rejected() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let mut two = request();
        for length in ["5", "0"] {
            let length = HeaderValue::from_static(length);
            two.headers_mut().append("content-length", length);
        }
        let (response_future, mut upload) = client.send_request(two, false).unwrap();
        upload.send_data("12345".into(), true).unwrap();
        let refused = response_future.await.unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::PROTOCOL_ERROR));
        assert!(called.try_recv().is_err());
    });
}

/// Frames of one byte, as servers send that flush after each byte: h2 would close a connection with
/// 25,000 such frames that wait to be read.
#[test]
fn many_small_chunks_are_forwarded() {
    const CHUNKS: usize = 40_000;
    run(async |drain| {
        let body = "1\r\nx\r\n".repeat(CHUNKS) + "0\r\n\r\n";
        let response = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
        let (server, _sees) = scripted(END, response.leak(), true).await;
        let mut client = connect(2, server, &drain).await;
        let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        send(&mut client, request).await;
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        assert_eq!(response.matches('x').count(), CHUNKS);
        assert!(response.ends_with("0\r\n\r\n"));
    });
}

/// The size of an idle connection besides the socket and the handler.
#[test]
fn idle_connection_future_is_small() {
    run(async |drain| {
        let registry = Registry::new();
        let engine = engine(drain.clone(), HttpLimits::DEFAULT, &registry);
        let (addr, _called) = server(1).await;
        let io = Io::plain(TcpStream::connect(addr).await.unwrap());
        struct NoRequests;
        impl HttpHandler for NoRequests {
            async fn handle(&self, _request: &mut Request) -> Result<Response, Reset> {
                unreachable!("no request is made")
            }
        }
        let terms = engine.http2_config(Rc::new(NoRequests), ClientTrust::Known, drain);
        let task = size_of_val(&crate::http::http2::server::serve(io, terms));
        assert!(task <= 712, "{task}");
        let connection = size_of::<mesh_http2::Connection>();
        assert!(connection <= 856, "{connection}");
    });
}

#[test]
fn drain_closes_connection_after_open_streams() {
    let (drain, watch) = drain::channel();
    let test = async move {
        let (server, mut called) = server(100).await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &watch).await;
        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (mut client, connection) = h2::client::handshake(tcp).await.unwrap();
        let connection = tokio::task::spawn_local(connection);
        let (response_future, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));

        // The client has received the GOAWAY when it cannot open streams any more.
        let refused = loop {
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(error) => break error,
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(refused.reason(), Some(Reason::NO_ERROR));
        // Both bodies of the open stream continue.
        upload.send_data("more".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await.0, b"more");
        let mut download = respond.send_response(response(), false).unwrap();
        let mut body = response_future.await.unwrap().into_body();
        download.send_data("to the end".into(), true).unwrap();
        assert_eq!(read(&mut body).await.0, b"to the end");
        drop(body);
        connection.await.unwrap().unwrap();
    };
    run_local(test);
}

#[test]
fn request_without_authority_is_sent_to_original_destination() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        // h2 allows this version without an authority.
        let path = http::Request::get("/path").version(Version::HTTP_11);
        let (response_future, _) = client.send_request(path.body(()).unwrap(), true).unwrap();
        let (request, respond) = called.recv().await.unwrap();
        assert_eq!(request.uri(), "http://192.0.2.1/path");
        complete((response_future, respond)).await;
    });
}
