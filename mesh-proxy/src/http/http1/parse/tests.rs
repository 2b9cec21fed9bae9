//! Tables of header sections: those that are accepted, and those that are rejected with which
//! status.

use proptest::prelude::*;

use super::*;
use crate::http::http1::encode::{self, FramingHeaders};

const LIMITS: Http1Limits = Http1Limits::DEFAULT;

fn parse(text: &[u8]) -> Result<ParsedRequest, MessageError> {
    match find_end(text, 0, LIMITS.head)? {
        HeaderEnd::At(length) if length == text.len() => {
            parse_request(&Bytes::copy_from_slice(text), &LIMITS)
        }
        other => panic!("{other:?} of {:?}", String::from_utf8_lossy(text)),
    }
}

#[test]
fn request_is_parsed() {
    let parsed = parse(
        b"POST /a?b=c HTTP/1.1\r\nHost: web:80\r\nX-One:1\r\nx-one: \t2 \t\r\nexpect: 100-Continue\r\nContent-Length: 7\r\nx-empty:\r\nx-8: \xff\r\n\r\n",
    )
    .unwrap();
    assert_eq!(parsed.method, Method::POST);
    assert_eq!(parsed.uri, "/a?b=c");
    assert_eq!(parsed.version, Version::HTTP_11);
    let ones: Vec<_> = parsed.headers.get_all("x-one").iter().collect();
    assert_eq!(ones, ["1", "2"]);
    assert_eq!(parsed.headers["x-empty"], "");
    assert_eq!(parsed.headers["x-8"].as_bytes(), b"\xff");
    assert_eq!(parsed.body_length, BodyLength::Bytes(7));
    assert!(parsed.keeps_alive && parsed.expects_continue);
}

/// Other fields keep their order when these are removed.
#[test]
fn fields_of_the_connection_are_last() {
    let parsed = parse(
        b"GET / HTTP/1.1\r\nConnection: x\r\nhost: a\r\nTE: trailers\r\nx: 1\r\nte: b\r\ntea: 2\r\n\r\n",
    )
    .unwrap();
    let fields = parsed.headers.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    assert_eq!(
        fields,
        [
            ("host", "a"),
            ("x", "1"),
            ("tea", "2"),
            ("connection", "x"),
            ("te", "trailers"),
            ("te", "b"),
        ]
    );
}

#[test]
fn response_is_parsed() {
    let bytes = Bytes::from_static(b"HTTP/1.0 404 Nothing Here\r\nConnection: keep-alive\r\n\r\n");
    let parsed = parse_response(&bytes, &LIMITS, false).unwrap();
    assert_eq!(parsed.status, 404);
    assert_eq!(parsed.version, Version::HTTP_10);
    assert!(parsed.keeps_alive);
    assert_eq!(parsed.reason.unwrap(), "Nothing Here");
    for usual in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 \r\n\r\n",
        "HTTP/1.1 200\r\n\r\n",
    ] {
        let parsed = parse_response(&Bytes::from(usual), &LIMITS, false).unwrap();
        assert_eq!(
            (parsed.status.as_u16(), parsed.reason),
            (200, None),
            "{usual:?}"
        );
    }
}

