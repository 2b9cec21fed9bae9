//! HTTP/1 over HTTP/2 between two proxies: the application receives the same request, and the
//! client the same response, as with one proxy.
//!
//! Input: choices for a valid request and response.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use self::message::Messages;
use crate::oracle::reader::{self, Field, Message, MessageKind, RequestMethod, STRICT};
use crate::proxy_chain::{self, ChainPosition};
use crate::test_env::{self, receive, send};

mod message;

pub(crate) fn run(input: &[u8]) {
    let messages = Messages::decode(input);
    let direct = ChainOutcome::through(&[ChainPosition::Only], &messages);
    let carried = ChainOutcome::through(&[ChainPosition::First, ChainPosition::Second], &messages);
    let shown = String::from_utf8_lossy(&messages.request);
    let are_both = direct.requests.len() == carried.requests.len();
    assert!(
        are_both,
        "only one of the chains forwards the request: {shown}"
    );
    for (direct, carried) in direct.requests.iter().zip(&carried.requests) {
        assert_same(direct, carried, Start::All);
    }
    let read = |outcome: &ChainOutcome| final_response(&outcome.received, messages.request_method);
    match (read(&direct), read(&carried)) {
        (Some(direct), Some(carried)) => assert_same(&direct, &carried, Start::Status),
        (None, None) => {}
        _ => panic!(
            "only one response is complete, of {} and {} bytes: {shown}",
            direct.received.len(),
            carried.received.len()
        ),
    }
}

/// Returns the final response. Interim responses depend on the number of proxies that respond to
/// `expect`.
fn final_response(mut received: &[u8], method: RequestMethod) -> Option<Message> {
    loop {
        let kind = MessageKind::Response(method);
        let response = reader::message(received, kind, &STRICT).expect("a response")?;
        if !response.is_interim() {
            return Some(response);
        }
        received = &received[response.end..];
    }
}

/// The part of the start line that is compared.
#[derive(PartialEq, Eq)]
enum Start {
    All,
    /// HTTP/2 has no reason phrase, and each connection has its own version.
    Status,
}

fn assert_same(direct: &Message, carried: &Message, start: Start) {
    let (first, second) = (shown(direct), shown(carried));
    assert_eq!(direct.start[1], carried.start[1], "{first} became {second}");
    if start == Start::All {
        assert_eq!(direct.start, carried.start, "{first} became {second}");
    }
    let fields = [direct, carried].map(|message| end_to_end(&message.fields));
    assert_eq!(fields[0], fields[1], "{first} became {second}");
    assert_eq!(direct.body, carried.body, "the body was changed");
    let trailers = [direct, carried].map(|message| sorted(&message.trailers));
    assert_eq!(trailers[0], trailers[1], "{first} became {second}");
}

/// Fields of a single connection: persistence, message framing, accepted transfer codings, and the
/// header between proxies.
const HOP_BY_HOP: [&[u8]; 4] = [
    b"connection",
    b"transfer-encoding",
    b"te",
    b"l5d-orig-proto",
];

fn end_to_end(fields: &[Field]) -> Vec<Field> {
    let mut fields = sorted(fields);
    fields.retain(|(name, _)| !HOP_BY_HOP.contains(&name.as_slice()));
    fields
}

/// Sorts by name, because the order of fields with different names may change.
fn sorted(fields: &[Field]) -> Vec<Field> {
    let mut fields = fields.to_vec();
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// Formats the start line and header section.
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

/// The result of a request through a chain of proxies.
struct ChainOutcome {
    /// Requests that the application received.
    requests: Vec<Message>,
    /// Bytes that the client received.
    received: Vec<u8>,
}

impl ChainOutcome {
    /// Sends the request through a chain.
    fn through(positions: &[ChainPosition], messages: &Messages) -> Self {
        let requests = Rc::new(RefCell::new(Vec::new()));
        let received = test_env::run(async {
            let app = App {
                requests: requests.clone(),
                response: messages.response.clone().into(),
            };
            let app = move |tcp| drop(spawn_local(app.clone().serve(tcp)));
            let client = proxy_chain::chain(positions, app).connect();
            let (reading, writing) = client.into_split();
            let sending = spawn_local({
                let request = messages.request.clone();
                async move { send(writing, &request, 0).await }
            });
            let (received, _closed) = receive(reading).await;
            sending.abort();
            received
        });
        Self {
            requests: requests.take(),
            received,
        }
    }
}

/// Sends the same response to every request and closes.
#[derive(Clone)]
struct App {
    requests: Rc<RefCell<Vec<Message>>>,
    response: Rc<[u8]>,
}

impl App {
    async fn serve(self, mut tcp: TcpStream) {
        let mut received = Vec::new();
        let request = loop {
            match reader::message(&received, MessageKind::Request, &STRICT) {
                Ok(Some(request)) => break request,
                Ok(None) => {
                    if !matches!(tcp.read_buf(&mut received).await, Ok(1..)) {
                        return;
                    }
                }
                Err(wrong) => panic!(
                    "the application received an invalid request ({wrong}): {:?}",
                    String::from_utf8_lossy(&received)
                ),
            }
        };
        let shown = String::from_utf8_lossy(&received);
        assert_eq!(
            request.end,
            received.len(),
            "more than one request: {shown:?}"
        );
        self.requests.borrow_mut().push(request);
        if tcp.write_all(&self.response).await.is_ok() {
            let _error = tcp.shutdown().await;
        }
    }
}
