//! Valid and malformed messages.

use super::*;
use crate::hpack::{DecodeProgress, Decoder};

/// Decodes a field section of at most five fields.
fn decode(decoder: &mut Decoder, block: &[u8]) -> FieldSection {
    let mut list = FieldSection::default();
    let progress = &mut DecodeProgress::default();
    let decoded = decoder.decode(progress, &mut &*block, true, |field, size| {
        list.add(field, size, 1000, 5);
        true
    });
    assert_eq!(decoded, Ok(true));
    list
}

/// A field section as a peer would encode it.
fn list(fields: &[(&str, &str)]) -> FieldSection {
    let mut encoder = Encoder::new();
    let mut block = Vec::new();
    for (name, value) in fields {
        encoder.field(&mut block, name, value.as_bytes());
    }
    decode(&mut Decoder::new(), &block)
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/a?b"),
    (":authority", "web:80"),
];

fn with(fields: &[(&'static str, &'static str)]) -> FieldSection {
    list(&[&GET[..], fields].concat())
}

#[test]
fn request_is_built_from_its_fields() {
    let request = with(&[("accept", "*/*"), ("te", "trailers")])
        .into_request()
        .unwrap()
        .0;
    assert_eq!(request.method(), Method::GET);
    assert_eq!(request.uri(), "http://web:80/a?b");
    assert_eq!(request.version(), Version::HTTP_2);
    assert_eq!(request.headers().len(), 2);
    let request = list(&GET[..3]).into_request().unwrap().0;
    assert_eq!(request.uri(), "/a?b");
    let connect = list(&[(":method", "CONNECT"), (":authority", "web:80")]);
    assert_eq!(connect.into_request().unwrap().0.uri(), "web:80");
}

#[test]
fn path_beyond_the_syntax_of_uris_is_escaped_kept_and_written_unchanged() {
    let [method, scheme, _, authority] = GET;
    let path = "/a<b>\u{e9}?\"`";
    let read = list(&[method, scheme, (":path", path), authority]);
    let (request, raw_target) = read.into_request().unwrap();
    assert_eq!(request.uri(), "http://web:80/a%3Cb%3E%C3%A9?%22`");
    let raw_path = raw_target.unwrap().of_uri(request.uri()).unwrap().clone();
    assert_eq!(raw_path, path);
    let mut block = Vec::new();
    write_request(&mut Encoder::new(), &mut block, &request, Some(&raw_path));
    let again = decode(&mut Decoder::new(), &block);
    let again = again.into_request().unwrap().1.unwrap();
    assert_eq!(again.of_uri(request.uri()), Some(&raw_path));
    let asterisk = [(":method", "OPTIONS"), scheme, (":path", "*")];
    let (request, raw_target) = list(&asterisk).into_request().unwrap();
    assert_eq!((request.uri().path(), raw_target), ("*", None));
}

#[test]
fn malformed_requests_are_rejected() {
    let [method, scheme, path, authority] = GET;
    let connect = (":method", "CONNECT");
    let numeric = [method, (":scheme", "1:"), path, authority];
    let spaced = [method, scheme, path, (":authority", "a b")];
    let unordered = [method, ("accept", "*/*"), scheme, path];
    let unknown = [method, scheme, path, (":protocol", "websocket")];
    for (why, fields) in [
        ("no method", &[scheme, path, authority][..]),
        ("no scheme", &[method, path]),
        ("no path", &[method, scheme]),
        ("an empty path", &[method, scheme, (":path", "")]),
        ("an invalid path", &[method, scheme, (":path", "no path")]),
        ("a relative path", &[method, scheme, (":path", "a")]),
        ("only a query", &[method, scheme, (":path", "?a")]),
        ("a fragment", &[method, scheme, (":path", "/a#b")]),
        ("an asterisk", &[method, scheme, (":path", "*")]),
        ("DEL", &[method, scheme, (":path", "/<\x7f")]),
        ("NUL", &[method, scheme, (":path", "/<\0")]),
        ("a URI", &[method, scheme, (":path", "http://web/<")]),
        ("an invalid scheme", &numeric),
        ("an invalid authority", &spaced),
        ("two methods", &[method, method, scheme, path]),
        ("a pseudo-header field after a regular one", &unordered),
        ("a status", &[method, scheme, path, (":status", "200")]),
        ("an unknown pseudo-header field", &unknown),
        ("a CONNECT without an authority", &[connect]),
        ("a CONNECT with a path", &[connect, path, authority]),
        ("a CONNECT with a scheme", &[connect, scheme, authority]),
    ] {
        list(fields).into_request().expect_err(why);
    }
    for field in [
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("Accept", "*/*"),
        ("a b", "c"),
        ("a:b", "c"),
        ("a\t", "b"),
        ("a\x7f", "b"),
        ("\u{e9}", "a"),
        ("", "a"),
        ("a", "line\nfeed"),
        ("a", "carriage\rreturn"),
        ("a", "\0"),
    ] {
        with(&[field]).into_request().unwrap_err();
    }
}

