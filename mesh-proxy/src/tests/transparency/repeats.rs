//! Which requests are sent again without a retry policy: those whose connection had served others
//! before and ended before anything of a response arrived.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::super::app::{App, Pending, ask, get, http2, reset, send, status_of, try_head};
use super::super::world::{run, settle};
use super::{Between, OK, WAYS, Way};

/// How an application ends a connection.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    Reset,
}

impl End {
    fn apply(self, tcp: TcpStream) {
        match self {
            Self::Close => drop(tcp),
            Self::Reset => reset(tcp),
        }
    }
}

const LAST: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// An application that sends `begun` in response to its n-th request and ends the connection. All
/// others get `answer`. Counts the requests that it receives.
async fn breaks_off(
    nth: u32,
    begun: &'static str,
    end: End,
    answer: &'static str,
) -> (SocketAddr, Rc<Cell<u32>>) {
    let app = App::start().await;
    let (addr, received) = (app.addr, Rc::new(Cell::new(0)));
    let count = received.clone();
    spawn_local(async move {
        loop {
            let mut tcp = app.accept().await;
            let count = count.clone();
            spawn_local(async move {
                while try_head(&mut tcp).await.is_some() {
                    count.set(count.get() + 1);
                    if count.get() == nth {
                        send(&mut tcp, begun).await;
                        return end.apply(tcp);
                    }
                    send(&mut tcp, answer).await;
                    if answer == LAST {
                        return;
                    }
                }
            });
        }
    });
    (addr, received)
}

/// Sends a request and returns the status of its final response; `None` if the connection ends
/// without a response.
async fn status(client: &mut TcpStream, method: &str) -> Option<u16> {
    let request = format!("{method} / HTTP/1.1\r\nhost: web\r\n\r\n");
    send(client, &request).await;
    loop {
        let status = try_head(client).await?[9..12].parse().unwrap();
        if status >= 200 {
            return Some(status);
        }
    }
}

#[test]
fn http1_request_is_sent_again_only_if_no_byte_of_a_response_arrived() {
    for (begun, is_repeated) in [
        ("", true),
        ("H", false),
        ("HTTP/1.1 200 OK\r\ncontent-le", false),
        ("HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n", false),
        (
            "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 2",
            false,
        ),
        ("garbage\r\n\r\n", false),
    ] {
        for (method, end) in [("GET", End::Close), ("DELETE", End::Reset)] {
            for way in WAYS {
                run(async || {
                    let (app, received) = breaks_off(2, begun, end, OK).await;
                    let between = Between::new(way, app).await;
                    let mut client = between.connect().await;
                    assert_eq!(status(&mut client, "GET").await, Some(200));
                    let result = status(&mut client, method).await;
                    settle().await;
                    let expected = if is_repeated { (200, 3) } else { (502, 2) };
                    let expected = (Some(expected.0), expected.1);
                    assert_eq!(
                        (result, received.get()),
                        expected,
                        "{way:?} {method} {begun:?}"
                    );
                });
            }
        }
    }
}

/// The server cannot have closed it before it received the request.
#[test]
fn http1_request_on_a_new_connection_is_not_sent_again() {
    for end in [End::Close, End::Reset] {
        for way in WAYS {
            run(async || {
                let (app, received) = breaks_off(1, "", end, OK).await;
                let mut client = Between::new(way, app).await.connect().await;
                let result = status(&mut client, "GET").await;
                settle().await;
                assert_eq!((result, received.get()), (Some(502), 1), "{way:?} {end:?}");
            });
        }
    }
}

/// It decides itself, as it does without a mesh. A peer of the mesh gets a 502, and so does a
/// client whose request is not idempotent.
#[test]
fn http1_client_of_the_application_learns_that_its_connection_was_closed() {
    for (way, method, expected) in [
        (Way::Inbound, "GET", None),
        (Way::Inbound, "DELETE", None),
        (Way::Inbound, "POST", Some(502)),
        (Way::Both, "GET", Some(502)),
    ] {
        run(async || {
            let (app, received) = breaks_off(2, "", End::Close, LAST).await;
            let mut client = Between::new(way, app).await.connect().await;
            assert_eq!(status(&mut client, "GET").await, Some(200));
            let result = status(&mut client, method).await;
            settle().await;
            assert_eq!((result, received.get()), (expected, 2), "{way:?} {method}");
        });
    }
}

