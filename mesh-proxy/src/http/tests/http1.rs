//! HTTP/1 where it is more than a request and a response: hostile messages, early responses,
//! trailers, connections that end in the middle.

mod interim;

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;

use super::client::SendError;
use super::*;
use crate::http::http1::{BodyLength, Connection};

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n";

/// One hop in front of a server that the test plays.
async fn setup(hops: usize, drain: &drain::Watch) -> (TcpStream, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = chain(hops, listener.local_addr().unwrap(), drain).await;
    (TcpStream::connect(proxy).await.unwrap(), listener)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}

async fn send(tcp: &mut TcpStream, text: &str) {
    tcp.write_all(text.as_bytes()).await.unwrap();
}

/// What comes until the other side closes. A reset ends it too.
async fn rest(tcp: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _reset = tcp.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

/// A status line, and that the connection is closed behind the answer.
#[tokio::test]
async fn hostile_requests_are_refused_and_the_connection_is_closed() {
    let long = |n: usize| format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(n));
    let many = |n: usize| format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: 1\r\n".repeat(n));
    let (huge, many) = (long(300_000), many(10_000));
    let body = |framing: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n{body}")
    };
    let rows: Vec<(String, u16)> = [
        ("GET / HTTP/1.1\nhost: a\n\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: 1\r2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nhost: a\r\n\r\n", 505),
        ("GET /#x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("\x16\x03\x01\x02\r\n\r\n", 400),
        (&huge, 431),
        (&many, 431),
    ]
    .into_iter()
    .map(|(text, status)| (text.to_owned(), status))
    .chain([
        (
            body(
                "content-length: 1\r\ntransfer-encoding: chunked",
                "0\r\n\r\n",
            ),
            400,
        ),
        (body("content-length: 1\r\ncontent-length: 1", "a"), 400),
        (body("content-length: 1\r\ncontent-length: 2", "ab"), 400),
        (body("content-length: +1", "a"), 400),
        (body("content-length: 99999999999999999999", "a"), 400),
        (body("transfer-encoding: gzip, chunked", "0\r\n\r\n"), 501),
        (
            body("transfer-encoding: chunked, identity", "0\r\n\r\n"),
            400,
        ),
        (body("transfer-encoding:\x0bchunked", "0\r\n\r\n"), 400),
        (body("transfer-encoding: chunked", "x\r\n"), 400),
        (
            body("transfer-encoding: chunked", "5\nhello\r\n0\r\n\r\n"),
            400,
        ),
        (
            body("transfer-encoding: chunked", "5\r\nhelloX0\r\n\r\n"),
            400,
        ),
        (
            body("transfer-encoding: chunked", "ffffffffffffffff1\r\n"),
            400,
        ),
        (
            body("transfer-encoding: chunked", "1;\x01\r\na\r\n0\r\n\r\n"),
            400,
        ),
        (
            body("transfer-encoding: chunked", "0\r\nx : 1\r\n\r\n"),
            400,
        ),
        (
            body(
                "transfer-encoding: chunked",
                &format!("1;{}", "x".repeat(20_000)),
            ),
            400,
        ),
        (
            body(
                "transfer-encoding: chunked",
                &format!("0\r\nx: {}", "x".repeat(20_000)),
            ),
            431,
        ),
    ])
    .collect();
    for (request, status) in rows {
        let shown: String = request.chars().take(100).collect();
        run(async |drain| {
            let (mut client, _listener) = setup(1, &drain).await;
            // What follows must not be answered.
            let _closed = client.write_all(format!("{request}{GET}").as_bytes()).await;
            let answer = rest(&mut client).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{shown:?}: {answer:?}"
            );
            assert!(
                answer.contains("connection: close\r\n"),
                "{shown:?}: {answer:?}"
            );
            assert_eq!(
                answer.matches("HTTP/1.1").count(),
                1,
                "{shown:?}: {answer:?}"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn hostile_responses_become_502() {
    let ok = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}\r\n\r\n");
    for answer in [
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
        "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100),
        "HTTP/1.1 103 Early Hints\r\ncontent-length: x\r\n\r\n".to_owned() + OK,
        "HTTP/1.1 100 Continue\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_owned()
            + OK,
        ok(&format!("x: {}", "x".repeat(300_000))),
        // Nothing but a closed connection, and half a head.
        String::new(),
        "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
    ] {
        run(async |drain| {
            let (mut client, listener) = setup(1, &drain).await;
            send(
                &mut client,
                "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 0\r\n\r\n",
            )
            .await;
            let mut server = accept(&listener).await;
            read_until(&mut server, END).await.unwrap();
            let _closed = server.write_all(answer.as_bytes()).await;
            server.shutdown().await.unwrap();
            let got = rest(&mut client).await;
            let got = got.replace("HTTP/1.1 103 Early Hints\r\n\r\n", "");
            assert!(got.starts_with("HTTP/1.1 502 "), "{answer:.100?}: {got:?}");
            assert!(
                got.contains("connection: close\r\n"),
                "{answer:.100?}: {got:?}"
            );
        })
        .await;
    }
}

/// The client cannot take a body that ended too early for a whole one.
#[tokio::test]
async fn broken_response_bodies_break_the_connection() {
    for (answer, request) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", GET),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            GET,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n",
            GET,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nx\r\n",
            "GET / HTTP/1.0\r\n\r\n",
        ),
    ] {
        run(async |drain| {
            let (mut client, listener) = setup(1, &drain).await;
            send(&mut client, request).await;
            let mut server = accept(&listener).await;
            read_until(&mut server, END).await.unwrap();
            send(&mut server, answer).await;
            server.shutdown().await.unwrap();
            let mut got = Vec::new();
            let end = client.read_to_end(&mut got).await;
            let got = String::from_utf8(got).unwrap();
            assert!(!got.ends_with("0\r\n\r\n"), "{got:?}");
            // Closing alone would be a proper end in HTTP/1.0.
            assert!(end.is_err() || !request.contains("1.0"), "{got:?}");
        })
        .await;
    }
}

/// The server answers before it has read the request: the client gets the answer, and a short rest
/// of the request costs no connection.
#[tokio::test]
async fn early_responses_arrive() {
    for hops in [1, 2] {
        for (length, kept) in [(1_000, true), (10_000_000, false)] {
            run(async |drain| {
                let (mut client, listener) = setup(hops, &drain).await;
                let head =
                    format!("POST / HTTP/1.1\r\nhost: web\r\ncontent-length: {length}\r\n\r\n");
                send(&mut client, &head).await;
                let mut server = accept(&listener).await;
                read_until(&mut server, END).await.unwrap();
                send(
                    &mut server,
                    "HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nok",
                )
                .await;
                let answer = read_until(&mut client, "ok").await.unwrap();
                assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
                drop(server);
                let _closed = client.write_all(&vec![b'a'; length]).await;
                if kept {
                    send(&mut client, GET).await;
                    let mut server = accept(&listener).await;
                    let seen = read_until(&mut server, END).await.unwrap();
                    assert!(seen.ends_with(GET), "{hops} hops: {seen:?}");
                } else {
                    assert_eq!(rest(&mut client).await, "", "{hops} hops");
                }
            })
            .await;
        }
    }
}

/// Both directions move on their own: a client that does not read yet still gets its request
/// through.
#[tokio::test]
async fn a_response_that_nobody_reads_does_not_hold_up_the_request() {
    const LENGTH: usize = 8_000_000;
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        send(&mut client, CHUNKED).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
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
    })
    .await;
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let request = "POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n";
    let answer =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 2\r\n\r\n";
    Case {
        request,
        until: "x-sum: 1\r\n\r\n",
        sees: request,
        answer,
        gets: answer,
    }
    .check()
    .await;
}