/// Every row is a complete header section.
#[test]
fn invalid_requests_are_rejected_with_status() {
    use MessageError::{
        BareLineFeed, ConnectWithBody, InvalidFieldName, InvalidFieldValue, InvalidHost,
        InvalidStartLine, InvalidTarget, LengthAndTransferEncoding, MultipleHosts,
        TransferEncodingInHttp10, UnsupportedTransferCoding, UnsupportedVersion,
    };
    let rows: &[(&[u8], MessageError, u16)] = &[
        (b"GET / HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\nhost: a\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\n\r\n\r\n", BareLineFeed, 400),
        (b"GET / HTTP/1.1\r\nhost: a\rx: 1\r\n\r\n", InvalidFieldValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", InvalidFieldValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\x7fb\r\n\r\n", InvalidFieldValue, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n\tb\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\n host: a\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length : 5\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n: 1\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx\0y: 1\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\xffx: 1\r\n\r\n", InvalidFieldName, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", MultipleHosts, 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", MultipleHosts, 400),
        (b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: a, b\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: x@a\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: a\xff\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: a:b\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1\r\nhost: :80\r\n\r\n", InvalidHost, 400),
        (b"GET / HTTP/1.1 \r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"GET  / HTTP/1.1\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"GET /  HTTP/1.1\r\nhost: a\r\n\r\n", UnsupportedVersion, 505),
        (b"GET\t/\tHTTP/1.1\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b" GET / HTTP/1.1\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"G\0ET / HTTP/1.1\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"GET / HTTP/1.2\r\nhost: a\r\n\r\n", UnsupportedVersion, 505),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", UnsupportedVersion, 505),
        (b"PRI * HTTP/2.0\r\n\r\n", UnsupportedVersion, 505),
        (b"GET / HTTP/0.9\r\nhost: a\r\n\r\n", UnsupportedVersion, 505),
        (b"GET / http/1.1\r\nhost: a\r\n\r\n", UnsupportedVersion, 505),
        (b"GET /\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n", InvalidTarget, 400),
        (b"GET * HTTP/1.1\r\nhost: a\r\n\r\n", InvalidTarget, 400),
        (b"GET /a\x01 HTTP/1.1\r\nhost: a\r\n\r\n", InvalidStartLine, 400),
        (b"GET http:// HTTP/1.1\r\nhost: a\r\n\r\n", InvalidTarget, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", LengthAndTransferEncoding, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n", InvalidFieldValue, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", UnsupportedTransferCoding, 501),
        (b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", TransferEncodingInHttp10, 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n", ConnectWithBody, 400),
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
fn invalid_responses_are_rejected() {
    use MessageError::{InvalidFieldName, InvalidFieldValue, InvalidStatus, UnsupportedVersion};
    let rows: &[(&[u8], MessageError)] = &[
        (b"HTTP/1.1  200 OK\r\n\r\n", InvalidStatus),
        (b"HTTP/1.1 20 OK\r\n\r\n", InvalidStatus),
        (b"HTTP/1.1 2000 OK\r\n\r\n", InvalidStatus),
        (b"HTTP/1.1 099 OK\r\n\r\n", InvalidStatus),
        (b"HTTP/2.0 200 OK\r\n\r\n", UnsupportedVersion),
        (b"ICY 200 OK\r\n\r\n", UnsupportedVersion),
        (b"HTTP/1.1 200 O\0K\r\n\r\n", InvalidStatus),
        (b"HTTP/1.1 200 OK\r\nx : 1\r\n\r\n", InvalidFieldName),
        (b"HTTP/1.1 200 OK\r\nx: 1\r\n 2\r\n\r\n", InvalidFieldName),
        (b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n", InvalidFieldValue),
    ];
    for (text, expected) in rows {
        let shown = String::from_utf8_lossy(text);
        let error = parse_response(&Bytes::copy_from_slice(text), &LIMITS, false).unwrap_err();
        assert_eq!(error, *expected, "{shown:?}");
    }
}

/// The end is found at the same place however the bytes arrive, and each search starts where the
/// previous one stopped.
#[test]
fn header_section_end_is_found_incrementally() {
    let text = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET";
    let mut from = 0;
    for length in 0..text.len() {
        match find_end(&text[..length], from, LIMITS.head).unwrap() {
            HeaderEnd::Incomplete(next) => {
                assert!(length < text.len() - 3, "end not found");
                assert_eq!(next, length);
                from = next;
            }
            HeaderEnd::At(at) => {
                assert_eq!((at, length), (text.len() - 3, text.len() - 3));
                return;
            }
        }
    }
    panic!("end not found");
}

#[test]
fn header_sections_beyond_limits_are_rejected() {
    let parsed = |fields: usize, value: usize| {
        let field = format!("x: {}\r\n", "v".repeat(value));
        format!("GET / HTTP/1.1\r\n{}\r\n", field.repeat(fields)).into_bytes()
    };
    assert_eq!(parse(&parsed(100, 10)).unwrap().headers.len(), 100);
    let error = parse(&parsed(101, 10)).unwrap_err();
    assert_eq!(error, MessageError::TooManyFields);
    assert_eq!(error.status(), 431);
    let max = LIMITS.head as usize;
    assert!(parse(&parsed(1, max - 100)).is_ok());
    let error = parse(&parsed(1, max)).unwrap_err();
    assert_eq!(error, MessageError::HeadersTooLarge);
    assert_eq!(error.status(), 431);
    let endless = vec![b'a'; max + 1];
    assert_eq!(
        find_end(&endless, 0, LIMITS.head),
        Err(MessageError::HeadersTooLarge)
    );
}

#[test]
fn targets_beyond_the_limit_of_uris_are_too_long() {
    let parse_target_of = |length: usize| {
        let target = format!("/{}", "a".repeat(length - 1));
        parse(format!("GET {target} HTTP/1.1\r\nhost: web\r\n\r\n").as_bytes())
    };
    for length in [8_000, MAX_TARGET] {
        assert_eq!(parse_target_of(length).unwrap().uri.path().len(), length);
    }
    let error = parse_target_of(MAX_TARGET + 1).unwrap_err();
    assert_eq!(error, MessageError::TargetTooLong);
    assert_eq!(error.status(), 414);
}

#[test]
fn field_limit_is_configurable() {
    for (fields, limit, accepted) in [
        (30, 30, true),
        (31, 30, false),
        (150, 150, true),
        (151, 150, false),
    ] {
        let limits = Http1Limits {
            fields: limit,
            ..LIMITS
        };
        let parsed = format!("GET / HTTP/1.1\r\n{}\r\n", "x: 1\r\n".repeat(fields));
        let read = parse_request(&Bytes::from(parsed), &limits);
        assert_eq!(read.is_ok(), accepted, "{fields} of {limit}");
    }
}

#[test]
fn framing_fields_are_dropped_from_trailers() {
    let read = |text: &'static str| parse_trailers(&Bytes::from_static(text.as_bytes()), &LIMITS);
    let found =
        read("x-sum: 1\r\ncontent-length: 5\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n");
    let found = found.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found["x-sum"], "1");
    assert_eq!(read("x : 1\r\n\r\n"), Err(MessageError::InvalidFieldName));
}

/// Fragments of valid and invalid header sections.
const FRAGMENTS: &[&str] = &[
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

/// Lines of valid header sections, which are not valid in every combination.
const FIELDS: &[&str] = &[
    "host: a\r\n",
    "Host: b:80\r\n",
    "content-length: 5\r\n",
    "transfer-encoding: chunked\r\n",
    "x: 1\r\n",
    "x:\r\n",
    "X:  2 \t\r\n",
    "connection: close\r\n",
    "expect: 100-continue\r\n",
];

/// Header sections of requests. Half of them begin with a valid request line, because hardly any
/// sequence of fragments is accepted.
fn header_section() -> impl Strategy<Value = String> {
    let select = |texts: &'static [&'static str]| prop::sample::select(texts);
    let line = (
        select(&["GET ", "POST ", "OPTIONS "]),
        select(&["/ ", "/a?b=c ", "* ", "http://x/ "]),
        select(&["HTTP/1.1\r\n", "HTTP/1.0\r\n"]),
    );
    let fields = prop::collection::vec(select(FIELDS), 0..5);
    let lines = (line, fields).prop_map(|((method, target, version), fields)| {
        format!("{method}{target}{version}{}\r\n", fields.concat())
    });
    let fragments = prop::collection::vec(select(FRAGMENTS), 0..12);
    prop_oneof![
        lines,
        fragments.prop_map(|fragments| format!("{}\r\n\r\n", fragments.concat()))
    ]
}

proptest! {
    /// No input causes a panic, and an accepted request parses to the same values after it has been
    /// written.
    #[test]
    fn accepted_requests_are_forwarded_unchanged(text in header_section()) {
        let Ok(HeaderEnd::At(length)) = find_end(text.as_bytes(), 0, LIMITS.head) else { return Ok(()) };
        let _no_panic = parse_response(&Bytes::copy_from_slice(&text.as_bytes()[..length]), &LIMITS, false);
        let Ok(parsed) = parse_request(&Bytes::copy_from_slice(&text.as_bytes()[..length]), &LIMITS) else { return Ok(()) };
        let mut written = Vec::new();
        let line = (&parsed.method, &parsed.uri, parsed.version);
        encode::write_request(
            &mut written,
            line,
            None,
            &parsed.headers,
            FramingHeaders::Unchanged,
        );
        prop_assert_eq!(find_end(&written, 0, LIMITS.head), Ok(HeaderEnd::At(written.len())));
        let again = parse_request(&Bytes::from(written), &LIMITS).unwrap();
        prop_assert_eq!(again.headers, parsed.headers);
        prop_assert_eq!(again.uri, parsed.uri);
        prop_assert_eq!(
            (again.method, again.version, again.body_length, again.keeps_alive),
            (parsed.method, parsed.version, parsed.body_length, parsed.keeps_alive)
        );
    }
}

#[test]
fn targets_that_are_no_uris_are_escaped_and_kept() {
    let parsed = parse(b"GET /a<b>?c=\xe9 HTTP/1.1\r\nhost: web\r\n\r\n").unwrap();
    assert_eq!(parsed.uri, "/a%3Cb%3E?c=%E9");
    assert_eq!(parsed.headers["host"], "web");
    let raw_target = parsed.raw_target.unwrap();
    assert_eq!(
        raw_target.of_uri(&parsed.uri).unwrap(),
        &b"/a<b>?c=\xe9"[..]
    );
    for target in [
        "/a b<",
        "/a\t<",
        "/a\x7f<",
        "/a\x01<",
        "/<#b",
        "<",
        "w<b:80",
        "http://w<b/",
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\n\r\n");
        assert!(parse(request.as_bytes()).is_err(), "{target:?}");
    }
}

#[test]
fn lenient_end_is_an_empty_line_with_any_line_ends_however_input_is_split() {
    for section in [
        &b"HTTP/1.1 200 OK\r\nx: 1\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\nx: 1\n\n",
        b"HTTP/1.1 200 OK\nx: 1\r\n\n",
        b"HTTP/1.1 200 OK\r\nx: 1\n\r\n",
    ] {
        let input = [section, b"body\n\nmore"].concat();
        for split in 0..input.len() {
            let first = find_lenient_end(&input[..split], 0, LIMITS.head).unwrap();
            let end = match first {
                HeaderEnd::At(_) => first,
                HeaderEnd::Incomplete(from) => find_lenient_end(&input, from, LIMITS.head).unwrap(),
            };
            assert_eq!(end, HeaderEnd::At(section.len()), "{split} of {section:?}");
        }
        let too_long = find_lenient_end(section, 0, section.len() as u32 - 1);
        assert_eq!(too_long, Err(MessageError::HeadersTooLarge));
    }
}

#[test]
fn header_section_of_exactly_the_maximum_is_accepted() {
    let text = b"GET / HTTP/1.1\r\n\r\n";
    let length = text.len() as u32;
    for (max, bytes, expected) in [
        (length, &text[..], Ok(HeaderEnd::At(text.len()))),
        (length - 1, text, Err(MessageError::HeadersTooLarge)),
        (length - 2, &text[..16], Ok(HeaderEnd::Incomplete(16))),
        (15, &text[..16], Err(MessageError::HeadersTooLarge)),
    ] {
        assert_eq!(find_end(bytes, 0, max), expected, "{max}");
    }
}
