//! What an HTTP/2 server may send, frame by frame, to the proxy's client: each request ends; what
//! it gets is what was sent, whole or known to be broken; what the proxy sends meanwhile is right;
//! what it holds is bounded; and a server that does nothing odd has its responses read.
//!
//! Input: what is asked, then acts of the server, see [`script`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::future::join_all;
use http::Version;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use mesh_core::endpoint::Http2Params;
use mesh_proxy::error::DialError;
use mesh_proxy::http::client::{Client, ClientConfig, Dial};
use mesh_proxy::http::{Body, Protocol, Request};
use mesh_proxy::transport::Io;
use tokio::task::{spawn_local, yield_now};

use self::script::{Question, Script};
use crate::memory;
use crate::wire::{self, HEADERS, PREFACE};
use crate::world::{self, converse, sockets, worker};

mod script;
mod sent;

/// What one server may make the process hold, its own buffers included.
const MOST_MEMORY: usize = 4 << 20;

pub(crate) fn run(input: &[u8]) {
    let script = Rc::new(Script::of(input));
    let servers = Rc::new(Servers {
        script: script.clone(),
        connections: Cell::new(0),
        got: RefCell::default(),
    });
    let before = memory::start();
    let outcomes = world::run({
        let servers = servers.clone();
        async move {
            let pool = &worker().config.inbound.http1_pool;
            let params = ClientConfig::new(pool, Http2Params::default());
            let client = Client::new(Dialer(servers.clone()), &params);
            let requests = servers.script.questions.iter();
            let outcomes = join_all(requests.map(|question| ask(&client, *question))).await;
            drop(client);
            while servers.got.borrow().len() < servers.connections.get() {
                yield_now().await;
            }
            outcomes
        }
    });
    let held = memory::peak().saturating_sub(before);
    assert!(held <= MOST_MEMORY, "{held} bytes were held");
    for got in servers.got.borrow().iter() {
        sent::check(got, &script);
    }
    judge(&script, servers.connections.get(), &outcomes);
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    NoResponse,
    /// The head came; nobody looked at the rest.
    Unread,
    /// The body came to its end.
    Whole {
        length: usize,
    },
    /// The body broke off.
    Broken {
        length: usize,
    },
}

async fn ask(client: &Client<Dialer>, question: Question) -> Outcome {
    let request = http::Request::builder()
        .method(question.method())
        .uri("http://web/")
        .version(Version::HTTP_2)
        .body(Body::full(vec![b'x'; question.body()]));
    let mut request: Request = request.expect("a request");
    let Ok(response) = client.send(&mut request).await else {
        return Outcome::NoResponse;
    };
    if question == Question::GetUnread {
        return Outcome::Unread;
    }
    let (head, mut body) = response.into_parts();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => length += frame.data_ref().map_or(0, |data| data.len()),
            Err(_broken) => return Outcome::Broken { length },
        }
    }
    let declared = head.headers.get(CONTENT_LENGTH);
    if question == Question::Head {
        assert_eq!(length, 0, "a response to HEAD has a body");
    } else if let Some(declared) = declared.filter(|_| has_content(head.status.as_u16())) {
        assert_eq!(
            declared.to_str().ok().and_then(|text| text.parse().ok()),
            Some(length),
            "a body is not as long as its head says, and looks whole"
        );
    }
    Outcome::Whole { length }
}

/// Whether a length says something of the body (RFC 9110, section 8.6).
fn has_content(status: u16) -> bool {
    !matches!(status, 204 | 304)
}

fn judge(script: &Script, connections: usize, outcomes: &[Outcome]) {
    let responses = outcomes
        .iter()
        .filter(|outcome| **outcome != Outcome::NoResponse);
    assert!(
        responses.count() <= script.heads * connections,
        "responses were made up: {outcomes:?}"
    );
    let lengths = outcomes.iter().map(|outcome| match outcome {
        Outcome::Whole { length } | Outcome::Broken { length } => *length,
        Outcome::NoResponse | Outcome::Unread => 0,
    });
    assert!(
        lengths.sum::<usize>() <= script.data * connections,
        "bodies were made up: {outcomes:?}"
    );
    if script.is_orderly {
        assert_eq!(outcomes, script.outcomes());
    }
}

/// Servers, one for each connection, that all say the same.
struct Servers {
    script: Rc<Script>,
    connections: Cell<usize>,
    /// What the client has sent to those that have ended.
    got: RefCell<Vec<Vec<u8>>>,
}

struct Dialer(Rc<Servers>);

impl Dial for Dialer {
    async fn dial(&self, _protocol: Protocol) -> Result<Io, DialError> {
        let (here, there) = sockets();
        let servers = self.0.clone();
        servers.connections.set(servers.connections.get() + 1);
        drop(spawn_local(async move {
            let script = &servers.script;
            let asked = |got: &[u8]| requests(got) >= script.questions.len();
            let got = converse(there, &script.bytes, script.how, asked).await;
            servers.got.borrow_mut().push(got);
        }));
        Ok(Io::plain(here))
    }
}

/// How many requests have begun.
fn requests(got: &[u8]) -> usize {
    let frames = got.strip_prefix(PREFACE).unwrap_or_default();
    wire::read(frames)
        .filter(|frame| frame.kind == HEADERS)
        .count()
}
