//! The table of heads: what is read, and what is refused with which status.

use proptest::prelude::*;

use super::*;
use crate::http::http1::encode::{self, Framing};

const LIMITS: Http1Limits = Http1Limits::DEFAULT;

fn parse(text: &[u8]) -> Result<RequestHead, Refused> {
    match end(text, 0, LIMITS.head)? {
        End::At(length) if length == text.len() => request(&Bytes::copy_from_slice(text), &LIMITS),
        other => panic!("{other:?} of {:?}", String::from_utf8_lossy(text)),
    }
}

#[test]
fn a_request() {
    let head = parse(
        b"POST /a?b=c HTTP/1.1\r\nHost: web:80\r\nX-One:1\r\nx-one: \t2 \t\r\nexpect: 100-Continue\r\nContent-Length: 7\r\nx-empty:\r\nx-8: \xff\r\n\r\n",
    )
    .unwrap();
    assert_eq!(head.method, Method::POST);
    assert_eq!(head.uri, "/a?b=c");
    assert_eq!(head.version, Version::HTTP_11);
    let ones: Vec<_> = head.headers.get_all("x-one").iter().collect();
    assert_eq!(ones, ["1", "2"]);
    assert_eq!(head.headers["x-empty"], "");
    assert_eq!(head.headers["x-8"].as_bytes(), b"\xff");
    assert_eq!(head.body, BodyLength::Bytes(7));
    assert!(head.keeps_alive && head.expects_continue);
}

#[test]
fn a_response() {
    let bytes = Bytes::from_static(b"HTTP/1.0 404 Nothing Here\r\nConnection: keep-alive\r\n\r\n");
    let head = response(&bytes, &LIMITS).unwrap();
    assert_eq!(head.status, 404);
    assert_eq!(head.version, Version::HTTP_10);
    assert!(head.keeps_alive);
    assert_eq!(head.reason.unwrap().as_bytes(), b"Nothing Here");
    for usual in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 \r\n\r\n",
        "HTTP/1.1 200\r\n\r\n",
    ] {
        let head = response(&Bytes::from(usual), &LIMITS).unwrap();
        assert_eq!(
            (head.status.as_u16(), head.reason),
            (200, None),
            "{usual:?}"
        );
    }
}

