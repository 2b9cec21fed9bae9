//! HTTP/2 through the engine, with the `h2` crate at both ends.

mod connections;
mod interim;

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderName, HeaderValue};
use mesh_core::endpoint::KeepAlive;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::http::client::SendError;

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
        let reset = poll_fn(|cx| respond.poll_reset(cx)).await;
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
async fn large_headers_pass_both_ways() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let name = HeaderName::from_static("large");
        let value = HeaderValue::try_from("x".repeat(100_000)).unwrap();
        let asked = request_with("large", value.to_str().unwrap());
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
async fn connect_within_a_stream_becomes_a_tunnel() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let connect = http::Request::connect("web:443").body(()).unwrap();
        let (answer, mut upload) = client.send_request(connect, false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.method(), http::Method::CONNECT);
        assert_eq!(request.uri(), "web:443");
        let mut download = respond.send_response(response(), false).unwrap();
        let mut from_server = answer.await.unwrap().into_body();
        let mut from_client = request.into_body();

        for n in 0..3 {
            upload.send_data(format!("ping {n}").into(), false).unwrap();
            let ping = from_client.data().await.unwrap().unwrap();
            assert_eq!(ping, format!("ping {n}"));
            download.send_data("pong".into(), false).unwrap();
            assert_eq!(from_server.data().await.unwrap().unwrap(), "pong");
        }
        // The client has said everything; the server has not.
        upload.send_data(Bytes::new(), true).unwrap();
        assert_eq!(read(&mut from_client).await.0, b"");
        download.send_data("the end".into(), true).unwrap();
        assert_eq!(read(&mut from_server).await.0, b"the end");
    })
    .await;
}

#[tokio::test]
async fn a_request_goes_on_while_nobody_reads_its_response() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (answer, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        // More than all windows on the way hold.
        download
            .send_data(vec![b'x'; 1 << 20].into(), true)
            .unwrap();
        let mut answer = answer.await.unwrap().into_body();
        for _ in 0..100 {
            upload.send_data("more".into(), false).unwrap();
        }
        upload.send_data(Bytes::new(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await.0.len(), 400);
        assert_eq!(read(&mut answer).await.0.len(), 1 << 20);
    })
    .await;
}

#[tokio::test]
async fn a_response_that_nobody_reads_takes_two_windows_at_most() {
    const WINDOW: usize = 65_535;
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        let (sent, mut sending) = watch::channel(0);
        tokio::task::spawn_local(async move {
            loop {
                // No divisor of the window: what does not fit is not a whole frame.
                download.reserve_capacity(10_000);
                let room = poll_fn(|cx| download.poll_capacity(cx)).await;
                let bytes = Bytes::from(vec![0; room.unwrap().unwrap()]);
                sent.send_modify(|sent| *sent += bytes.len());
                download.send_data(bytes, false).unwrap();
            }
        });
        let _unread = answer.await.unwrap();
        // The client's window is full, and half of the proxy's: less is not worth telling the
        // server.
        sending
            .wait_for(|sent| *sent >= WINDOW * 3 / 2)
            .await
            .unwrap();
        // Behind whatever more the proxy would have asked the server for.
        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        respond.send_response(response(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
        assert!(*sending.borrow() <= 2 * WINDOW);
    })
    .await;
}

/// What a server hears when a client loses interest in a response, its request not being over.
#[tokio::test]
async fn a_response_that_is_given_up_ends_its_request() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (answer, upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let _download = respond.send_response(response(), false).unwrap();
        drop((answer.await.unwrap(), upload));
        let mut request = request.into_body();
        let ended = request.data().await.unwrap();
        assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
    })
    .await;
}

/// A response that is cut off must not pass for a whole one, however friendly the reason sounds.
#[tokio::test]
async fn a_response_that_is_cut_off_is_not_complete() {
    run(async |drain| {
        for (reason, length) in [(Reason::CANCEL, None), (Reason::NO_ERROR, Some("10"))] {
            let (mut client, mut called) = setup(100, &drain).await;
            let (answer, _) = client.send_request(request(), true).unwrap();
            let (_, mut respond) = called.recv().await.unwrap();
            let mut head = response();
            if let Some(length) = length {
                let length = HeaderValue::from_static(length);
                head.headers_mut().insert("content-length", length);
            }
            let mut download = respond.send_response(head, false).unwrap();
            download.send_data("half".into(), false).unwrap();
            let mut body = answer.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap(), "half");
            download.send_reset(reason);
            body.data().await.unwrap().unwrap_err();
        }
    })
    .await;
}

