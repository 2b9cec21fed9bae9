//! A client's bytes through the inbound proxy with any split: the application receives only
//! requests that the client sent, in the same order, and all parsers of the client's bytes and of
//! the application's read the same requests.
//!
//! Does not check which requests the proxy rejects. Input: the split, then the client's bytes.

use std::collections::BTreeMap;

use http::Uri;
use mesh_proxy::fuzzing::detect::HttpDetected;
use mesh_proxy::fuzzing::strip_connection_headers;

use super::detect;
use crate::app::{self, AppBehavior, Exchange};
use crate::input::Input;
use crate::oracle::hyper::{self, ParsedMessage};
use crate::oracle::reader::{self, Message, MessageKind, PROFILES, RequestMethod, STRICT};
use crate::test_env;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let split = input.byte();
    let bytes = input.0;
    // Other bytes are opaque or HTTP/2.
    if detect::http(bytes, 0) != HttpDetected::Http1 {
        return;
    }
    let exchange = app::exchange(bytes, split, AppBehavior::RespondOk);
    check_rests(&exchange);
    let sent = messages_sent(bytes, exchange.requests.len());
    let (parsed, served) = test_env::run(hyper::requests(bytes));
    for (index, request) in exchange.requests.iter().enumerate() {
        assert_same_message(&sent[index], request);
        if uri(&sent[index]).is_none() {
            // hyper rejects the target, and reads nothing after it.
            break;
        }
        let Some(parsed) = parsed.get(index) else {
            panic!(
                "hyper reads {} requests and then {served:?}; the application received {}: {request:?}",
                parsed.len(),
                exchange.requests.len()
            );
        };
        assert_same(parsed, request);
    }
    check_responses(&exchange);
}

/// Checks that no parser reads a complete request from the incomplete ones of the application.
fn check_rests(exchange: &Exchange) {
    for rest in &exchange.rests {
        for profile in &PROFILES[1..] {
            let read = reader::message(rest, MessageKind::Request, profile);
            if let Ok(Some(read)) = read {
                panic!("{profile:?} reads an incomplete request as a complete one: {read:?}");
            }
        }
    }
}

/// Returns the client's first `count` messages, which all parsers must read alike.
fn messages_sent(bytes: &[u8], count: usize) -> Vec<Message> {
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in 0..count {
        let rest = &bytes[at..];
        let strict = match reader::message(rest, MessageKind::Request, &STRICT) {
            Ok(Some(message)) => message,
            other => {
                panic!("the application received a request that the client did not send: {other:?}")
            }
        };
        for profile in &PROFILES[1..] {
            match reader::message(rest, MessageKind::Request, profile) {
                Ok(Some(message)) if (message.end, &message.body) == (strict.end, &strict.body) => {
                }
                other => panic!("{profile:?} reads {other:?} where the proxy accepted {strict:?}"),
            }
        }
        at += strict.end;
        messages.push(strict);
    }
    messages
}

/// Compares the client's request with the application's, read by the same parser.
fn assert_same_message(sent: &Message, received: &Message) {
    assert_eq!(sent.method(), received.method());
    assert_eq!(sent.start[2], received.start[2], "the version was changed");
    match (uri(sent), uri(received)) {
        (Some(sent), Some(received)) => assert_eq!(sent, received, "the target was changed"),
        // Bytes that no URI can represent are forwarded; user agents send origin-form.
        _ => assert!(
            sent.target().ends_with(received.target()),
            "the target was changed"
        ),
    }
    assert_eq!(sent.body, received.body, "the body was changed");
    let mut hosts: Vec<_> = sent.values("host").map(<[u8]>::to_vec).collect();
    if let (Some(host), Some(authority)) = (
        hosts.first_mut(),
        uri(sent).as_ref().and_then(Uri::authority),
    ) {
        // The authority of the target takes precedence (RFC 9112, section 3.2.2).
        *host = authority.as_str().into();
    }
    let received: Vec<_> = received.values("host").map(<[u8]>::to_vec).collect();
    assert_eq!(hosts, received, "the application reads another host");
}

fn uri(message: &Message) -> Option<Uri> {
    Uri::try_from(message.target()).ok()
}

/// Compares hyper's reading of the client's bytes with the application's request.
fn assert_same(parsed: &ParsedMessage, received: &Message) {
    assert_eq!(parsed.method.as_str().as_bytes(), received.method());
    assert_eq!(Some(&parsed.target), uri(received).as_ref());
    let version = format!("{:?}", parsed.version);
    assert_eq!(version.as_bytes(), received.start[2]);
    let Some((body, trailers)) = &parsed.body else {
        panic!("hyper reads no complete body, but the application does: {received:?}");
    };
    assert_eq!(*body, received.body);
    let mut headers = parsed.headers.clone();
    strip_connection_headers(&mut headers);
    // Compared in `assert_same_message`.
    headers.remove("host");
    let parsed = headers.iter();
    let parsed = parsed.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    let fields = received.fields.iter();
    let fields = fields.map(|(name, value)| (name.as_slice(), value.as_slice()));
    assert_eq!(shown(parsed), shown(fields));
    let are_sent = received.trailers.iter().all(|(name, value)| {
        let name = str::from_utf8(name).unwrap_or_default();
        let mut sent = trailers.get_all(name).iter();
        sent.any(|sent| sent.as_bytes() == value)
    });
    let received = &received.trailers;
    assert!(
        are_sent,
        "trailers were not sent: {received:?}, of {trailers:?}"
    );
}

/// Fields of the framing and of the connection, which the proxy replaces, and fields that it
/// removes.
const HOP_BY_HOP: [&str; 11] = [
    "host",
    "l5d-require-id",
    "l5d-proxy-error",
    "l5d-proxy-connection",
    "l5d-proxy-undelivered",
    "connection",
    "upgrade",
    "content-length",
    "transfer-encoding",
    "l5d-client-id",
    "l5d-orig-proto",
];

type Shown = BTreeMap<String, Vec<Vec<u8>>>;

fn shown<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Shown {
    let mut shown = Shown::new();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(name).into_owned();
        shown.entry(name).or_default().push(value.to_vec());
    }
    shown.retain(|name, _| !HOP_BY_HOP.contains(&name.as_str()));
    shown
}

/// Checks that the client receives one response for each request of the application, followed by at
/// most one error response.
fn check_responses(exchange: &Exchange) {
    let mut rest = exchange.received.as_slice();
    let mut methods = exchange.requests.iter().map(Message::request_method);
    let mut responses = 0;
    while !rest.is_empty() {
        let role = MessageKind::Response(methods.clone().next().unwrap_or(RequestMethod::Other));
        let response = match reader::message(rest, role, &STRICT) {
            Ok(Some(response)) => response,
            other => {
                let rest = String::from_utf8_lossy(rest);
                panic!("the client received an invalid response, {other:?}: {rest:?}");
            }
        };
        rest = &rest[response.end..];
        if response.is_interim() {
            continue;
        }
        if methods.next().is_some() {
            let is_from_app = matches!(response.status(), 200 | 405);
            assert!(is_from_app || rest.is_empty(), "{response:?}");
            responses += 1;
            continue;
        }
        let is_error = response.status() >= 400;
        assert!(is_error, "response without a request: {response:?}");
        let rest = String::from_utf8_lossy(rest);
        assert!(rest.is_empty(), "bytes after an error response: {rest:?}");
        return;
    }
    // An error response replaces the last response if the client's bytes end within a request.
    let is_enough = responses >= exchange.requests.len().saturating_sub(1);
    assert!(is_enough, "requests without a response: {exchange:?}");
}
