//! An application's bytes through the inbound proxy with any split: all parsers read the response
//! that the client receives completely in the application's bytes, if the strict one does. If only
//! lenient parsers understand a response, the client receives the reading of one of them, in a form
//! that the strict one understands.
//!
//! Input: the request, the split, then the application's bytes.

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;

use crate::app::{self, AppBehavior, Exchange};
use crate::input::Input;
use crate::oracle::hyper;
use crate::oracle::reader::{
    self, Message, MessageKind, PROFILES, ParseError, ParserProfile, RequestMethod, STRICT,
};
use crate::test_env;

/// A request of the client.
#[derive(Clone, Copy)]
struct TestRequest {
    method: &'static str,
    bytes: &'static [u8],
    request_method: RequestMethod,
}

const REQUESTS: [TestRequest; 4] = [
    TestRequest {
        method: "GET",
        bytes: b"GET / HTTP/1.1\r\nhost: web\r\n\r\n",
        request_method: RequestMethod::Other,
    },
    TestRequest {
        method: "HEAD",
        bytes: b"HEAD / HTTP/1.1\r\nhost: web\r\n\r\n",
        request_method: RequestMethod::Head,
    },
    TestRequest {
        method: "POST",
        bytes: b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello",
        request_method: RequestMethod::Other,
    },
    TestRequest {
        method: "GET",
        bytes: b"GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        request_method: RequestMethod::Other,
    },
];

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let request = input.choose(REQUESTS);
    let split = input.byte();
    let app_bytes = skip_empty_lines(input.0);
    let exchange = app::exchange(request.bytes, 0, AppBehavior::Script(input.0.into(), split));
    let Some(got) = got(&exchange, request) else {
        return;
    };
    if got.status() == 502 && got.body.is_empty() {
        // The proxy's error response, which is not distinguished from the same one of the
        // application.
        return;
    }
    if final_response(app_bytes, request, &STRICT).is_err() {
        check_lenient(app_bytes, request, &got);
        return;
    }
    let sent = sent(app_bytes, request, &got);
    assert_eq!(sent.body, got.body, "the body was changed");
    if got.status() == 101 {
        let tunnelled = &app_bytes[app_bytes.len().min(sent_end(app_bytes, request))..];
        let is_intact = exchange.received.ends_with(tunnelled);
        assert!(is_intact, "a tunnel lost bytes");
        return;
    }
    check_hyper(app_bytes, request, &got);
}

/// Returns the final response, if it is complete.
fn got(exchange: &Exchange, request: TestRequest) -> Option<Message> {
    let mut rest = exchange.received.as_slice();
    let kind = MessageKind::Response(request.request_method);
    loop {
        let response = match reader::message(rest, kind, &STRICT) {
            Ok(response) => response?,
            Err(wrong) => {
                let shown = String::from_utf8_lossy(rest);
                panic!("the client received an invalid response ({wrong}): {shown:?}");
            }
        };
        rest = &rest[response.end..];
        if !response.is_interim() {
            let is_alone = response.status() == 101 || rest.is_empty();
            let rest = String::from_utf8_lossy(rest);
            assert!(is_alone, "bytes after the response: {rest:?}");
            return Some(response);
        }
    }
}

/// Returns the final response in the application's bytes as one parser reads it, if it is complete.
fn final_response(
    app_bytes: &[u8],
    request: TestRequest,
    profile: &ParserProfile,
) -> Result<Option<Message>, ParseError> {
    let mut rest = app_bytes;
    loop {
        match reader::message(rest, MessageKind::Response(request.request_method), profile)? {
            Some(response) if response.is_interim() => {
                rest = skip_empty_lines(&rest[response.end..]);
            }
            Some(mut response) => {
                response.end += app_bytes.len() - rest.len();
                return Ok(Some(response));
            }
            None => return Ok(None),
        }
    }
}

/// Checks the body of a response that the strict parser does not understand.
fn check_lenient(app_bytes: &[u8], request: TestRequest, got: &Message) {
    let is_read = PROFILES.iter().any(|profile| {
        let read = final_response(app_bytes, request, profile);
        read.is_ok_and(|read| read.is_some_and(|read| read.body == got.body))
    });
    // Parsers differ in `identity`, and in the bodies of messages that have none.
    let is_rest = app_bytes.ends_with(&got.body);
    assert!(
        is_read || is_rest,
        "no parser reads what the client received: {got:?}"
    );
}

/// Returns the final response in the application's bytes, which all parsers must read alike.
fn sent(app_bytes: &[u8], request: TestRequest, got: &Message) -> Message {
    let mut found =
        PROFILES.iter().map(
            |profile| match final_response(app_bytes, request, profile) {
                Ok(Some(response)) => response,
                other => panic!("{profile:?} reads {other:?} where the client received {got:?}"),
            },
        );
    let strict = found.next().expect("the strict reader");
    for response in found {
        let same = (response.end, &response.body) == (strict.end, &strict.body);
        assert!(
            same,
            "a parser reads {response:?} where the proxy accepted {strict:?}"
        );
    }
    strict
}

fn sent_end(app_bytes: &[u8], request: TestRequest) -> usize {
    let mut rest = app_bytes;
    while let Ok(Some(response)) =
        reader::message(rest, MessageKind::Response(request.request_method), &STRICT)
    {
        rest = &rest[response.end..];
        if !response.is_interim() {
            break;
        }
        rest = skip_empty_lines(rest);
    }
    app_bytes.len() - rest.len()
}

/// Skips empty lines before a response like hyper and the proxy. RFC 9112, section 2.2, allows this
/// for requests only, but no parser reads another message because of it.
fn skip_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    bytes
}

fn check_hyper(app_bytes: &[u8], request: TestRequest, got: &Message) {
    let request = Request::builder()
        .method(request.method)
        .uri("/")
        .body(Empty::<Bytes>::new());
    let Some(seen) = test_env::run(hyper::response(app_bytes, request.expect("a request"))) else {
        panic!("hyper reads no response where the client received {got:?}");
    };
    assert_eq!(seen.status.as_u16(), got.status());
    let Some((body, trailers)) = seen.body else {
        panic!("hyper reads no complete body, but the client does: {got:?}");
    };
    assert_eq!(body, got.body, "hyper reads another body");
    for (name, value) in &got.trailers {
        let name = str::from_utf8(name).unwrap_or_default();
        let is_sent = trailers
            .get_all(name)
            .iter()
            .any(|have| have.as_bytes() == value);
        assert!(is_sent, "trailer was not sent: {name}");
    }
}