/// Its other streams have nothing to do with it, and no server has failed.
#[tokio::test]
async fn a_request_that_is_given_up_leaves_the_connection_alone() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        for _ in 0..20 {
            let (answer, mut upload) = client.send_request(request(), false).unwrap();
            let (given_up, respond) = called.recv().await.unwrap();
            upload.send_reset(Reason::CANCEL);
            let ended = given_up.into_body().data().await.unwrap();
            assert_eq!(ended.unwrap_err().reason(), Some(Reason::CANCEL));
            drop((answer, respond));
        }
        let (answer, _) = client.send_request(request(), true).unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        respond.send_response(response(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
    })
    .await;
}

/// A server may have answered before it has read everything, and then wants no more.
#[tokio::test]
async fn an_early_response_arrives_whole() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let (answer, mut upload) = client.send_request(request(), false).unwrap();
        upload.send_data("some".into(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        download.send_data("enough".into(), true).unwrap();
        // h2 resets with NO_ERROR when nobody holds the stream any more.
        drop((request, respond, download));
        assert_eq!(
            read(&mut answer.await.unwrap().into_body()).await.0,
            b"enough"
        );
    })
    .await;
}

#[tokio::test]
async fn lengths_that_contradict_each_other_are_refused() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        let mut two = request();
        for length in ["5", "0"] {
            let length = HeaderValue::from_static(length);
            two.headers_mut().append("content-length", length);
        }
        let (answer, mut upload) = client.send_request(two, false).unwrap();
        upload.send_data("12345".into(), true).unwrap();
        let refused = answer.await.unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::PROTOCOL_ERROR));
        assert!(called.try_recv().is_err());
    })
    .await;
}

/// A byte at a time, as servers do that flush after each: h2 would end the connection on which
/// 25,000 such frames wait to be read.
#[tokio::test]
async fn many_small_pieces_arrive() {
    const PIECES: usize = 40_000;
    run(async |drain| {
        let body = "1\r\nx\r\n".repeat(PIECES) + "0\r\n\r\n";
        let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}");
        let (server, _sees) = scripted(END, answer.leak(), true).await;
        let second = hop(server, Role::Second, Protocol::Http2, &drain).await;
        let first = hop(second, Role::First, Protocol::Http1, &drain).await;
        let mut client = TcpStream::connect(first).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).await.unwrap();
        let pieces = response.matches('x').count();
        assert_eq!(pieces, PIECES);
        assert!(response.ends_with("0\r\n\r\n"));
    })
    .await;
}

/// What an idle connection costs besides the socket and the handler.
#[tokio::test]
async fn idle_connections_are_small() {
    run(async |drain| {
        let registry = Registry::new();
        let engine = Server::for_tests(drain.clone(), HttpLimits::DEFAULT, &registry);
        let (addr, _called) = server(1).await;
        let io = Io::plain(TcpStream::connect(addr).await.unwrap());
        struct Nobody;
        impl Handle for Nobody {
            async fn handle(&self, _request: &mut Request) -> Result<Response, Reset> {
                unreachable!("no request is made")
            }
        }
        let terms = engine.http2_terms(Rc::new(Nobody), drain);
        let task = size_of_val(&crate::http::http2::server::serve(io, terms));
        assert!(task <= 700, "{task}");
        let connection = size_of::<mesh_http2::Connection>();
        assert!(connection <= 800, "{connection}");
    })
    .await;
}

#[tokio::test]
async fn the_drain_ends_connections_when_their_streams_have_ended() {
    let (drain, watch) = drain::channel();
    let test = async move {
        let (server, mut called) = server(100).await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &watch).await;
        let tcp = TcpStream::connect(proxy).await.unwrap();
        let (mut client, connection) = h2::client::handshake(tcp).await.unwrap();
        let connection = tokio::task::spawn_local(connection);
        let (answer, mut upload) = client.send_request(request(), false).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));

        // The end has been announced when no more streams may be opened.
        let refused = loop {
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(error) => break error,
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(refused.reason(), Some(Reason::NO_ERROR));
        // Both bodies of the stream that is open go on to their end.
        upload.send_data("more".into(), true).unwrap();
        assert_eq!(read(&mut request.into_body()).await.0, b"more");
        let mut download = respond.send_response(response(), false).unwrap();
        let mut body = answer.await.unwrap().into_body();
        download.send_data("to the end".into(), true).unwrap();
        assert_eq!(read(&mut body).await.0, b"to the end");
        drop(body);
        connection.await.unwrap().unwrap();
    };
    run_local(test).await;
}

#[tokio::test]
async fn a_request_without_authority_goes_where_it_was_sent() {
    run(async |drain| {
        let (mut client, mut called) = setup(100, &drain).await;
        // Of this version, h2 lets it pass without.
        let path = http::Request::get("/path").version(Version::HTTP_11);
        let (answer, _) = client.send_request(path.body(()).unwrap(), true).unwrap();
        let (request, mut respond) = called.recv().await.unwrap();
        assert_eq!(request.uri(), "http://192.0.2.1/path");
        respond.send_response(response(), true).unwrap();
        assert_eq!(answer.await.unwrap().status(), 200);
    })
    .await;
}
