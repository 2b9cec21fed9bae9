//! HTTP/1 beyond simple exchanges: invalid messages, early responses, trailers, connections that
//! end within a message.

mod closing;
mod interim;

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;

use super::client::SendError;
use super::*;
use crate::http::http1::{BodyLength, Connection};

const EMPTY: &str = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n\r\n";
const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n";

/// Starts hops in front of a listener, whose connections the test serves.
async fn setup(hops: usize, drain: &drain::Watch) -> (TcpStream, TcpListener) {
    let (listener, server) = listen().await;
    (connect(hops, server, drain).await, listener)
}

/// Sends a request, or its header section, and reads that on a new connection to the server.
async fn begin(client: &mut TcpStream, listener: &TcpListener, request: &str) -> TcpStream {
    send(client, request).await;
    let mut server = accept(listener).await;
    read_until(&mut server, END).await.unwrap();
    server
}

/// Reads until the peer closes or resets the connection.
async fn read_to_close(tcp: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _reset = tcp.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

/// The client gets the expected status, and the connection is closed after it.
fn check_rejected(status: u16, request: &str) {
    let shown: String = request.chars().take(100).collect();
    run(async |drain| {
        let (mut client, _listener) = setup(1, &drain).await;
        // The request that follows must not be answered.
        let _closed = client.write_all(format!("{request}{GET}").as_bytes()).await;
        let response = read_to_close(&mut client).await;
        let is_expected = response.starts_with(&format!("HTTP/1.1 {status} "))
            && response.contains("connection: close\r\n")
            && response.matches("HTTP/1.1").count() == 1;
        assert!(is_expected, "{status} {shown:?}: {response:?}");
    });
}

#[test]
fn requests_with_invalid_header_section_are_rejected_and_connection_closes() {
    for request in [
        "GET / HTTP/1.1\nhost: a\n\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: 1\r2\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
        "GET /#x HTTP/1.1\r\nhost: a\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ] {
        check_rejected(400, request);
    }
    for fields in [
        format!("x: {}\r\n", "a".repeat(300_000)),
        "x: 1\r\n".repeat(10_000),
    ] {
        check_rejected(431, &format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    }
    check_rejected(505, "GET / HTTP/3.0\r\nhost: a\r\n\r\n");
}

#[test]
fn requests_with_invalid_body_framing_are_rejected_and_connection_closes() {
    const CHUNKED: &str = "transfer-encoding: chunked";
    let post = |framing: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{body}")
    };
    let long = "x".repeat(20_000);
    for (framing, body) in [
        (&*format!("content-length: 1\r\n{CHUNKED}"), "0\r\n\r\n"),
        ("content-length: 1\r\ncontent-length: 1", "a"),
        ("content-length: 1\r\ncontent-length: 2", "ab"),
        ("content-length: +1", "a"),
        ("content-length: 99999999999999999999", "a"),
        ("transfer-encoding: chunked, identity", "0\r\n\r\n"),
        ("transfer-encoding:\x0bchunked", "0\r\n\r\n"),
        (CHUNKED, "x\r\n"),
        (CHUNKED, "5\nhello\r\n0\r\n\r\n"),
        (CHUNKED, "5\r\nhelloX0\r\n\r\n"),
        (CHUNKED, "ffffffffffffffff1\r\n"),
        (CHUNKED, "1;\x01\r\na\r\n0\r\n\r\n"),
        (CHUNKED, "0\r\nx : 1\r\n\r\n"),
        (CHUNKED, &format!("1;{long}")),
    ] {
        check_rejected(400, &post(framing, body));
    }
    check_rejected(431, &post(CHUNKED, &format!("0\r\nx: {long}")));
    check_rejected(501, &post("transfer-encoding: gzip, chunked", "0\r\n\r\n"));
}

#[test]
fn invalid_responses_become_502() {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}\r\n\r\n");
    for response in [
        ok("content-length: 1\r\ntransfer-encoding: chunked"),
        ok("content-length: 1\r\ncontent-length: 2"),
        ok("content-length: x"),
        ok("transfer-encoding: gzip"),
        ok("transfer-encoding: gzip, chunked"),
        ok("x : 1"),
        ok("x: 1\r\n 2"),
        ok("x: \0"),
        ok("x: 1\ny: 2"),
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
        "HTTP/2.0 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 20 OK\r\n\r\n".to_owned(),
        "SSH-2.0-OpenSSH_9\r\n\r\n".to_owned(),
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n".to_owned(),
        "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(33) + OK,
        "HTTP/1.1 103 Early Hints\r\ncontent-length: x\r\n\r\n".to_owned() + OK,
        ok("content-length: 0\r\ntransfer-encoding: chunked").replace("200 OK", "100 Continue")
            + OK,
        ok(&format!("x: {}", "x".repeat(300_000))),
        // No response, and incomplete headers.
        String::new(),
        "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
    ] {
        run(async |drain| {
            let (mut client, listener) = setup(1, &drain).await;
            let mut server = begin(&mut client, &listener, EMPTY).await;
            let _closed = server.write_all(response.as_bytes()).await;
            server.shutdown().await.unwrap();
            let got = read_to_close(&mut client).await;
            let got = got.replace("HTTP/1.1 103 Early Hints\r\n\r\n", "");
            let is_expected =
                got.starts_with("HTTP/1.1 502 ") && got.contains("connection: close\r\n");
            assert!(is_expected, "{response:.100?}: {got:?}");
        });
    }
}