/// Reads frames of a client up to the HEADERS of this stream.
async fn headers_on(tcp: &mut TcpStream, stream: u8) {
    loop {
        let mut head = [0; 9];
        tcp.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        tcp.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if (head[3], head[8]) == (1, stream) {
            return;
        }
    }
}

/// The first request of an HTTP/2 client, and the application's connection that received it.
async fn first_stream(between: &Between, app: &App) -> (SendRequest<Bytes>, Pending, TcpStream) {
    let mut client = http2(between.connect().await).await;
    let asking = ask(&mut client, get());
    let mut tcp = app.accept().await;
    tcp.read_exact(&mut [0; 24]).await.unwrap();
    tcp.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    headers_on(&mut tcp, 1).await;
    (client, asking, tcp)
}

#[test]
fn http2_request_is_sent_again_only_if_no_headers_of_a_response_arrived() {
    /// The bytes that the application sends, and the statuses of the request.
    type Row = (&'static str, &'static [u8], u16);
    let rows: [Row; 9] = [
        ("nothing", &[], 200),
        (
            "PING",
            &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
            200,
        ),
        (
            "WINDOW_UPDATE",
            &[0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0, 1],
            200,
        ),
        (
            "GOAWAY",
            &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0],
            200,
        ),
        (
            "failed",
            &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2],
            200,
        ),
        (
            "interim",
            &[0, 0, 5, 1, 4, 0, 0, 0, 3, 8, 3, b'1', b'0', b'3'],
            502,
        ),
        (
            "without END_HEADERS",
            &[0, 0, 1, 1, 0, 0, 0, 0, 3, 0x88],
            502,
        ),
        ("a part of HEADERS", &[0, 0, 9, 1, 4, 0, 0, 0, 3, 0x88], 502),
        ("invalid HEADERS", &[0, 0, 1, 1, 4, 0, 0, 0, 3, 0x80], 502),
    ];
    for (name, begun, expected) in rows {
        for end in [End::Close, End::Reset] {
            for way in WAYS {
                run(async || {
                    let app = App::start().await;
                    let between = Between::new(way, app.addr).await;
                    let (mut client, first, mut tcp) = first_stream(&between, &app).await;
                    let ok = [0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
                    tcp.write_all(&ok).await.unwrap();
                    assert_eq!(status_of(first).await, 200);
                    let asking = ask(&mut client, get());
                    headers_on(&mut tcp, 3).await;
                    tcp.write_all(begun).await.unwrap();
                    end.apply(tcp);
                    app.named("again");
                    assert_eq!(status_of(asking).await, expected, "{way:?} {name} {end:?}");
                });
            }
        }
    }
}

/// Unless the server has not begun it: its kernel accepts connections that it never receives.
#[test]
fn http2_request_on_a_new_connection_is_not_sent_again() {
    for way in WAYS {
        run(async || {
            let app = App::start().await;
            let between = Between::new(way, app.addr).await;
            let mut client = http2(between.connect().await).await;
            let asking = ask(&mut client, get());
            let mut tcp = app.accept().await;
            tcp.read_exact(&mut [0; 24]).await.unwrap();
            headers_on(&mut tcp, 1).await;
            drop(tcp);
            app.named("again");
            assert_eq!(status_of(asking).await, 200, "{way:?}");
        });
        run(async || {
            let app = App::start().await;
            let between = Between::new(way, app.addr).await;
            let (_client, asking, tcp) = first_stream(&between, &app).await;
            drop(tcp);
            app.named("again");
            assert_eq!(status_of(asking).await, 502, "{way:?}");
        });
    }
}