#[test]
fn responses_and_trailers_are_validated() {
    let response = list(&[(":status", "204"), ("server", "x")])
        .into_response()
        .unwrap();
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    assert_eq!(response.headers()["server"], "x");
    for fields in [
        &[("server", "x")][..],
        &[(":status", "20")],
        &[(":status", "200"), (":path", "/")],
    ] {
        list(fields).into_response().unwrap_err();
    }
    let trailers = list(&[("grpc-status", "0")]).into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    for pseudo in [
        (":status", "200"),
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "web"),
        (":path", "/"),
    ] {
        list(&[pseudo]).into_trailers().unwrap_err();
    }
}

#[test]
fn oversized_sections_are_rejected_and_discarded() {
    let many = with(&[("a", "1"); 6]);
    assert_eq!(many.exceeded_limit(), Some(FieldSectionLimit::FieldCount));
    assert!(many.headers.is_empty());
    let large = with(&[("a", "1"), ("b", "x".repeat(1000).leak())]);
    assert_eq!(large.exceeded_limit(), Some(FieldSectionLimit::Size));
    assert!(large.headers.is_empty());
    large.into_rejected_request().unwrap();
    // A rejected section is still checked for malformed fields.
    let both = with(&[("b", "x".repeat(1000).leak()), ("connection", "close")]);
    both.into_rejected_request().unwrap_err();
}

#[test]
fn content_lengths_must_be_equal() {
    for (lengths, expected) in [
        (&[][..], Ok(None)),
        (&["5"], Ok(Some(5))),
        (&["5", "5"], Ok(Some(5))),
        (&["5", "6"], Err(())),
        (&["+5"], Err(())),
        (&[""], Err(())),
        (&["18446744073709551616"], Err(())),
    ] {
        let mut headers = HeaderMap::new();
        for length in lengths {
            headers.append(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        let length = content_length(&headers).map_err(drop);
        assert_eq!(length, expected, "{lengths:?}");
    }
}

#[test]
fn messages_round_trip() {
    let mut encoder = Encoder::new();
    let mut decoder = Decoder::new();
    let mut read = |block: &[u8]| decode(&mut decoder, block);
    for uri in ["http://web/", "https://web:8080/path?query", "http://web"] {
        let request = Request::post(uri).header("a", "1").header("a", "2");
        let request = request.body(()).unwrap();
        let mut block = Vec::new();
        write_request(&mut encoder, &mut block, &request, None);
        let (again, _) = read(&block).into_request().unwrap();
        assert_eq!(again.uri(), request.uri());
        assert_eq!(again.method(), request.method());
        assert_eq!(again.headers(), request.headers());
    }
    let response = Response::builder().status(404).header("b", "3");
    let mut block = Vec::new();
    write_response(&mut encoder, &mut block, &response.body(()).unwrap());
    assert_eq!(read(&block).into_response().unwrap().status(), 404);
}

/// RFC 7541, section 7.1.3.
#[test]
fn never_indexed_fields_are_forwarded_as_such() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut request = Request::get("http://web/").body(()).unwrap();
    let mut secret = HeaderValue::from_static("secret");
    secret.set_sensitive(true);
    request.headers_mut().insert("x-key", secret);
    for _ in 0..3 {
        let mut block = Vec::new();
        write_request(&mut encoder, &mut block, &request, None);
        (request, _) = decode(&mut decoder, &block).into_request().unwrap();
        assert!(request.headers()["x-key"].is_sensitive());
    }
}