fn ok_chunked(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}")
}

/// The client must be able to tell an incomplete body from a complete one.
#[test]
fn incomplete_response_body_aborts_client_connection() {
    let incomplete = ok_chunked("5\r\nhello\r\n");
    let invalid = ok_chunked("5\r\nhello\r\nx\r\n");
    for (response, request) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", GET),
        (&incomplete, GET),
        (&invalid, GET),
        (&invalid, "GET / HTTP/1.0\r\n\r\n"),
    ] {
        run(async |drain| {
            let (mut client, listener) = setup(1, &drain).await;
            let mut server = begin(&mut client, &listener, request).await;
            send(&mut server, response).await;
            server.shutdown().await.unwrap();
            let mut got = Vec::new();
            let end = client.read_to_end(&mut got).await;
            let got = String::from_utf8(got).unwrap();
            assert!(!got.ends_with("0\r\n\r\n"), "{got:?}");
            // Closing alone would be a proper end in HTTP/1.0.
            assert!(end.is_err() || !request.contains("1.0"), "{got:?}");
        });
    }
}

/// The server responds before it has read the request. The client gets the response, and keeps its
/// connection if the rest of the request is short.
#[test]
fn early_response_reaches_client() {
    for hops in [1, 2] {
        for (length, kept) in [(1_000, true), (10_000_000, false)] {
            run(async |drain| {
                let (mut client, listener) = setup(hops, &drain).await;
                let head =
                    format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n");
                let mut server = begin(&mut client, &listener, &head).await;
                let refusal = OK.replace("200 OK", "413 Content Too Large");
                send(&mut server, &refusal).await;
                let response = read_until(&mut client, "ok").await.unwrap();
                assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
                drop(server);
                let _closed = client.write_all(&vec![b'a'; length]).await;
                if kept {
                    send(&mut client, GET).await;
                    let mut server = accept(&listener).await;
                    let seen = read_until(&mut server, END).await.unwrap();
                    assert!(seen.ends_with(GET), "{hops} hops: {seen:?}");
                } else {
                    assert_eq!(read_to_close(&mut client).await, "", "{hops} hops");
                }
            });
        }
    }
}