#[tokio::test]
async fn any_cut_is_the_same_request() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        let request = "POST /a HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        client.set_nodelay(true).unwrap();
        tokio::task::spawn_local(async move {
            let mut server = accept(&listener).await;
            for _ in 0..2 {
                let seen = read_until(&mut server, "0\r\n\r\n").await.unwrap();
                // Chunks may be cut anew.
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
        // And with a request that follows in the same bytes as the end of one.
        send(&mut client, request).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    })
    .await;
}

#[tokio::test]
async fn http10_clients_may_keep_their_connection() {
    run(async |drain| {
        let (server, _sees) = scripted(END, OK, false).await;
        let proxy = chain(1, server, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        for _ in 0..2 {
            send(
                &mut client,
                "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
            )
            .await;
            let answer = read_until(&mut client, "ok").await.unwrap();
            assert_eq!(
                answer,
                "HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn http10_clients_see_the_end_of_a_body_without_length() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        send(
            &mut client,
            "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        )
        .await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        send(
            &mut server,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        )
        .await;
        assert_eq!(rest(&mut client).await, "HTTP/1.0 200 OK\r\n\r\nok");
    })
    .await;
}

/// An idle connection on which the server says something unasked is not used again.
#[tokio::test]
async fn responses_without_a_request_are_nobodys() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        send(
            &mut server,
            &format!("{OK}HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"),
        )
        .await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        send(&mut server, OK).await;
        assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_is_gone_ends_its_request() {
    run(async |drain| {
        let (mut client, listener) = setup(1, &drain).await;
        send(&mut client, GET).await;
        let mut server = accept(&listener).await;
        read_until(&mut server, END).await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    })
    .await;
}

/// Time stands still, except where everybody waits for it.
#[tokio::test(start_paused = true)]
async fn slow_heads_are_given_up() {
    let test = async {
        let (_drain, watch) = drain::channel();
        let (mut client, _listener) = setup(1, &watch).await;
        // Waiting for a request takes as long as it takes, nearly.
        tokio::time::sleep(Duration::from_secs(3000)).await;
        let began = tokio::time::Instant::now();
        send(&mut client, "GET / HTTP/1.1\r\nhost: w").await;
        let answer = read_until(&mut client, END).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert_eq!(began.elapsed().as_secs(), 30);
    };
    LocalSet::new().run_until(test).await;
}

/// A proxy with these limits in front of `server`.
async fn limited(
    server: SocketAddr,
    limits: HttpLimits,
    registry: &Registry,
    drain: &drain::Watch,
) -> SocketAddr {
    let (role, protocol) = (Role::Only, Protocol::Http1);
    hop_with(limits, registry, server, role, protocol, drain).await
}

#[tokio::test]
async fn a_connection_that_stays_idle_is_closed() {
    run(async |drain| {
        let limits = HttpLimits {
            idle: Some(Duration::from_millis(200)),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let (server, _sees) = scripted(END, OK, false).await;
        let proxy = limited(server, limits, &registry, &drain).await;
        let mut client = TcpStream::connect(proxy).await.unwrap();
        for _ in 0..3 {
            send(&mut client, GET).await;
            assert_eq!(read_until(&mut client, "ok").await.unwrap(), OK);
        }
        assert_eq!(rest(&mut client).await, "");
    })
    .await;
}

#[tokio::test]
async fn what_is_refused_is_counted() {
    run(async |drain| {
        let limits = HttpLimits {
            head_time: Duration::from_millis(200),
            ..HttpLimits::DEFAULT
        };
        let registry = Registry::new();
        let (server, _sees) = scripted(END, OK, false).await;
        let proxy = limited(server, limits, &registry, &drain).await;
        for (request, status, reason) in [
            ("GET / HTTP/1.1\nhost: a\n\n", 400, "malformed"),
            (
                "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
                400,
                "framing",
            ),
            ("GET / HTTP/3.0\r\n\r\n", 505, "version"),
            ("GET / HTTP/1.1\r\nhos", 408, "head_time"),
        ] {
            let mut client = TcpStream::connect(proxy).await.unwrap();
            send(&mut client, request).await;
            let answer = rest(&mut client).await;
            let line = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&line), "{request:?}: {answer}");
            drop(client);
            let counted = format!("protocol=\"http/1\",reason=\"{reason}\"}} 1\n");
            // Once the proxy has noticed that the client is gone.
            while !String::from_utf8(registry.encode())
                .unwrap()
                .contains(&counted)
            {
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
}

/// Its connections were closed by the other side before anybody looked at them. They are no TCP,
/// whose ends learn of each other in their own time.
struct Gone;

impl Dial for Gone {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        here.set_nonblocking(true).unwrap();
        let here = std::net::TcpStream::from(OwnedFd::from(here));
        Ok(Io::plain(TcpStream::from_std(here).unwrap()))
    }
}

#[tokio::test]
async fn a_request_that_could_not_be_written_can_be_sent_elsewhere() {
    let request = || {
        let request = http::Request::get("http://web/a?b").header("host", "web");
        request.body(Body::empty()).unwrap()
    };
    let client = Client::new(Gone, &params(LIMITS, Http2Params::default()));
    let mut sent = request();
    let error = client.send(&mut sent).await.expect_err("nobody is there");
    assert!(matches!(error, SendError::Dial(_)), "{error}");
    assert_eq!(sent.uri(), request().uri());
    assert_eq!(sent.headers(), request().headers());
}

/// One read brings ten thousand of them, and the thread has other connections.
#[tokio::test]
async fn other_tasks_run_while_small_chunks_are_processed() {
    const CHUNKS: usize = 10_000;
    run_local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
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
        let of_others = turns.clone();
        let others = tokio::task::spawn_local(async move {
            loop {
                of_others.set(of_others.get() + 1);
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
    })
    .await;
}
