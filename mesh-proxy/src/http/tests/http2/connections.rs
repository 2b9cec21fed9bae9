//! When connections to an endpoint are made, kept, replaced and closed.

use http_body_util::BodyExt as _;
use tokio::net::TcpSocket;

use super::*;

#[test]
fn streams_beyond_peer_limit_open_another_connection() {
    run(async |drain| {
        let (client, mut called) = setup(2, &drain).await;
        let mut pending = Vec::new();
        for n in 0..7 {
            let mut client = client.clone().ready().await.unwrap();
            // None of the earlier requests has a response yet.
            pending.push((open(&mut client, &mut called).await, n));
        }
        for ((response_future, mut respond), n) in pending {
            let response = http::Response::builder().header("n", n).body(()).unwrap();
            respond.send_response(response, true).unwrap();
            assert_eq!(response_future.await.unwrap().headers()["n"], n.to_string());
        }
    });
}

/// A handshake for each burst would cost more than the idle connections.
#[test]
fn surplus_connections_are_kept_for_idle_timeout() {
    run(async |drain| {
        let (listener, addr) = listen().await;
        let (calls, mut called) = mpsc::unbounded_channel();
        let (ends, mut ended) = mpsc::unbounded_channel();
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (calls, ends) = (calls.clone(), ends.clone());
                tokio::task::spawn_local(async move {
                    let mut server = h2::server::Builder::new();
                    server.max_concurrent_streams(4);
                    let mut connection = server.handshake(tcp).await.unwrap();
                    while let Some(Ok(call)) = connection.accept().await {
                        calls.send(call).unwrap();
                    }
                    ends.send(()).unwrap();
                });
            }
        });
        let proxy = hop(addr, Role::Only, Protocol::Http2, &drain).await;
        let client = client(proxy).await;
        for streams in [5, 1, 5] {
            let mut pending = Vec::new();
            for _ in 0..streams {
                let mut client = client.clone().ready().await.unwrap();
                pending.push(open(&mut client, &mut called).await);
            }
            for exchange in pending {
                complete(exchange).await;
            }
        }
        assert!(ended.try_recv().is_err(), "closed between bursts");

        tokio::time::pause();
        tokio::time::advance(IDLE_TIMEOUT).await;
        tokio::time::resume();
        let mut client = client.ready().await.unwrap();
        let exchange = open(&mut client, &mut called).await;
        ended.recv().await.unwrap();
        complete(exchange).await;
    });
}

/// With 200 streams on each, 4,000 clients that read slowly fill 20 connections.
#[test]
fn requests_are_sent_while_twenty_connections_are_full() {
    run(async |drain| {
        let (client, mut called) = setup(2, &drain).await;
        let mut held = Vec::new();
        for _ in 0..40 {
            let mut client = client.clone().ready().await.unwrap();
            held.push(open(&mut client, &mut called).await);
        }
        let mut client = client.ready().await.unwrap();
        complete(open(&mut client, &mut called).await).await;
        drop(held);
    });
}

/// The server has responded, and the client neither ends nor cancels its request.
async fn unfinished(
    client: &SendRequest<Bytes>,
    called: &mut mpsc::UnboundedReceiver<Call>,
) -> (h2::SendStream<Bytes>, RecvStream) {
    let mut client = client.clone().ready().await.unwrap();
    let (response_future, upload) = client.send_request(request(), false).unwrap();
    let (received, mut respond) = called.recv().await.unwrap();
    respond.send_response(response(), true).unwrap();
    let body = response_future.await.unwrap().into_body();
    assert!(body.is_end_stream());
    (upload, received.into_body())
}

#[test]
fn unfinished_uploads_do_not_block_requests() {
    run(async |drain| {
        let (client, mut called) = setup(2, &drain).await;
        let mut held = Vec::new();
        for _ in 0..6 {
            held.push(unfinished(&client, &mut called).await);
        }
        let mut client = client.ready().await.unwrap();
        complete(open(&mut client, &mut called).await).await;
        // They are not cut off either.
        for (upload, received) in &mut held {
            upload.send_data("more".into(), true).unwrap();
            assert_eq!(read(received).await.0, b"more");
        }
    });
}