/// A request is forwarded while the client does not read its response.
#[test]
fn unread_response_does_not_block_request() {
    const LENGTH: usize = 8_000_000;
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let mut server = begin(&mut client, &listener, CHUNKED).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        send(&mut server, &head).await;
        let (mut reads, mut writes) = server.into_split();
        let answering = tokio::task::spawn_local(async move {
            writes.write_all(&vec![b'b'; LENGTH]).await.unwrap();
            writes
        });
        for _ in 0..100 {
            send(&mut client, &format!("c350\r\n{}\r\n", "a".repeat(50_000))).await;
        }
        let mut seen = 0;
        while seen < 5_000_000 {
            let n = reads.read(&mut vec![0; 100_000]).await.unwrap();
            assert_ne!(n, 0);
            seen += n;
        }
        read_until(&mut client, END).await.unwrap();
        let mut body = vec![0; LENGTH];
        client.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|byte| *byte == b'b'));
        drop(answering.await.unwrap());
    });
}

#[test]
fn trailers_are_forwarded_in_both_directions() {
    let request = "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n";
    let response =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 2\r\n\r\n";
    check_unchanged(request, response);
}

#[test]
fn request_is_parsed_the_same_however_split() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let request = "POST /a HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        client.set_nodelay(true).unwrap();
        tokio::task::spawn_local(async move {
            let mut server = accept(&listener).await;
            for _ in 0..2 {
                let seen = read_until(&mut server, "0\r\n\r\n").await.unwrap();
                // Chunks may be split differently.
                let (head, body) = seen.split_once(END).unwrap();
                let data: String = body.split("\r\n").skip(1).step_by(2).collect();
                assert_eq!(head, request.split_once(END).unwrap().0);
                assert_eq!(data, "hello");
                send(&mut server, OK).await;
            }
        });
        for byte in request.bytes() {
            client.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        // Also when a request arrives with the last bytes of the previous one.
        send(&mut client, request).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    });
}

const HTTP10: &str = "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n";

#[test]
fn http10_keep_alive_connection_is_kept() {
    run(async |drain| {
        let (server, _requests) = scripted(END, OK, false).await;
        let mut client = connect(1, server, &drain).await;
        for _ in 0..2 {
            send(&mut client, HTTP10).await;
            let expected =
                "HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok";
            let response = read_until(&mut client, "ok").await.unwrap();
            assert_eq!(response, expected);
        }
    });
}

#[test]
fn http10_client_gets_body_without_length_until_close() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let mut server = begin(&mut client, &listener, HTTP10).await;
        send(&mut server, &ok_chunked("2\r\nok\r\n0\r\n\r\n")).await;
        let response = read_to_close(&mut client).await;
        assert_eq!(response, "HTTP/1.0 200 OK\r\n\r\nok");
    });
}

/// The server sends an unsolicited response on an idle connection.
#[test]
fn unsolicited_response_prevents_reuse() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let mut server = begin(&mut client, &listener, GET).await;
        let unsolicited = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
        send(&mut server, &format!("{OK}{unsolicited}")).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        let mut server = begin(&mut client, &listener, GET).await;
        send(&mut server, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    });
}

#[test]
fn client_disconnect_cancels_request() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let mut server = begin(&mut client, &listener, GET).await;
        client.set_zero_linger().unwrap();
        drop(client);
        let end = server.read(&mut [0]).await.unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

/// The paused clock advances when all tasks wait.
#[tokio::test(start_paused = true)]
async fn incomplete_headers_time_out_with_408() {
    let test = async {
        let (_drain, watch) = drain::channel();
        let (mut client, _listener) = setup(1, &watch).await;
        // Waiting for a request is not limited by the header timeout.
        tokio::time::sleep(Duration::from_secs(3000)).await;
        let began = tokio::time::Instant::now();
        send(&mut client, "GET / HTTP/1.1\r\nhost: w").await;
        let response = read_until(&mut client, END).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
        assert_eq!(began.elapsed().as_secs(), 30);
    };
    LocalSet::new().run_until(test).await;
}

