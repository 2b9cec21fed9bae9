//! An input as the frames of a server: well-formed ones, odd ones and many of them, so that the
//! client's state is reached and not only its first check.

use super::Outcome;
use crate::input::Input;
use crate::wire::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE,
};

/// What is asked, all at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Get,
    Head,
    Post,
    /// With more than a window has room for.
    PostLarge,
    /// The response's body is of no interest.
    GetUnread,
}

/// What a server sends, and what is known of it.
pub(super) struct Script {
    pub(super) questions: Vec<Question>,
    pub(super) bytes: Vec<u8>,
    pub(super) how: u8,
    /// How many frames could have begun a response.
    pub(super) heads: usize,
    /// How many bytes could be part of a body.
    pub(super) data: usize,
    /// What it lets the client send, beyond the first windows.
    pub(super) granted: usize,
    /// Nothing was sent that a client may object to.
    pub(super) is_orderly: bool,
    /// How far the responses are, as long as the server is orderly.
    responses: Vec<Response>,
    /// Interim responses so far.
    hints: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    Nothing,
    /// So much of the body.
    Begun(usize),
    Over(usize),
}

/// A script never becomes longer: what repeats is cut off here.
const MOST_BYTES: usize = 64 * 1024;

const MOST_QUESTIONS: u8 = 4;

/// Orderly servers send no more interim responses ahead of one, so that none is refused.
const ORDERLY_HINTS: usize = 32;

/// Header blocks (RFC 7541): `:status 200` out of the static table, `:status 103` and trailers as
/// literals.
const OK: &[u8] = b"\x88";
const HINTS: &[u8] = b"\x08\x03103";
const TRAILERS: &[u8] = b"\x00\x01a\x01b";
/// The name `content-length` out of the static table, a literal of one byte to come.
const LENGTH: &[u8] = b"\x0f\x0d\x01";

impl Question {
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Get | Self::GetUnread => "GET",
            Self::Head => "HEAD",
            Self::Post | Self::PostLarge => "POST",
        }
    }

    /// How long the body of the request is.
    pub(super) fn body(self) -> usize {
        match self {
            Self::Get | Self::Head | Self::GetUnread => 0,
            Self::Post => 5,
            Self::PostLarge => 100_000,
        }
    }
}

impl Script {
    pub(super) fn of(input: &[u8]) -> Self {
        use Question::{Get, GetUnread, Head, Post, PostLarge};
        let mut input = Input(input);
        let count = 1 + input.byte() % MOST_QUESTIONS;
        let questions: Vec<Question> = (0..count)
            .map(|_| input.choose([Get, Post, Head, PostLarge, GetUnread]))
            .collect();
        let mut script = Self {
            responses: vec![Response::Nothing; questions.len()],
            hints: vec![0; questions.len()],
            questions,
            bytes: Vec::new(),
            how: input.byte(),
            heads: 0,
            data: 0,
            granted: 0,
            is_orderly: true,
        };
        script.frame(SETTINGS, 0, 0, &[]);
        while !input.is_empty() && script.bytes.len() < MOST_BYTES {
            script.act(&mut input);
        }
        script.bytes.truncate(MOST_BYTES);
        script
    }

