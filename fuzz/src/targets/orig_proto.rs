//! HTTP/1 carried over HTTP/2 between two proxies: the application sees what it would see behind
//! one, and the client gets what it would get from one.
//!
//! Input: choices that make a request and a response, both in order.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use self::message::Messages;
use crate::hops::{self, Hop};
use crate::judge::reader::{self, Asked, Field, Message, Role, STRICT};
use crate::world::{self, receive, send};

mod message;

pub(crate) fn run(input: &[u8]) {
    let messages = Messages::of(input);
    let direct = Seen::behind(&[Hop::Only], &messages);
    let carried = Seen::behind(&[Hop::First, Hop::Second], &messages);
    let shown = String::from_utf8_lossy(&messages.request);
    assert_eq!(
        direct.requests.len(),
        carried.requests.len(),
        "one proxy passes it on and two do not, or the other way round: {shown}"
    );
    for (direct, carried) in direct.requests.iter().zip(&carried.requests) {
        assert_same(direct, carried, Start::Whole);
    }
    let read = |seen: &Seen| final_response(&seen.got, messages.asked);
    match (read(&direct), read(&carried)) {
        (Some(direct), Some(carried)) => assert_same(&direct, &carried, Start::Status),
        (None, None) => {}
        _ => panic!(
            "one of them is not whole, of {} and {} bytes: {shown}",
            direct.got.len(),
            carried.got.len()
        ),
    }
}

/// The response behind those that are none yet: who answers `expect` depends on the number of
/// proxies.
fn final_response(mut got: &[u8], asked: Asked) -> Option<Message> {
    loop {
        let response = reader::message(got, Role::Response(asked), &STRICT).expect("a response")?;
        if !response.is_interim() {
            return Some(response);
        }
        got = &got[response.end..];
    }
}

/// How much of the start line must be the same.
#[derive(PartialEq, Eq)]
enum Start {
    Whole,
    /// Reason phrases do not exist in HTTP/2, and the version between the client and its proxy is
    /// theirs.
    Status,
}

fn assert_same(direct: &Message, carried: &Message, start: Start) {
    let (first, second) = (shown(direct), shown(carried));
    assert_eq!(direct.start[1], carried.start[1], "{first} became {second}");
    if start == Start::Whole {
        assert_eq!(direct.start, carried.start, "{first} became {second}");
    }
    assert_eq!(
        end_to_end(&direct.fields),
        end_to_end(&carried.fields),
        "{first} became {second}"
    );
    assert_eq!(direct.body, carried.body, "the body was changed");
    assert_eq!(
        sorted(&direct.trailers),
        sorted(&carried.trailers),
        "{first} became {second}"
    );
}

/// What concerns a connection: whether it is kept, how a body is framed on it (by its version),
/// which codings its client takes. And what proxies tell each other.
const OF_THE_HOP: [&[u8]; 4] = [
    b"connection",
    b"transfer-encoding",
    b"te",
    b"l5d-orig-proto",
];

fn end_to_end(fields: &[Field]) -> Vec<Field> {
    let mut fields = sorted(fields);
    fields.retain(|(name, _)| !OF_THE_HOP.contains(&name.as_slice()));
    fields
}

/// Fields of different names may change their order.
fn sorted(fields: &[Field]) -> Vec<Field> {
    let mut fields = fields.to_vec();
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// The head, for a person.
fn shown(message: &Message) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let start = message
        .start
        .iter()
        .map(|part| text(part))
        .collect::<Vec<_>>()
        .join(" ");
    let fields = message
        .fields
        .iter()
        .map(|(name, value)| format!("{}: {}", text(name), text(value)));
    format!("{start} [{}]", fields.collect::<Vec<_>>().join(", "))
}

/// What came of a request.
struct Seen {
    requests: Vec<Message>,
    got: Vec<u8>,
}

impl Seen {
    /// Sends the request through these proxies.
    fn behind(hops: &[Hop], messages: &Messages) -> Self {
        let requests = Rc::new(RefCell::new(Vec::new()));
        let got = world::run(async {
            let app = App {
                requests: requests.clone(),
                response: messages.response.clone().into(),
            };
            let app = move |tcp| drop(spawn_local(app.clone().serve(tcp)));
            let client = hops::chain(hops, app).connect();
            let (reading, writing) = client.into_split();
            let sending = spawn_local({
                let request = messages.request.clone();
                async move { send(writing, &request, 0).await }
            });
            let (got, _closed) = receive(reading).await;
            sending.abort();
            got
        });
        Self {
            requests: requests.take(),
            got,
        }
    }
}

/// Answers every request alike and closes.
#[derive(Clone)]
struct App {
    requests: Rc<RefCell<Vec<Message>>>,
    response: Rc<[u8]>,
}

impl App {
    async fn serve(self, mut tcp: TcpStream) {
        let mut waiting = Vec::new();
        let request = loop {
            match reader::message(&waiting, Role::Request, &STRICT) {
                Ok(Some(request)) => break request,
                Ok(None) => {
                    if !matches!(tcp.read_buf(&mut waiting).await, Ok(1..)) {
                        return;
                    }
                }
                Err(wrong) => panic!(
                    "the application was sent what is no request ({wrong}): {:?}",
                    String::from_utf8_lossy(&waiting)
                ),
            }
        };
        assert_eq!(
            request.end,
            waiting.len(),
            "more than one request: {:?}",
            String::from_utf8_lossy(&waiting)
        );
        self.requests.borrow_mut().push(request);
        if tcp.write_all(&self.response).await.is_ok() {
            let _gone = tcp.shutdown().await;
        }
    }
}
