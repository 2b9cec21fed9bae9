//! An application's bytes through the whole inbound side, at any split: a response that the client
//! gets whole is the one that everybody reads in the application's bytes, and what nobody could
//! know the end of does not look whole to the client.
//!
//! Input: which request, how it is cut, then the application's bytes.

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;

use crate::app::{self, Exchange, Manner};
use crate::input::Input;
use crate::judge::hyper;
use crate::judge::reader::{self, Asked, HABITS, Message, Role, STRICT};
use crate::world;

/// What the client asks.
#[derive(Clone, Copy)]
struct Question {
    method: &'static str,
    bytes: &'static [u8],
    asked: Asked,
}

const QUESTIONS: [Question; 4] = [
    Question {
        method: "GET",
        bytes: b"GET / HTTP/1.1\r\nhost: web\r\n\r\n",
        asked: Asked::Other,
    },
    Question {
        method: "HEAD",
        bytes: b"HEAD / HTTP/1.1\r\nhost: web\r\n\r\n",
        asked: Asked::Head,
    },
    Question {
        method: "POST",
        bytes: b"POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello",
        asked: Asked::Other,
    },
    Question {
        method: "GET",
        bytes: b"GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        asked: Asked::Other,
    },
];

pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let question = input.choose(QUESTIONS);
    let how = input.byte();
    let said = behind_empty_lines(input.0);
    let exchange = app::exchange(question.bytes, 0, Manner::Says(input.0.into(), how));
    let Some(got) = got(&exchange, question) else {
        return;
    };
    if got.status() == 502 && got.body.is_empty() {
        // The proxy's refusal. An application that says the same loses nothing by not being looked
        // at.
        return;
    }
    let sent = sent(said, question, &got);
    assert_eq!(sent.body, got.body, "the body was changed");
    if got.status() == 101 {
        let behind = &said[said.len().min(sent_end(said, question))..];
        assert!(exchange.got.ends_with(behind), "a tunnel lost bytes");
        return;
    }
    check_hyper(said, question, &got);
}

/// The final response, if it is whole.
fn got(exchange: &Exchange, question: Question) -> Option<Message> {
    let mut rest = exchange.got.as_slice();
    loop {
        let response = match reader::message(rest, Role::Response(question.asked), &STRICT) {
            Ok(response) => response?,
            Err(wrong) => panic!(
                "the client got what is no response ({wrong}): {:?}",
                String::from_utf8_lossy(rest)
            ),
        };
        if !response.is_interim() {
            let is_alone = response.status() == 101 || response.end == rest.len();
            assert!(
                is_alone,
                "something comes behind the response: {:?}",
                String::from_utf8_lossy(&rest[response.end..])
            );
            return Some(response);
        }
        rest = &rest[response.end..];
    }
}

/// The final response in the application's bytes, on which all readers must agree.
fn sent(said: &[u8], question: Question, got: &Message) -> Message {
    let mut found = HABITS.iter().map(|habits| {
        let mut rest = said;
        loop {
            match reader::message(rest, Role::Response(question.asked), habits) {
                Ok(Some(response)) if response.is_interim() => {
                    rest = behind_empty_lines(&rest[response.end..]);
                }
                Ok(Some(mut response)) => {
                    response.end += said.len() - rest.len();
                    return response;
                }
                other => panic!("{habits:?} reads {other:?} where the client got {got:?}"),
            }
        }
    });
    let strict = found.next().expect("the strict reader");
    for response in found {
        let same = (response.end, &response.body) == (strict.end, &strict.body);
        assert!(
            same,
            "one reads {response:?} where the proxy accepted {strict:?}"
        );
    }
    strict
}

fn sent_end(said: &[u8], question: Question) -> usize {
    let mut rest = said;
    while let Ok(Some(response)) = reader::message(rest, Role::Response(question.asked), &STRICT) {
        rest = &rest[response.end..];
        if !response.is_interim() {
            break;
        }
        rest = behind_empty_lines(rest);
    }
    said.len() - rest.len()
}

/// Empty lines in front of a response are skipped, as hyper does it. RFC 9112, section 2.2, says it
/// of requests only; nobody reads another message for it.
fn behind_empty_lines(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    bytes
}

fn check_hyper(said: &[u8], question: Question, got: &Message) {
    let request = Request::builder()
        .method(question.method)
        .uri("/")
        .body(Empty::<Bytes>::new());
    let Some(seen) = world::run(hyper::response(said, request.expect("a request"))) else {
        panic!("hyper reads no response where the client got {got:?}");
    };
    assert_eq!(seen.status.as_u16(), got.status());
    let Some((body, trailers)) = seen.body else {
        panic!("hyper finds no end of a body that the client got: {got:?}");
    };
    assert_eq!(body, got.body, "hyper reads another body");
    for (name, value) in &got.trailers {
        let name = str::from_utf8(name).unwrap_or_default();
        let is_sent = trailers
            .get_all(name)
            .iter()
            .any(|have| have.as_bytes() == value);
        assert!(is_sent, "a trailer was made up: {name}");
    }
}