    /// What an orderly server must have brought about.
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let responses = self.responses.iter().zip(&self.questions);
        responses
            .map(|(response, question)| match (*response, *question) {
                (Response::Nothing, _) => Outcome::NoResponse,
                (_, Question::GetUnread) => Outcome::Unread,
                (Response::Begun(length), _) => Outcome::Broken { length },
                (Response::Over(length), _) => Outcome::Whole { length },
            })
            .collect()
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() % 20 {
            0 | 1 => {
                let at = self.at(input);
                self.head(at, OK, false);
                self.data(at, input.byte(), true);
            }
            2 => {
                let (at, choice) = (self.at(input), input.byte());
                self.head(at, OK, choice & 1 == 1);
            }
            3 | 4 => {
                let (at, choice) = (self.at(input), input.byte());
                self.data(at, input.byte(), choice & 1 == 1);
            }
            5 => {
                let at = self.at(input);
                self.hints[at] += 1;
                self.is_orderly &=
                    self.responses[at] == Response::Nothing && self.hints[at] <= ORDERLY_HINTS;
                self.heads += 1;
                self.frame(HEADERS, END_HEADERS, stream_of(at), HINTS);
            }
            6 => {
                let at = self.at(input);
                match self.responses[at] {
                    Response::Begun(length) => self.responses[at] = Response::Over(length),
                    _ => self.is_orderly = false,
                }
                self.heads += 1;
                self.frame(HEADERS, END_HEADERS | END_STREAM, stream_of(at), TRAILERS);
            }
            7 => {
                // A length, true or not.
                let (at, digit) = (self.at(input), b'0' + input.byte() % 10);
                self.is_orderly = false;
                self.head(at, &[OK, LENGTH, &[digit]].concat(), false);
                self.data(at, digit - b'0', input.byte() & 1 == 1);
            }
            8 => self.frame(PING, input.choose([0, ACK]), 0, &[7; 8]),
            9 => {
                let size = usize::from(input.word()) + 1;
                self.granted += size;
                self.frame(WINDOW_UPDATE, 0, 0, &(size as u32).to_be_bytes());
            }
            10 => {
                let size = usize::from(input.word()) + 1;
                let at = self.at(input);
                self.granted += size;
                self.frame(
                    WINDOW_UPDATE,
                    0,
                    stream_of(at),
                    &(size as u32).to_be_bytes(),
                );
            }
            11 => {
                let code = u32::from(input.byte()).to_be_bytes();
                self.is_orderly = false;
                self.frame(RST_STREAM, 0, self.stream(input), &code);
            }
            12 => self.odd(SETTINGS, input.choose([0, ACK]), 0, input),
            13 => {
                let last = self.stream(input).to_be_bytes();
                let code = u32::from(input.byte()).to_be_bytes();
                self.is_orderly = false;
                self.frame(GOAWAY, 0, 0, &[last, code].concat());
            }
            14 => {
                let (kind, flags) = (input.choose([HEADERS, CONTINUATION]), input.byte());
                self.odd(kind, flags, self.stream(input), input);
            }
            15 => {
                let flags = input.byte();
                self.odd(DATA, flags, self.stream(input), input);
            }
            16 => self.odd(PUSH_PROMISE, END_HEADERS, self.stream(input), input),
            17 => {
                let (kind, flags) = (input.byte(), input.byte());
                self.odd(kind, flags, self.stream(input), input);
            }
            18 => self.flood(input),
            _ => {
                self.is_orderly = false;
                let length = usize::from(input.byte());
                let raw = input.take(length);
                // Whatever frames these are.
                self.heads += raw.len();
                self.data += raw.len() + wire::MAX_FRAME;
                self.bytes.extend_from_slice(raw);
            }
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        wire::write(&mut self.bytes, kind, flags, stream, payload);
    }

    /// A frame with a payload of the input's.
    fn odd(&mut self, kind: u8, flags: u8, stream: u32, input: &mut Input<'_>) {
        self.is_orderly = false;
        let length = usize::from(input.byte());
        let payload = input.take(length);
        self.heads += 1;
        self.data += payload.len();
        self.frame(kind, flags, stream, payload);
    }

    fn head(&mut self, at: usize, block: &[u8], is_last: bool) {
        self.is_orderly &= self.responses[at] == Response::Nothing;
        self.responses[at] = match is_last {
            true => Response::Over(0),
            false => Response::Begun(0),
        };
        self.heads += 1;
        let flags = END_HEADERS | if is_last { END_STREAM } else { 0 };
        self.frame(HEADERS, flags, stream_of(at), block);
    }

    fn data(&mut self, at: usize, length: u8, is_last: bool) {
        let length = usize::from(length);
        match self.responses[at] {
            Response::Begun(before) if is_last => {
                self.responses[at] = Response::Over(before + length);
            }
            Response::Begun(before) => self.responses[at] = Response::Begun(before + length),
            _ => self.is_orderly = false,
        }
        self.is_orderly &= length == 0 || self.questions[at] != Question::Head;
        self.data += length;
        self.is_orderly &= self.data < wire::WINDOW;
        let flags = if is_last { END_STREAM } else { 0 };
        self.frame(DATA, flags, stream_of(at), &vec![b'x'; length]);
    }

    /// One frame many times.
    fn flood(&mut self, input: &mut Input<'_>) {
        self.is_orderly = false;
        let times = usize::from(input.word()) % 2048;
        let stream = self.stream(input);
        let (kind, flags, payload): (_, _, &[u8]) = match input.byte() % 7 {
            0 => (PING, 0, &[0; 8]),
            1 => (SETTINGS, 0, &[0, 4, 0, 0, 0, 9]),
            2 => (DATA, 0, &[]),
            3 => (WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
            4 => (HEADERS, END_HEADERS, HINTS),
            5 => (CONTINUATION, 0, TRAILERS),
            _ => (DATA, 0, b"x"),
        };
        let stream = match kind {
            PING | SETTINGS => 0,
            _ => stream,
        };
        let room = MOST_BYTES.saturating_sub(self.bytes.len()) / (9 + payload.len());
        for _ in 0..times.min(room) {
            self.heads += 1;
            self.data += payload.len();
            self.granted += 1;
            self.frame(kind, flags, stream, payload);
        }
    }

    /// One of the requests.
    fn at(&self, input: &mut Input<'_>) -> usize {
        usize::from(input.byte()) % self.questions.len()
    }

    /// One that is open, one that is not, or any.
    fn stream(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            255 => 0,
            254 => u32::MAX,
            n => u32::from(n) % (2 * self.questions.len() as u32 + 2),
        }
    }
}

/// Clients open their streams in the order of the requests.
fn stream_of(at: usize) -> u32 {
    2 * at as u32 + 1
}