/// Every row is a whole head.
#[test]
fn requests_that_are_refused() {
    use Refused::{
        BareLineFeed, ConnectBody, EncodingInHttp10, HeaderName, HeaderValue, Host,
        LengthAndEncoding, SeveralHosts, StartLine, Target, UnknownCoding, Version as BadVersion,
    };
    let rows: &[(&[u8], Refused, u16)] = &[
        (b"GET / HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\nhost: a\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\n\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\r\nhost: a\rx: 1\r\n\r\n", HeaderValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", HeaderValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\x7fb\r\n\r\n", HeaderValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n\tb\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\n host: a\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length : 5\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n: 1\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx\0y: 1\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\xffx: 1\r\n\r\n", HeaderName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", SeveralHosts, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", SeveralHosts, 400),
        (b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", Host, 400),
        (b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n", Host, 400),
        (b"GET / HTTP/1.1\r\nhost: a, b\r\n\r\n", Host, 400),
        (b"GET / HTTP/1.1\r\nhost: x@a\r\n\r\n", Host, 400),
        (b"GET / HTTP/1.1\r\nhost: a\xff\r\n\r\n", Host, 400),
        (b"GET / HTTP/1.1 \r\nhost: a\r\n\r\n", StartLine, 400),
        (b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n", StartLine, 400),
        (b"GET /  HTTP/1.1\r\nhost: a\r\n\r\n", BadVersion, 505),
        (b"GET\t/\tHTTP/1.1\r\nhost: a\r\n\r\n", StartLine, 400),
        (b" GET / HTTP/1.1\r\nhost: a\r\n\r\n", StartLine, 400),
        (b"G\0ET / HTTP/1.1\r\nhost: a\r\n\r\n", StartLine, 400),
        (b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", BadVersion, 505),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", BadVersion, 505),
        (b"PRI * HTTP/2.0\r\n\r\n", BadVersion, 505),
        (b"GET / HTTP/0.9\r\nhost: a\r\n\r\n", BadVersion, 505),
        (b"GET / http/1.1\r\nhost: a\r\n\r\n", BadVersion, 505),
        (b"GET /\r\nhost: a\r\n\r\n", StartLine, 400),
        (b"GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n", Target, 400),
        (b"GET * HTTP/1.1\r\nhost: a\r\n\r\n", Target, 400),
        (b"GET /a\x01 HTTP/1.1\r\nhost: a\r\n\r\n", StartLine, 400),
        (b"GET http:// HTTP/1.1\r\nhost: a\r\n\r\n", Target, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", LengthAndEncoding, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n", HeaderValue, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", UnknownCoding, 501),
        (b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", EncodingInHttp10, 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n", ConnectBody, 400),
    ];
    let wrong: Vec<_> = rows
        .iter()
        .filter_map(|(text, expected, status)| {
            let found = parse(text)
                .map(|_| ())
                .map_err(|r| (r, r.status().as_u16()));
            (found != Err((*expected, *status))).then(|| {
                let text = String::from_utf8_lossy(text);
                format!("{text:?}: {found:?} instead of {expected:?}")
            })
        })
        .collect();
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn responses_that_are_refused() {
    use Refused::{HeaderName, HeaderValue, Status, Version as BadVersion};
    let rows: &[(&[u8], Refused)] = &[
        (b"HTTP/1.1  200 OK\r\n\r\n", Status),
        (b"HTTP/1.1 20 OK\r\n\r\n", Status),
        (b"HTTP/1.1 2000 OK\r\n\r\n", Status),
        (b"HTTP/1.1 099 OK\r\n\r\n", Status),
        (b"HTTP/2.0 200 OK\r\n\r\n", BadVersion),
        (b"ICY 200 OK\r\n\r\n", BadVersion),
        (b"HTTP/1.1 200 O\0K\r\n\r\n", Status),
        (b"HTTP/1.1 200 OK\r\nx : 1\r\n\r\n", HeaderName),
        (b"HTTP/1.1 200 OK\r\nx: 1\r\n 2\r\n\r\n", HeaderName),
        (b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", HeaderValue),
    ];
    for (text, expected) in rows {
        let shown = String::from_utf8_lossy(text);
        let refused = response(&Bytes::copy_from_slice(text), &LIMITS).unwrap_err();
        assert_eq!(refused, *expected, "{shown:?}");
    }
}

/// However the bytes arrive, the end is found once, at the same place, and looking again begins
/// where the last look ended.
#[test]
fn the_end_is_found_in_pieces() {
    let text = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET";
    let mut from = 0;
    for length in 0..text.len() {
        match end(&text[..length], from, LIMITS.head).unwrap() {
            End::Later(next) => {
                assert!(length < text.len() - 3, "missed");
                assert_eq!(next, length);
                from = next;
            }
            End::At(at) => {
                assert_eq!((at, length), (text.len() - 3, text.len() - 3));
                return;
            }
        }
    }
    panic!("no end");
}

#[test]
fn sizes_are_limited() {
    let head = |fields: usize, value: usize| {
        let field = format!("x: {}\r\n", "v".repeat(value));
        format!("GET / HTTP/1.1\r\n{}\r\n", field.repeat(fields)).into_bytes()
    };
    assert_eq!(parse(&head(100, 10)).unwrap().headers.len(), 100);
    let refused = parse(&head(101, 10)).unwrap_err();
    assert_eq!(refused, Refused::TooManyHeaders);
    assert_eq!(refused.status(), 431);
    let max = LIMITS.head as usize;
    assert!(parse(&head(1, max - 100)).is_ok());
    let refused = parse(&head(1, max)).unwrap_err();
    assert_eq!(refused, Refused::HeadTooLarge);
    assert_eq!(refused.status(), 431);
    let endless = vec![b'a'; max + 1];
    assert_eq!(end(&endless, 0, LIMITS.head), Err(Refused::HeadTooLarge));
}

#[test]
fn the_number_of_fields_is_configured() {
    for (fields, limit, taken) in [
        (30, 30, true),
        (31, 30, false),
        (150, 150, true),
        (151, 150, false),
    ] {
        let limits = Http1Limits {
            fields: limit,
            ..LIMITS
        };
        let head = format!("GET / HTTP/1.1\r\n{}\r\n", "x: 1\r\n".repeat(fields));
        let read = request(&Bytes::from(head), &limits);
        assert_eq!(read.is_ok(), taken, "{fields} of {limit}");
    }
}

#[test]
fn trailers_hold_no_framing() {
    let read = |text: &'static str| trailers(&Bytes::from_static(text.as_bytes()), &LIMITS);
    let found =
        read("x-sum: 1\r\ncontent-length: 5\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    let found = found.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found["x-sum"], "1");
    assert_eq!(read("x : 1\r\n\r\n"), Err(Refused::HeaderName));
}

/// Pieces of which heads are made, and of which they had better not be.
const PIECES: &[&str] = &[
    "GET ",
    "POST ",
    "/",
    "/a?b=c ",
    "* ",
    "http://x/ ",
    "HTTP/1.1",
    "HTTP/1.0",
    "\r\n",
    "\r\n",
    "\r\n",
    "host: a",
    "Host: b:80",
    "content-length: 5",
    "transfer-encoding: chunked",
    "x: 1",
    "x:",
    ": ",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\u{e4}",
    "connection: close",
    "expect: 100-continue",
    "#",
    ",",
];

proptest! {
    /// No input makes it fall over; and what is taken is written so that it is read in the same way
    /// again.
    #[test]
    fn what_is_taken_is_passed_on_unchanged(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..12)) {
        let text = format!("{}\r\n\r\n", pieces.concat());
        let Ok(End::At(length)) = end(text.as_bytes(), 0, LIMITS.head) else { return Ok(()) };
        let _no_panic = response(&Bytes::copy_from_slice(&text.as_bytes()[..length]), &LIMITS);
        let Ok(head) = request(&Bytes::copy_from_slice(&text.as_bytes()[..length]), &LIMITS) else { return Ok(()) };
        let mut written = Vec::new();
        let line = (&head.method, &head.uri, head.version);
        encode::request(&mut written, line, &head.headers, Framing::AsGiven);
        prop_assert_eq!(end(&written, 0, LIMITS.head), Ok(End::At(written.len())));
        let again = request(&Bytes::from(written), &LIMITS).unwrap();
        prop_assert_eq!(again.headers, head.headers);
        prop_assert_eq!(again.uri, head.uri);
        prop_assert_eq!(
            (again.method, again.version, again.body, again.keeps_alive),
            (head.method, head.version, head.body, head.keeps_alive)
        );
    }
}
