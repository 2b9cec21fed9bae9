//! Chunked bodies with any split, as a handler of the HTTP/1 server receives them, compared with
//! parsers that receive all bytes together.
//!
//! Input: the split, then the body.

use std::cell::RefCell;
use std::rc::Rc;

use http::HeaderMap;
use http_body_util::BodyExt as _;
use mesh_proxy::fuzzing::{Body, HttpHandler, Protocol, Request, Reset, Response};
use tokio::join;

use crate::input::Input;
use crate::oracle::reader::{self, ChunkedBody, PROFILES};
use crate::test_env::{self, pipe, receive, send};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n";

/// Fields that are removed from trailer sections because they have another meaning in a header
/// section (`http::headers::is_allowed_in_trailers`).
const NEVER_TRAILERS: [&str; 26] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "realm",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];

/// Prefixes of further fields that are removed from trailer sections.
const NEVER_TRAILER_PREFIXES: [&str; 3] = ["if-", "l5d-", "x-forwarded-"];

fn is_removed(name: &[u8]) -> bool {
    NEVER_TRAILERS.iter().any(|never| never.as_bytes() == name)
        || NEVER_TRAILER_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix.as_bytes()))
}

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let split = input.byte();
    let bytes = input.0;
    let received = receive_body(bytes, split);
    let unsplit = receive_body(bytes, 0);
    assert_eq!(received, unsplit, "the result depends on the split");
    let strict = reader::chunked(bytes, 0, &PROFILES[0]);
    let Some((data, trailers)) = received else {
        return;
    };
    let Ok(Some(strict)) = strict else {
        panic!("the proxy accepts a body that the strict parser does not: {strict:?}");
    };
    assert_eq!(data, strict.data);
    check_trailers(&trailers, &strict);
    for profile in &PROFILES[1..] {
        let body = reader::chunked(bytes, 0, profile);
        let Ok(Some(body)) = body else {
            panic!("the proxy accepts a body that {profile:?} does not: {body:?}");
        };
        let [body, strict] = [&body, &strict].map(|body| (body.end, &body.data));
        assert_eq!(body, strict, "{profile:?}");
    }
}

fn check_trailers(got: &HeaderMap, strict: &ChunkedBody) {
    let got = got.iter();
    let mut got: Vec<_> = got
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
        .collect();
    let sent = strict.trailers.iter();
    let mut sent: Vec<_> = sent
        .map(|(name, value)| (name.as_slice(), value.as_slice()))
        .filter(|(name, _)| !is_removed(name))
        .collect();
    // A header map groups the values of a name.
    got.sort_by_key(|(name, _)| *name);
    sent.sort_by_key(|(name, _)| *name);
    assert_eq!(got, sent);
}

/// The first body that a handler receives, and its trailers. `None` if reading it failed.
type Received = Option<(Vec<u8>, HeaderMap)>;

fn receive_body(bytes: &[u8], split: u8) -> Received {
    let request = [HEAD, bytes].concat();
    let collect = Collect(RefCell::default());
    let collect = Rc::new(collect);
    test_env::run(async {
        let (io, client) = pipe();
        let (reading, writing) = client.into_split();
        let serving = test_env::serve_http(io, Protocol::Http1, collect.clone());
        let _outcomes = join!(serving, send(writing, &request, split), receive(reading));
    });
    let mut bodies = collect.0.take();
    bodies.truncate(1);
    bodies.pop().flatten()
}

/// Collects bodies.
struct Collect(RefCell<Vec<Received>>);

impl HttpHandler for Collect {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        let received = match request.body_mut().collect().await {
            Ok(body) => {
                let trailers = body.trailers().cloned().unwrap_or_default();
                Some((body.to_bytes().to_vec(), trailers))
            }
            Err(_broken) => None,
        };
        self.0.borrow_mut().push(received);
        Ok(Response::new(Body::empty()))
    }
}