#[test]
fn idle_connection_is_closed() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(200)),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let (server, _requests) = scripted(END, OK, false).await;
        let proxy = limited_hop(limits, &registry, server, Protocol::Http1, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        for _ in 0..3 {
            send(&mut client, GET).await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
        assert_eq!(read_to_close(&mut client).await, "");
    });
}

#[test]
fn rejected_requests_are_counted_by_reason() {
    run(async |drain| {
        let limits = HttpLimits {
            head_time: Duration::from_millis(200),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let (server, _requests) = scripted(END, OK, false).await;
        let proxy = limited_hop(limits, &registry, server, Protocol::Http1, &drain).await;
        let twice = "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n";
        for (request, status, reason) in [
            ("GET / HTTP/1.1\nhost: a\n\n", 400, "malformed"),
            (twice, 400, "framing"),
            ("GET / HTTP/3.0\r\n\r\n", 505, "version"),
            ("GET / HTTP/1.1\r\nhos", 408, "head_time"),
        ] {
            let mut client = TcpStream::connect(proxy).await.unwrap();
            send(&mut client, request).await;
            let response = read_to_close(&mut client).await;
            let line = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&line), "{request:?}: {response}");
            drop(client);
            let counted = format!("protocol=\"http/1\",reason=\"{reason}\"}} 1\n");
            // Counted when the proxy has noticed that the client disconnected.
            while !metrics(&registry).contains(&counted) {
                tokio::task::yield_now().await;
            }
        }
    });
}

/// Makes connections that the peer has already closed. They are Unix sockets, because the end of a
/// TCP connection is not visible immediately.
struct ClosedDial;

impl Dial for ClosedDial {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        here.set_nonblocking(true).unwrap();
        let here = std::net::TcpStream::from(OwnedFd::from(here));
        Ok(Io::plain(TcpStream::from_std(here).unwrap()))
    }
}

#[tokio::test]
async fn unwritten_request_is_returned_unchanged() {
    let request = || {
        let request = http::Request::get("http://web/a?b").header("host", "web");
        request.body(Body::empty()).unwrap()
    };
    let client = Client::new(ClosedDial, &params(LIMITS, Http2Params::default()));
    let mut sent = request();
    let error = client.send(&mut sent).await.unwrap_err();
    assert!(matches!(error, SendError::Dial(_)), "{error}");
    assert_eq!(sent.uri(), request().uri());
    assert_eq!(sent.headers(), request().headers());
}

/// One read returns ten thousand chunks, and the thread has other connections.
#[test]
fn decoding_small_chunks_yields_to_other_tasks() {
    const CHUNKS: usize = 10_000;
    run_local(async {
        let (listener, addr) = listen().await;
        let mut client = TcpStream::connect(addr).await.unwrap();
        let served = accept(&listener).await;
        let body = "1\r\nx\r\n".repeat(CHUNKS) + "0\r\n\r\n";
        send(&mut client, &body).await;
        let mut arrived = vec![0; body.len()];
        while served.peek(&mut arrived).await.unwrap() < body.len() {
            tokio::task::yield_now().await;
        }
        let connection = Connection::new(Io::plain(served), LIMITS.http1);
        let incoming = connection.begin_body(BodyLength::Chunked, false).unwrap();
        let turns = Rc::new(Cell::new(0));
        let other_turns = turns.clone();
        let others = tokio::task::spawn_local(async move {
            loop {
                other_turns.set(other_turns.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        let reading = tokio::task::spawn_local(async move {
            let before = turns.get();
            let mut length = 0;
            while let Some(frame) = poll_fn(|cx| incoming.poll_frame(cx)).await {
                length += frame.unwrap().data_ref().map_or(0, Bytes::len);
            }
            (length, turns.get() - before)
        });
        let (length, turns) = reading.await.unwrap();
        others.abort();
        assert_eq!(length, CHUNKS);
        assert!(turns >= CHUNKS / 4096, "{turns}");
    });
}