/// The unread responses occupy more than half of the connection's window.
#[test]
fn unread_responses_do_not_block_other_requests() {
    const WINDOW: u32 = 4096;
    run(async |_drain| {
        let (server, mut called) = server(200).await;
        let params = Http2Params {
            stream_window: Some(WINDOW),
            ..Http2Params::default()
        };
        let client = client_to(server, HttpLimits::DEFAULT, params);
        tokio::task::spawn_local(async move {
            while let Some((_, mut respond)) = called.recv().await {
                let mut stream = respond.send_response(response(), false).unwrap();
                let body = vec![0; WINDOW as usize];
                stream.send_data(body.into(), true).unwrap();
            }
        });
        let send_request = async || {
            let request = http::Request::get("http://web/").version(Version::HTTP_2);
            let mut request = request.body(Body::empty()).unwrap();
            let response = Box::pin(client.send(&mut request)).await;
            response.unwrap().into_body()
        };
        let mut unread = Vec::new();
        for _ in 0..150 {
            unread.push(send_request().await);
        }
        for _ in 0..150 {
            let body = send_request().await.collect().await.unwrap();
            assert_eq!(body.to_bytes().len(), WINDOW as usize);
        }
    });
}

#[test]
fn goaway_opens_new_connection() {
    run(async |drain| {
        let (listener, addr) = listen().await;
        tokio::task::spawn_local(async move {
            // One stream per connection, followed by a GOAWAY.
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
            let (response_future, _) = client.send_request(request(), true).unwrap();
            assert_eq!(response_future.await.unwrap().status(), 200);
        }
    });
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Reads a frame, and returns its type and payload.
async fn read_frame(tcp: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 9];
    tcp.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let mut payload = vec![0; length as usize];
    tcp.read_exact(&mut payload).await.unwrap();
    (header[3], payload)
}

/// Reads frames up to one of this type, and returns its payload.
async fn skip_to(tcp: &mut TcpStream, kind: u8) -> Vec<u8> {
    loop {
        let (read, payload) = read_frame(tcp).await;
        if read == kind {
            return payload;
        }
    }
}

/// Also after the server's (RFC 9113, section 6.8).
#[test]
fn connection_that_is_given_up_ends_with_goaway() {
    run(async |drain| {
        let (listener, addr) = listen().await;
        let proxy = hop(addr, Role::Only, Protocol::Http2, &drain).await;
        let mut client = client(proxy).await;
        let (first, _) = client.send_request(request(), true).unwrap();
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.read_exact(&mut [0; 24]).await.unwrap();
        skip_to(&mut tcp, HEADERS).await;
        // SETTINGS, `:status: 200`, and a GOAWAY after it.
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let response = [0, 0, 1, HEADERS, 5, 0, 0, 0, 1, 0x88];
        let goaway = [0, 0, 8, GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let all = [&settings[..], &response, &goaway].concat();
        tcp.write_all(&all).await.unwrap();
        assert_eq!(first.await.unwrap().status(), 200);
        let mut client = client.ready().await.unwrap();
        let (_second, _) = client.send_request(request(), true).unwrap();
        skip_to(&mut tcp, GOAWAY).await;
        assert_eq!(tcp.read(&mut [0]).await.unwrap(), 0, "the last frame");
    });
}

/// The client sends WINDOW_UPDATE for what it reads, also when the proxy has written everything.
#[test]
fn slow_reader_receives_all_from_a_proxy_that_drains() {
    const BODY: usize = 2 << 20;
    /// SETTINGS_INITIAL_WINDOW_SIZE and WINDOW_UPDATE: more than the body.
    const WINDOWS: &[u8] =
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\x40\0\0\0\0\x04\x08\0\0\0\0\0\0\x40\0\0";
    /// `GET http://web/` on stream 1.
    const GET: &[u8] = b"\0\0\x08\x01\x05\0\0\0\x01\x82\x86\x84\x01\x03web";
    const ONE_BYTE: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01";
    let (drain, watch) = drain::channel();
    let test = async move {
        let (server, mut called) = server(100).await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &watch).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let mut tcp = socket.connect(proxy).await.unwrap();
        let hello = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", WINDOWS, GET].concat();
        tcp.write_all(&hello).await.unwrap();
        let (_, mut respond) = called.recv().await.unwrap();
        let mut download = respond.send_response(response(), false).unwrap();
        skip_to(&mut tcp, HEADERS).await;

        tokio::task::spawn_local(drain.drain(Duration::from_secs(60)));
        let payload = skip_to(&mut tcp, PING).await;
        let acknowledged = [b"\0\0\x08\x06\x01\0\0\0\0", &payload[..]].concat();
        tcp.write_all(&acknowledged).await.unwrap();
        download.send_data(vec![b'x'; BODY].into(), true).unwrap();
        let mut received = 0;
        while received < BODY {
            let (kind, payload) = read_frame(&mut tcp).await;
            if kind == DATA {
                received += payload.len();
                tcp.write_all(ONE_BYTE).await.unwrap();
            }
        }
        let left = tcp.read(&mut [0]).await.unwrap();
        assert_eq!(left, 0, "the proxy closes first");
    };
    run_local(test);
}

/// Servers that limit the age of connections cause this; the next request must not wait for a
/// handshake.
#[test]
fn used_connection_is_replaced_on_goaway_before_next_request() {
    let test = async |drain: drain::Watch| {
        let (listener, server) = listen().await;
        let proxy = hop(server, Role::Only, Protocol::Http2, &drain).await;
        let mut client = client(proxy).await;
        let (response_future, _) = client.send_request(request(), true).unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let mut connection = Box::pin(h2::server::handshake(tcp)).await.unwrap();
        let (_, respond) = connection.accept().await.unwrap().unwrap();
        connection.graceful_shutdown();
        let ends = Box::pin(async { while connection.accept().await.is_some() {} });
        let replaced = async {
            let (tcp, _) = listener.accept().await.unwrap();
            complete((response_future, respond)).await;
            tcp
        };
        let (tcp, ()) = tokio::join!(replaced, ends);
        // The next request uses the replacement.
        let (response_future, _) = client.send_request(request(), true).unwrap();
        let mut connection = Box::pin(h2::server::handshake(tcp)).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        respond.send_response(response(), true).unwrap();
        let ends = Box::pin(async { while connection.accept().await.is_some() {} });
        tokio::select! {
            answered = response_future => assert_eq!(answered.unwrap().status(), 200),
            () = ends => panic!("the connection has ended"),
        }
    };
    run(async |drain| Box::pin(test(drain)).await);
}

/// An endpoint whose node has failed neither responds nor closes connections.
#[test]
fn endpoint_that_acknowledges_no_pings_fails_requests() {
    run(async |_drain| {
        let (listener, addr) = listen().await;
        tokio::task::spawn_local(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let _open = h2::server::handshake(tcp).await.unwrap();
            std::future::pending::<()>().await;
        });
        let params = Http2Params {
            keep_alive: Some(KeepAlive {
                interval: Duration::from_millis(20),
                timeout: Duration::from_millis(20),
                while_idle: false,
            }),
            ..Http2Params::default()
        };
        let client = client_to(addr, HttpLimits::DEFAULT, params);
        let request = http::Request::get("http://web/").version(Version::HTTP_2);
        let mut request = request.body(Body::empty()).unwrap();
        let sent = Box::pin(client.send(&mut request)).await;
        assert!(matches!(sent, Err(SendError::Lost { .. })));
    });
}
