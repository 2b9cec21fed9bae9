//! Request targets: those that arrive, byte for byte, and those that are refused are the same in
//! both protocols.

use mesh_http2::{Error, ErrorCode, Role};

use super::*;
use crate::tests::http2_peer::Http2Peer;

const FORWARDED: [&[u8]; 7] = [
    b"/a<b>?c=<d>",
    b"/\"quoted\"?q={\"a\":\"`1`\"}",
    b"/`a`",
    b"/caf\xe9?\xff",
    "/caf\u{e9}".as_bytes(),
    b"/a^b|c{d}",
    b"/%3C%3c",
];

const REFUSED: [&[u8]; 11] = [
    b"/a b", b"/a\tb<", b"/a\x01<", b"/a\x7f<", b"/a\x7f", b"/a\0", b"/a#b", b"/<#b", b"?a", b"a",
    b"*",
];

#[test]
fn http1_targets_arrive_unchanged_or_are_refused() {
    each_way(async |way| {
        let app = App::start().await;
        let between = Between::new(way, app.addr).await;
        for target in FORWARDED.into_iter().chain(REFUSED) {
            let shown = target.escape_ascii();
            let mut client = between.connect().await;
            // Bytes that no HTTP client sends are opaque at the beginning of a connection.
            send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
            let (mut served, _) = app.receive().await;
            send(&mut served, CLOSE).await;
            message(&mut client).await;
            drop(served);

            let line = [b"GET ", target, b" HTTP/1.1\r\n"].concat();
            client.write_all(&line).await.unwrap();
            send(&mut client, "host: web\r\n\r\n").await;
            if REFUSED.contains(&target) {
                let response = head(&mut client).await;
                // What follows a space is an unknown version.
                let is_refused = matches!(response.split(' ').nth(1), Some("400" | "505"));
                assert!(is_refused, "{way:?}: {shown}: {response}");
                continue;
            }
            let mut served = app.accept().await;
            let mut received = vec![0; line.len()];
            served.read_exact(&mut received).await.unwrap();
            assert_eq!(received, line, "{way:?}: {shown}");
            head(&mut served).await;
            send(&mut served, CLOSE).await;
            message(&mut client).await;
        }
    });
}

/// The application uses each connection once.
const CLOSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

#[test]
fn http2_targets_arrive_unchanged_or_are_refused() {
    each_way(async |way| {
        let app = App::start().await;
        let between = Between::new(way, app.addr).await;
        let mut served = None;
        for target in FORWARDED.into_iter().chain(REFUSED) {
            let shown = target.escape_ascii();
            let mut client = Http2Peer::new(between.connect().await, Role::Client);
            let id = client.get(target).await;
            if REFUSED.contains(&target) {
                let refused = client.response(id).await;
                let is_reset = matches!(refused, Err(Error::Reset(ErrorCode::PROTOCOL_ERROR)));
                assert!(is_reset, "{way:?}: {shown}: {refused:?}");
                continue;
            }
            let served = match &mut served {
                Some(served) => served,
                None => served.insert(Http2Peer::new(app.accept().await, Role::Server)),
            };
            let received = served.serve().await;
            assert_eq!(received, target, "{way:?}: {shown}");
            assert_eq!(client.response(id).await.unwrap().status(), 200);
        }
    });
}
