//! A client's bytes through the inbound proxy with any split: the application receives only
//! requests that the client sent, in the same order, and all parsers of the client's bytes and of
//! the application's read the same requests.
//!
//! Does not check which requests the proxy rejects. Input: the split, then the client's bytes.

use std::collections::BTreeMap;

use http::{HeaderMap, Uri};
use mesh_proxy::fuzzing::detect::HttpDetected;
use mesh_proxy::fuzzing::strip_connection_headers;

use super::detect;
use crate::app::{self, AppBehavior, Exchange};
use crate::input::Input;
use crate::oracle::hyper::{self, ParsedMessage};
use crate::oracle::reader::{self, Field, Message, MessageKind, PROFILES, RequestMethod, STRICT};
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
            assert!(
                !matches!(read, Ok(Some(_))),
                "{profile:?} reads an incomplete request as a complete one: {read:?}"
            );
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
                Ok(Some(message)) => {
                    let same = (message.end, &message.body) == (strict.end, &strict.body);
                    assert!(
                        same,
                        "{profile:?} reads {message:?} where the proxy accepted {strict:?}"
                    );
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
    assert_eq!(uri(sent), uri(received), "the target was changed");
    assert_eq!(sent.body, received.body, "the body was changed");
    let mut hosts: Vec<_> = sent.values("host").map(<[u8]>::to_vec).collect();
    if let (Some(host), Some(authority)) = (hosts.first_mut(), uri(sent).authority()) {
        // The authority of the target takes precedence (RFC 9112, section 3.2.2).
        *host = authority.as_str().into();
    }
    let received: Vec<_> = received.values("host").map(<[u8]>::to_vec).collect();
    assert_eq!(hosts, received, "the application reads another host");
}

fn uri(message: &Message) -> Uri {
    Uri::try_from(message.target()).expect("a valid target")
}

/// Compares hyper's reading of the client's bytes with the application's request.
fn assert_same(parsed: &ParsedMessage, received: &Message) {
    assert_eq!(parsed.method.as_str().as_bytes(), received.method());
    assert_eq!(parsed.target, uri(received));
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
    assert_eq!(shown(&headers), shown_fields(&received.fields));
    let are_sent = received.trailers.iter().all(|(name, value)| {
        let name = str::from_utf8(name).unwrap_or_default();
        trailers
            .get_all(name)
            .iter()
            .any(|sent| sent.as_bytes() == value)
    });
    assert!(
        are_sent,
        "trailers were not sent: {:?}, of {trailers:?}",
        received.trailers
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

fn shown(headers: &HeaderMap) -> Shown {
    let mut shown = Shown::new();
    for (name, value) in headers {
        shown
            .entry(name.to_string())
            .or_default()
            .push(value.as_bytes().to_vec());
    }
    without_hop_by_hop(shown)
}

fn shown_fields(fields: &[Field]) -> Shown {
    let mut shown = Shown::new();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(name).into_owned();
        shown.entry(name).or_default().push(value.clone());
    }
    without_hop_by_hop(shown)
}

fn without_hop_by_hop(mut shown: Shown) -> Shown {
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
            other => panic!(
                "the client received an invalid response, {other:?}: {:?}",
                String::from_utf8_lossy(rest)
            ),
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
        assert!(
            response.status() >= 400,
            "response without a request: {response:?}"
        );
        assert!(
            rest.is_empty(),
            "bytes after an error response: {:?}",
            String::from_utf8_lossy(rest)
        );
        return;
    }
    // An error response replaces the last response if the client's bytes end within a request.
    assert!(
        responses >= exchange.requests.len().saturating_sub(1),
        "requests without a response: {exchange:?}"
    );
}
