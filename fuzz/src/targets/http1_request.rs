//! A client's bytes through the whole inbound side, at any split: each request that the application
//! gets is one that the client sent, in its order, and everybody who could have read the client's
//! bytes or reads the application's sees the same ones.
//!
//! What the proxy refuses is of no interest here. Input: how it is cut, then the client's bytes.

use std::collections::BTreeMap;

use http::{HeaderMap, Uri};
use mesh_proxy::http::headers::strip_connection_headers;
use mesh_proxy::transport::detect::HttpDetected;

use super::detect;
use crate::app::{self, Exchange, Manner};
use crate::input::Input;
use crate::judge::hyper::{self, Seen};
use crate::judge::reader::{self, Asked, Field, HABITS, Message, Role, STRICT};
use crate::world;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let how = input.byte();
    let bytes = input.0;
    // Everything else is a tunnel, or HTTP/2.
    if detect::http(bytes, 0) != HttpDetected::Http1 {
        return;
    }
    let exchange = app::exchange(bytes, how, Manner::Polite);
    check_rests(&exchange);
    let sent = messages_sent(bytes, exchange.requests.len());
    let (seen, served) = world::run(hyper::requests(bytes));
    for (index, request) in exchange.requests.iter().enumerate() {
        assert_same_message(&sent[index], request);
        let Some(seen) = seen.get(index) else {
            panic!(
                "hyper sees {} requests and ends with {served:?}; the application got {}: {request:?}",
                seen.len(),
                exchange.requests.len()
            );
        };
        assert_same(seen, request);
    }
    check_responses(&exchange);
}

/// What reached the application without being a request must not become one.
fn check_rests(exchange: &Exchange) {
    for rest in &exchange.rests {
        for habits in &HABITS[1..] {
            let read = reader::message(rest, Role::Request, habits);
            assert!(
                !matches!(read, Ok(Some(_))),
                "{habits:?} takes a broken request for a whole one: {read:?}"
            );
        }
    }
}

/// The first `count` messages of the client, which all readers must read alike.
fn messages_sent(bytes: &[u8], count: usize) -> Vec<Message> {
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in 0..count {
        let rest = &bytes[at..];
        let strict = match reader::message(rest, Role::Request, &STRICT) {
            Ok(Some(message)) => message,
            other => {
                panic!("the application got a request that the client has not sent: {other:?}")
            }
        };
        for habits in &HABITS[1..] {
            match reader::message(rest, Role::Request, habits) {
                Ok(Some(message)) => {
                    let same = (message.end, &message.body) == (strict.end, &strict.body);
                    assert!(
                        same,
                        "{habits:?} reads {message:?} where the proxy accepted {strict:?}"
                    );
                }
                other => panic!("{habits:?} reads {other:?} where the proxy accepted {strict:?}"),
            }
        }
        at += strict.end;
        messages.push(strict);
    }
    messages
}

/// What the client sent and what the application got, by the same reader.
fn assert_same_message(sent: &Message, got: &Message) {
    assert_eq!(sent.method(), got.method());
    assert_eq!(sent.start[2], got.start[2], "the version was changed");
    assert_eq!(uri(sent), uri(got), "the target was changed");
    assert_eq!(sent.body, got.body, "the body was changed");
    let mut hosts: Vec<_> = sent.values("host").map(<[u8]>::to_vec).collect();
    if let (Some(host), Some(authority)) = (hosts.first_mut(), uri(sent).authority()) {
        // The target's counts (RFC 9112, section 3.2.2).
        *host = authority.as_str().into();
    }
    let got: Vec<_> = got.values("host").map(<[u8]>::to_vec).collect();
    assert_eq!(hosts, got, "the application reads another host");
}

fn uri(message: &Message) -> Uri {
    Uri::try_from(message.target()).expect("a target that was accepted")
}

/// What hyper read of the client's bytes and what the application got.
fn assert_same(seen: &Seen, got: &Message) {
    assert_eq!(seen.method.as_str().as_bytes(), got.method());
    assert_eq!(seen.target, uri(got));
    assert_eq!(format!("{:?}", seen.version).as_bytes(), got.start[2]);
    let Some((body, trailers)) = &seen.body else {
        panic!("hyper finds no end of a body that the application got: {got:?}");
    };
    assert_eq!(*body, got.body);
    let mut headers = seen.headers.clone();
    strip_connection_headers(&mut headers);
    // Compared in `assert_same_message`.
    headers.remove("host");
    assert_eq!(shown(&headers), shown_fields(&got.fields));
    let kept = got.trailers.iter().all(|(name, value)| {
        let name = str::from_utf8(name).unwrap_or_default();
        trailers
            .get_all(name)
            .iter()
            .any(|have| have.as_bytes() == value)
    });
    assert!(
        kept,
        "trailers were made up: {:?}, of {trailers:?}",
        got.trailers
    );
}

/// What concerns the framing, which the proxy chooses anew, or the connection, and what is removed
/// on purpose.
const OF_THE_HOP: [&str; 11] = [
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
    without_hop(shown)
}

fn shown_fields(fields: &[Field]) -> Shown {
    let mut shown = Shown::new();
    for (name, value) in fields {
        let name = String::from_utf8_lossy(name).into_owned();
        shown.entry(name).or_default().push(value.clone());
    }
    without_hop(shown)
}

fn without_hop(mut shown: Shown) -> Shown {
    shown.retain(|name, _| !OF_THE_HOP.contains(&name.as_str()));
    shown
}

/// The client gets one response for each request that the application answered, and at most one
/// refusal behind them.
fn check_responses(exchange: &Exchange) {
    let mut rest = exchange.got.as_slice();
    let mut asked = exchange.requests.iter().map(Message::asked);
    let mut answered = 0;
    while !rest.is_empty() {
        let role = Role::Response(asked.clone().next().unwrap_or(Asked::Other));
        let response = match reader::message(rest, role, &STRICT) {
            Ok(Some(response)) => response,
            other => panic!(
                "the client got what is no response, {other:?}: {:?}",
                String::from_utf8_lossy(rest)
            ),
        };
        rest = &rest[response.end..];
        if response.is_interim() {
            continue;
        }
        if asked.next().is_some() {
            let is_the_apps = matches!(response.status(), 200 | 405);
            assert!(is_the_apps || rest.is_empty(), "{response:?}");
            answered += 1;
            continue;
        }
        assert!(
            response.status() >= 400,
            "a response to nothing: {response:?}"
        );
        assert!(
            rest.is_empty(),
            "something comes behind a refusal: {:?}",
            String::from_utf8_lossy(rest)
        );
        return;
    }
    // A refusal takes the place of a response when a request breaks off while it is answered.
    assert!(
        answered >= exchange.requests.len().saturating_sub(1),
        "requests were not answered: {exchange:?}"
    );
}
