//! Arbitrary HTTP/2 frames from a server to the proxy's client: each request completes; responses
//! contain the bytes sent, completely or with an error; the client's frames are valid; memory is
//! bounded; and the responses of an orderly server are read.
//!
//! Input: the requests, then actions of the server, see [`script`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::join_all;
use http::Version;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use mesh_proxy::fuzzing::{Body, Client, Dial, DialError, Io, Protocol, Request};
use tokio::task::{spawn_local, yield_now};

use self::script::{RequestKind, Script};
use crate::frame::{self, HEADERS, PREFACE};
use crate::memory;
use crate::test_env::{self, converse, sockets};

mod client_output;
mod script;

/// The most memory that one server may cause, including its own buffers.
const MAX_MEMORY: usize = 4 << 20;

pub(crate) fn run(input: &[u8]) {
    let script = Rc::new(Script::decode(input));
    let servers = Rc::new(Servers {
        script: script.clone(),
        connections: Cell::new(0),
        received: RefCell::default(),
    });
    let before = memory::start();
    let outcomes = test_env::run({
        let servers = servers.clone();
        async move {
            let client = test_env::client(Dialer(servers.clone()));
            let requests = servers.script.requests.iter();
            let outcomes = join_all(requests.map(|request| send(&client, *request))).await;
            drop(client);
            while servers.received.borrow().len() < servers.connections.get() {
                yield_now().await;
            }
            outcomes
        }
    });
    let peak = memory::peak().saturating_sub(before);
    assert!(peak <= MAX_MEMORY, "{peak} bytes of memory");
    for received in servers.received.borrow().iter() {
        client_output::check(received, &script);
    }
    check_outcomes(&script, servers.connections.get(), &outcomes);
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    NoResponse,
    /// A response whose body was not read.
    Unread,
    /// A response with its complete body.
    Complete {
        length: usize,
    },
    /// A response whose body failed.
    Incomplete {
        length: usize,
    },
}

async fn send(client: &Client<Dialer>, kind: RequestKind) -> Outcome {
    let request = http::Request::builder()
        .method(kind.method())
        .uri("http://web/")
        .version(Version::HTTP_2)
        .body(Body::full(vec![b'x'; kind.body()]));
    let mut request: Request = request.expect("a request");
    let Ok(response) = client.send(&mut request).await else {
        return Outcome::NoResponse;
    };
    if kind == RequestKind::GetUnread {
        return Outcome::Unread;
    }
    let (head, mut body) = response.into_parts();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => length += frame.data_ref().map_or(0, |data| data.len()),
            Err(_error) => return Outcome::Incomplete { length },
        }
    }
    let declared = head.headers.get(CONTENT_LENGTH);
    if kind == RequestKind::Head {
        assert_eq!(length, 0, "a response to HEAD has a body");
    } else if let Some(declared) = declared.filter(|_| has_content(head.status.as_u16())) {
        let declared = declared.to_str().ok().and_then(|text| text.parse().ok());
        assert_eq!(declared, Some(length), "content-length of a complete body");
    }
    Outcome::Complete { length }
}

/// Whether content-length is the length of the body (RFC 9110, section 8.6).
fn has_content(status: u16) -> bool {
    !matches!(status, 204 | 304)
}

fn check_outcomes(script: &Script, connections: usize, outcomes: &[Outcome]) {
    let is_response = |outcome: &&Outcome| **outcome != Outcome::NoResponse;
    let is_within = outcomes.iter().filter(is_response).count() <= script.headers * connections;
    assert!(is_within, "more responses than were sent: {outcomes:?}");
    let lengths = outcomes.iter().map(|outcome| match outcome {
        Outcome::Complete { length } | Outcome::Incomplete { length } => *length,
        Outcome::NoResponse | Outcome::Unread => 0,
    });
    let is_within = lengths.sum::<usize>() <= script.data * connections;
    assert!(is_within, "more body bytes than were sent: {outcomes:?}");
    if script.is_orderly {
        assert_eq!(outcomes, script.outcomes());
    }
}

/// Servers with the same script, one for each connection.
struct Servers {
    script: Rc<Script>,
    connections: Cell<usize>,
    /// The client's bytes on each closed connection.
    received: RefCell<Vec<Vec<u8>>>,
}

struct Dialer(Rc<Servers>);

impl Dial for Dialer {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let (client, server) = sockets();
        let servers = self.0.clone();
        servers.connections.set(servers.connections.get() + 1);
        drop(spawn_local(async move {
            let script = &servers.script;
            let can_start = |received: &[u8]| requests(received) >= script.requests.len();
            let received = converse(server, &script.bytes, script.split, can_start).await;
            servers.received.borrow_mut().push(received);
        }));
        Ok(Io::plain(client))
    }
}

/// Counts the requests of a client.
fn requests(received: &[u8]) -> usize {
    let frames = received.strip_prefix(PREFACE).unwrap_or_default();
    frame::read(frames)
        .filter(|frame| frame.kind == HEADERS)
        .count()
}
