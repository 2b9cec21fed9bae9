//! Decodes an input as a client's frames. Valid, invalid and repeated frames reach more of the
//! server's states than random bytes.

use crate::frame::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::input::Input;

/// The bytes that a client sends, and their properties.
pub(super) struct Script {
    pub(super) bytes: Vec<u8>,
    pub(super) split: u8,
    /// The most requests that the frames can start.
    pub(super) headers: usize,
    /// The most body bytes that the frames can contain.
    pub(super) data: usize,
    /// Whether a server must accept all frames.
    pub(super) is_orderly: bool,
    /// Streams whose requests are complete.
    pub(super) complete: Vec<u32>,
    /// The next stream to open.
    next: u32,
    /// Streams with an incomplete body.
    open: Vec<u32>,
}

/// The most streams of an orderly client. None is refused.
const ORDERLY_STREAMS: usize = crate::test_env::MAX_STREAMS;

/// A script is truncated to this length.
const MAX_BYTES: usize = 64 * 1024;

/// Field blocks (RFC 7541): `:method`, `:scheme http` and `:path /` from the static table,
/// `:authority` as a literal.
const GET: &[u8] = b"\x82\x86\x84\x41\x03web";
const POST: &[u8] = b"\x83\x86\x84\x41\x03web";
/// `:path /x`.
const POST_UNREAD: &[u8] = b"\x83\x86\x04\x02/x\x41\x03web";

impl Script {
    pub(super) fn decode(input: &[u8]) -> Self {
        let mut input = Input(input);
        let mut script = Self {
            bytes: PREFACE.to_vec(),
            split: input.byte(),
            headers: 0,
            data: 0,
            is_orderly: true,
            complete: Vec::new(),
            next: 1,
            open: Vec::new(),
        };
        script.frame(SETTINGS, 0, 0, &[]);
        while !input.is_empty() && script.bytes.len() < MAX_BYTES {
            script.add_action(&mut input);
        }
        script.bytes.truncate(MAX_BYTES);
        script
    }

    fn add_action(&mut self, input: &mut Input<'_>) {
        match input.byte() % 20 {
            0 | 1 => self.request(GET, true),
            2 => self.request(POST, false),
            3 => self.request(POST_UNREAD, false),
            4 | 5 => self.body(input),
            6 => {
                self.frame(PING, 0, 0, &[input.byte(); 8]);
            }
            7 => {
                let stream = input.choose([0, 1, self.next.saturating_sub(2)]);
                // Frames for closed streams are an error.
                self.is_orderly &= stream == 0 || self.open.contains(&stream);
                let size = u32::from(input.byte()) + 1;
                self.frame(WINDOW_UPDATE, 0, stream, &size.to_be_bytes());
            }
            8 => self.arbitrary(SETTINGS, input.choose([0, ACK]), 0, input),
            9 => self.arbitrary(WINDOW_UPDATE, 0, self.next, input),
            10 => {
                let stream = self.stream(input);
                let code = u32::from(input.byte()).to_be_bytes();
                self.is_orderly = false;
                self.frame(RST_STREAM, 0, stream, &code);
            }
            11 => {
                let stream = self.stream(input);
                self.arbitrary(PRIORITY, 0, stream, input);
            }
            12 => {
                let (stream, flags) = (self.stream(input), input.byte());
                self.headers += 1;
                self.arbitrary(CONTINUATION, flags, stream, input);
            }
            13 => self.arbitrary(GOAWAY, 0, 0, input),
            14 => {
                let (stream, flags) = (self.stream(input), input.byte());
                self.headers += 1;
                self.arbitrary(HEADERS, flags, stream, input);
                self.next = self.next.max(stream.saturating_add(2) | 1);
            }
            15 => {
                let (stream, flags) = (self.stream(input), input.byte());
                let before = self.bytes.len();
                self.arbitrary(DATA, flags, stream, input);
                self.data += self.bytes.len() - before;
            }
            16 => {
                let (kind, flags, stream) = (input.byte(), input.byte(), self.stream(input));
                self.headers += 1;
                self.arbitrary(kind, flags, stream, input);
                self.data += 255;
            }
            17 => self.flood(input),
            18 => self.rapid_reset(usize::from(input.byte())),
            _ => {
                self.is_orderly = false;
                let length = usize::from(input.byte());
                let raw = input.take(length);
                // The bytes may contain any frames.
                self.headers += raw.len();
                self.data += raw.len() + 16_384;
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
        self.frame(kind, flags, stream, payload);
    }

    /// Adds a request on a new stream.
    fn request(&mut self, block: &[u8], is_complete: bool) {
        let stream = self.next;
        let Some(next) = stream.checked_add(2).filter(|next| *next < 1 << 31) else {
            return;
        };
        self.next = next;
        self.headers += 1;
        let flags = END_HEADERS | if is_complete { END_STREAM } else { 0 };
        self.frame(HEADERS, flags, stream, block);
        if is_complete {
            self.complete.push(stream);
        } else {
            self.open.push(stream);
        }
        self.is_orderly &= self.complete.len() + self.open.len() <= ORDERLY_STREAMS;
    }

    /// Adds a part of a body, or its end. Orderly clients stay within the initial window.
    fn body(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let Some(at) = usize::from(choice >> 2).checked_rem(self.open.len()) else {
            return;
        };
        let stream = self.open[at];
        let payload = vec![b'x'; usize::from(input.byte())];
        self.data += payload.len();
        let is_end = choice & 1 == 1;
        self.frame(DATA, if is_end { END_STREAM } else { 0 }, stream, &payload);
        self.is_orderly &= self.data < 60_000;
        if is_end {
            self.open.swap_remove(at);
            self.complete.push(stream);
        }
    }

    /// Repeats a frame many times.
    fn flood(&mut self, input: &mut Input<'_>) {
        self.is_orderly = false;
        let times = usize::from(input.word()) % 2048;
        let stream = self.stream(input);
        let (kind, flags, payload): (_, _, &[u8]) = match input.byte() % 9 {
            0 => (PING, 0, &[0; 8]),
            1 => (SETTINGS, 0, &[]),
            2 => (SETTINGS, 0, &[0, 4, 0, 0, 0, 9]),
            3 => (DATA, 0, &[]),
            4 => (WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
            5 => (PRIORITY, 0, &[0, 0, 0, 0, 1]),
            6 => (CONTINUATION, 0, b"\x00\x01x\x01y"),
            7 => (RST_STREAM, 0, &[0, 0, 0, 8]),
            _ => (HEADERS, END_HEADERS | END_STREAM, b""),
        };
        let stream = match kind {
            PING | SETTINGS => 0,
            _ => stream,
        };
        let available = MAX_BYTES.saturating_sub(self.bytes.len()) / (9 + payload.len());
        for _ in 0..times.min(available) {
            self.headers += 1;
            self.frame(kind, flags, stream, payload);
        }
    }

    /// Opens and resets streams.
    fn rapid_reset(&mut self, times: usize) {
        for _ in 0..times {
            let stream = self.next;
            self.request(GET, true);
            self.frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        }
        self.is_orderly = false;
    }

    /// Chooses a stream: opened, unopened or invalid.
    fn stream(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            255 => 0,
            254 => self.next,
            253 => u32::MAX,
            n => u32::from(n) % self.next.max(1),
        }
    }
}
