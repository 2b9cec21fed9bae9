//! Chunked bodies at any split, as a handler of the HTTP/1 server gets them, against readers that
//! have all bytes at once.
//!
//! Input: how it is cut, then the body.

use std::cell::RefCell;
use std::rc::Rc;

use http::HeaderMap;
use http_body_util::BodyExt as _;
use mesh_proxy::http::{Body, HttpHandler, Protocol, Request, Reset, Response};
use tokio::join;

use crate::input::Input;
use crate::judge::reader::{self, ChunkedBody, HABITS};
use crate::world::{self, pipe, receive, send};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\n\r\n";

/// These mean something else in a head, so they are left out (`http::headers::is_allowed_in_trailers`).
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

/// And these, by how they begin.
const NEVER_TRAILERS_FROM: [&str; 3] = ["if-", "l5d-", "x-forwarded-"];

fn is_left_out(name: &[u8]) -> bool {
    NEVER_TRAILERS.iter().any(|never| never.as_bytes() == name)
        || NEVER_TRAILERS_FROM
            .iter()
            .any(|never| name.starts_with(never.as_bytes()))
}

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let how = input.byte();
    let bytes = input.0;
    let received = receive_body(bytes, how);
    assert_eq!(
        received,
        receive_body(bytes, 0),
        "it matters how a body is cut"
    );
    let strict = reader::chunked(bytes, 0, &HABITS[0]);
    let Some((data, trailers)) = received else {
        return;
    };
    let Ok(Some(strict)) = strict else {
        panic!("a body is accepted that is {strict:?}");
    };
    assert_eq!(data, strict.data);
    check_trailers(&trailers, &strict);
    for habits in &HABITS[1..] {
        let body = reader::chunked(bytes, 0, habits);
        let Ok(Some(body)) = body else {
            panic!("a body is accepted that is {body:?} to {habits:?}");
        };
        assert_eq!(
            (body.end, &body.data),
            (strict.end, &strict.data),
            "{habits:?}"
        );
    }
}

fn check_trailers(got: &HeaderMap, strict: &ChunkedBody) {
    let got: Vec<_> = got
        .iter()
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
        .collect();
    let mut sent: Vec<_> = strict
        .trailers
        .iter()
        .map(|(name, value)| (name.as_slice(), value.as_slice()))
        .filter(|(name, _)| !is_left_out(name))
        .collect();
    // A map keeps the values of a name together.
    let mut got_sorted = got;
    got_sorted.sort_by_key(|(name, _)| *name);
    sent.sort_by_key(|(name, _)| *name);
    assert_eq!(got_sorted, sent);
}

/// The first body that a handler gets, and its trailers; `None` when it does not end well.
type Received = Option<(Vec<u8>, HeaderMap)>;

fn receive_body(bytes: &[u8], how: u8) -> Received {
    let request = [HEAD, bytes].concat();
    let collect = Collect(RefCell::default());
    let collect = Rc::new(collect);
    world::run(async {
        let (io, client) = pipe();
        let server = world::server();
        let (reading, writing) = client.into_split();
        let serving = server.serve(io, Protocol::Http1, collect.clone());
        let _ends = join!(serving, send(writing, &request, how), receive(reading));
    });
    let mut bodies = collect.0.take();
    bodies.truncate(1);
    bodies.pop().flatten()
}

/// Takes bodies.
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
