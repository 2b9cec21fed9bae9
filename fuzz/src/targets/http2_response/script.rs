//! Decodes an input as a server's frames. Valid, invalid and repeated frames reach more of the
//! client's states than random bytes.

use super::Outcome;
use crate::frame::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::input::Input;

/// A request of the client. All requests are sent concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Get,
    Head,
    Post,
    /// A body longer than the initial window.
    PostLarge,
    /// The client does not read the response body.
    GetUnread,
}

/// The bytes that a server sends, and their properties.
pub(super) struct Script {
    pub(super) requests: Vec<RequestKind>,
    pub(super) bytes: Vec<u8>,
    pub(super) split: u8,
    /// The most responses that the frames can start.
    pub(super) headers: usize,
    /// The most body bytes that the frames can contain.
    pub(super) data: usize,
    /// Increments of the client's send windows.
    pub(super) granted: usize,
    /// Whether a client must accept all frames.
    pub(super) is_orderly: bool,
    /// The state of each response, while the server is orderly.
    responses: Vec<ResponseState>,
    /// Number of interim responses per request.
    interim: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseState {
    Pending,
    /// Number of body bytes so far.
    Open(usize),
    Complete(usize),
}

/// A script is truncated to this length.
const MAX_BYTES: usize = 64 * 1024;

const MAX_REQUESTS: u8 = 4;

/// The most interim responses of an orderly server per request. None is rejected.
const ORDERLY_INTERIM: usize = 32;

/// Field blocks (RFC 7541): `:status 200` from the static table, `:status 103` and trailers as
/// literals.
const OK: &[u8] = b"\x88";
const EARLY_HINTS: &[u8] = b"\x08\x03103";
const TRAILERS: &[u8] = b"\x00\x01a\x01b";
/// The name `content-length` from the static table; a literal of one byte follows.
const LENGTH: &[u8] = b"\x0f\x0d\x01";

impl RequestKind {
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Get | Self::GetUnread => "GET",
            Self::Head => "HEAD",
            Self::Post | Self::PostLarge => "POST",
        }
    }

    /// Returns the length of the request body.
    pub(super) fn body(self) -> usize {
        match self {
            Self::Get | Self::Head | Self::GetUnread => 0,
            Self::Post => 5,
            Self::PostLarge => 100_000,
        }
    }
}

impl Script {
    pub(super) fn decode(input: &[u8]) -> Self {
        use RequestKind::{Get, GetUnread, Head, Post, PostLarge};
        let mut input = Input(input);
        let count = 1 + input.byte() % MAX_REQUESTS;
        let requests: Vec<RequestKind> = (0..count)
            .map(|_| input.choose([Get, Post, Head, PostLarge, GetUnread]))
            .collect();
        let mut script = Self {
            responses: vec![ResponseState::Pending; requests.len()],
            interim: vec![0; requests.len()],
            requests,
            bytes: Vec::new(),
            split: input.byte(),
            headers: 0,
            data: 0,
            granted: 0,
            is_orderly: true,
        };
        script.frame(SETTINGS, 0, 0, &[]);
        while !input.is_empty() && script.bytes.len() < MAX_BYTES {
            script.add_action(&mut input);
        }
        script.bytes.truncate(MAX_BYTES);
        script
    }

    /// Returns the outcomes that an orderly server causes.
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let responses = self.responses.iter().zip(&self.requests);
        responses
            .map(|(response, request)| match (*response, *request) {
                (ResponseState::Pending, _) => Outcome::NoResponse,
                (_, RequestKind::GetUnread) => Outcome::Unread,
                (ResponseState::Open(length), _) => Outcome::Incomplete { length },
                (ResponseState::Complete(length), _) => Outcome::Complete { length },
            })
            .collect()
    }

    fn add_action(&mut self, input: &mut Input<'_>) {
        match input.byte() % 20 {
            0 | 1 => {
                let at = self.at(input);
                self.response_headers(at, OK, false);
                self.data(at, input.byte(), true);
            }
            2 => {
                let (at, choice) = (self.at(input), input.byte());
                self.response_headers(at, OK, choice & 1 == 1);
            }
            3 | 4 => {
                let (at, choice) = (self.at(input), input.byte());
                self.data(at, input.byte(), choice & 1 == 1);
            }
            5 => {
                let at = self.at(input);
                self.interim[at] += 1;
                self.is_orderly &= self.responses[at] == ResponseState::Pending
                    && self.interim[at] <= ORDERLY_INTERIM;
                self.headers += 1;
                self.frame(HEADERS, END_HEADERS, stream_of(at), EARLY_HINTS);
            }
            6 => {
                let at = self.at(input);
                match self.responses[at] {
                    ResponseState::Open(length) => {
                        self.responses[at] = ResponseState::Complete(length);
                    }
                    _ => self.is_orderly = false,
                }
                self.headers += 1;
                self.frame(HEADERS, END_HEADERS | END_STREAM, stream_of(at), TRAILERS);
            }
            7 => {
                // A content-length that may be wrong.
                let (at, digit) = (self.at(input), b'0' + input.byte() % 10);
                self.is_orderly = false;
                self.response_headers(at, &[OK, LENGTH, &[digit]].concat(), false);
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
            12 => self.arbitrary(SETTINGS, input.choose([0, ACK]), 0, input),
            13 => {
                let last = self.stream(input).to_be_bytes();
                let code = u32::from(input.byte()).to_be_bytes();
                self.is_orderly = false;
                self.frame(GOAWAY, 0, 0, &[last, code].concat());
            }
            14 => {
                let (kind, flags) = (input.choose([HEADERS, CONTINUATION]), input.byte());
                self.arbitrary(kind, flags, self.stream(input), input);
            }
            15 => {
                let flags = input.byte();
                self.arbitrary(DATA, flags, self.stream(input), input);
            }
            16 => self.arbitrary(PUSH_PROMISE, END_HEADERS, self.stream(input), input),
            17 => {
                let (kind, flags) = (input.byte(), input.byte());
                self.arbitrary(kind, flags, self.stream(input), input);
            }
            18 => self.flood(input),
            _ => {
                self.is_orderly = false;
                let length = usize::from(input.byte());
                let raw = input.take(length);
                // The bytes may contain any frames.
                self.headers += raw.len();
                self.data += raw.len() + frame::MAX_FRAME;
                self.bytes.extend_from_slice(raw);
            }
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        frame::write(&mut self.bytes, kind, flags, stream, payload);
    }

    /// Adds a frame with an arbitrary payload.
    fn arbitrary(&mut self, kind: u8, flags: u8, stream: u32, input: &mut Input<'_>) {
        self.is_orderly = false;
        let length = usize::from(input.byte());
        let payload = input.take(length);
        self.headers += 1;
        self.data += payload.len();
        self.frame(kind, flags, stream, payload);
    }

    fn response_headers(&mut self, at: usize, block: &[u8], is_end: bool) {
        self.is_orderly &= self.responses[at] == ResponseState::Pending;
        self.responses[at] = if is_end {
            ResponseState::Complete(0)
        } else {
            ResponseState::Open(0)
        };
        self.headers += 1;
        let flags = END_HEADERS | if is_end { END_STREAM } else { 0 };
        self.frame(HEADERS, flags, stream_of(at), block);
    }

    fn data(&mut self, at: usize, length: u8, is_end: bool) {
        let length = usize::from(length);
        match self.responses[at] {
            ResponseState::Open(before) if is_end => {
                self.responses[at] = ResponseState::Complete(before + length);
            }
            ResponseState::Open(before) => {
                self.responses[at] = ResponseState::Open(before + length);
            }
            _ => self.is_orderly = false,
        }
        self.is_orderly &= length == 0 || self.requests[at] != RequestKind::Head;
        self.data += length;
        self.is_orderly &= self.data < frame::WINDOW;
        let flags = if is_end { END_STREAM } else { 0 };
        self.frame(DATA, flags, stream_of(at), &vec![b'x'; length]);
    }

    /// Repeats a frame many times.
    fn flood(&mut self, input: &mut Input<'_>) {
        self.is_orderly = false;
        let times = usize::from(input.word()) % 2048;
        let stream = self.stream(input);
        let (kind, flags, payload): (_, _, &[u8]) = match input.byte() % 7 {
            0 => (PING, 0, &[0; 8]),
            1 => (SETTINGS, 0, &[0, 4, 0, 0, 0, 9]),
            2 => (DATA, 0, &[]),
            3 => (WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
            4 => (HEADERS, END_HEADERS, EARLY_HINTS),
            5 => (CONTINUATION, 0, TRAILERS),
            _ => (DATA, 0, b"x"),
        };
        let stream = match kind {
            PING | SETTINGS => 0,
            _ => stream,
        };
        let available = MAX_BYTES.saturating_sub(self.bytes.len()) / (9 + payload.len());
        for _ in 0..times.min(available) {
            self.headers += 1;
            self.data += payload.len();
            self.granted += 1;
            self.frame(kind, flags, stream, payload);
        }
    }

    /// Chooses a request.
    fn at(&self, input: &mut Input<'_>) -> usize {
        usize::from(input.byte()) % self.requests.len()
    }

    /// Chooses a stream: opened, unopened or invalid.
    fn stream(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            255 => 0,
            254 => u32::MAX,
            n => u32::from(n) % (2 * self.requests.len() as u32 + 2),
        }
    }
}

/// Returns the stream of a request: clients open their streams in the order of the requests.
fn stream_of(at: usize) -> u32 {
    2 * at as u32 + 1
}
