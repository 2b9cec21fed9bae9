//! Tests of a client and a server that are connected to each other, and of endpoints that receive
//! hand-made frames.

mod client_closed;
mod flow_control;
mod frames;
mod hostile;
mod pair;
mod servers;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use bytes::Bytes;
use http::{HeaderMap, Response};

use super::*;
use crate::frame::{
    CONTINUATION, DATA, GOAWAY, HEADERS, PING, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::stream::BodyFrame;

const LIMITS: Limits = Limits {
    max_concurrent_streams: 10,
    max_header_list_size: 16 * 1024,
    max_fields: 20,
    idle_frames: 1000,
    resets: 1000,
    stream_errors: 1000,
    field_lines: 1_000_000,
    pending_accept_resets: 5,
};

fn config(role: Role) -> Config {
    Config::new(role, LIMITS)
}

/// `GET http://web/` and `POST http://web/`, by indices of the static table.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x01, 3, b'w', b'e', b'b'];

const END_STREAM: u8 = frame::END_STREAM;
const END_HEADERS: u8 = frame::END_HEADERS;
const PADDED: u8 = 0x8;
const BOTH: u8 = END_STREAM | END_HEADERS;

/// A connection that has received its peer's SETTINGS and an acknowledgement of its own, and a
/// client's preface before them.
fn greeted(config: &Config) -> Connection {
    let mut connection = Connection::new(config);
    if config.role == Role::Server {
        take(&mut connection, PREFACE);
    }
    receive(&mut connection, SETTINGS, 0, 0, &[]);
    receive(&mut connection, SETTINGS, frame::ACK, 0, &[]);
    output(&mut connection);
    connection
}

/// A server that has received the client's preface.
fn server() -> Connection {
    greeted(&config(Role::Server))
}

/// A server with an incomplete request on stream 1.
fn serving() -> Connection {
    let mut server = server();
    receive(&mut server, HEADERS, END_HEADERS, 1, POST);
    server
}

/// Drops both halves of a stream.
fn drop_stream(connection: &mut Connection, id: StreamId) {
    connection.drop_reader(id);
    connection.drop_writer(id);
}

/// Takes all output.
fn output(connection: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !connection.output().is_empty() {
        let mut slices = [IoSlice::new(&[]); 4];
        let count = connection.output().slices(&mut slices);
        let mut n = 0;
        for slice in &slices[..count] {
            bytes.extend_from_slice(slice);
            n += slice.len();
        }
        connection.advance_output(n);
    }
    bytes
}

/// Receives all of `bytes`, in the necessary number of turns.
fn take(connection: &mut Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = connection.receive(bytes).unwrap();
        bytes = &bytes[taken..];
    }
}

/// Encodes a field block on stream 1 as HEADERS with `flags` and CONTINUATION frames.
fn fragmented(flags: u8, block: &[u8]) -> Vec<Vec<u8>> {
    let fragments = block.chunks(16_000);
    let mut frames: Vec<_> = fragments.map(|it| bytes(CONTINUATION, 0, 1, it)).collect();
    frames[0][3] = HEADERS;
    frames[0][4] = flags;
    frames.last_mut().unwrap()[4] |= END_HEADERS;
    frames
}

/// Receives one frame.
fn receive(connection: &mut Connection, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    take(connection, &bytes(kind, flags, stream, payload));
}

/// A waker that records whether it was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    fn new() -> (Arc<Self>, Waker) {
        let flag = Arc::new(Self::default());
        (flag.clone(), flag.into())
    }

    fn was_woken(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

fn noop_waker() -> &'static Waker {
    Waker::noop()
}

/// Encodes a frame.
fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = frame::FrameHeader {
        length: payload.len() as u32,
        kind,
        flags,
        stream,
    };
    let mut bytes = Vec::new();
    header.write(&mut bytes);
    bytes.extend(payload);
    bytes
}

/// Parses the frames in the output.
fn sent_frames(connection: &mut Connection) -> Vec<(frame::FrameHeader, Vec<u8>)> {
    let bytes = output(connection);
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_first_chunk() {
        let header = frame::FrameHeader::parse(*header);
        let (payload, behind) = behind.split_at(header.length as usize);
        frames.push((header, payload.to_vec()));
        rest = behind;
    }
    frames
}

/// Returns the stream (0 for the connection) and the error code of the only RST_STREAM or GOAWAY in
/// the output.
fn reported_error(connection: &mut Connection) -> Option<(u32, ErrorCode)> {
    let frames = sent_frames(connection);
    let mut errors = frames
        .iter()
        .filter_map(|(header, payload)| match header.kind {
            RST_STREAM => Some((header.stream, ErrorCode(frame::read_u32(payload).unwrap()))),
            GOAWAY => Some((0, frame::goaway(payload).unwrap().1)),
            _ => None,
        });
    let first = errors.next();
    assert!(errors.next().is_none(), "{frames:?}");
    first
}

#[track_caller]
fn assert_error(connection: &mut Connection, stream: u32, code: ErrorCode) {
    assert_eq!(reported_error(connection), Some((stream, code)));
}

/// Frames that a peer sends, each with its name.
type Case<'a> = (&'a str, &'a [Vec<u8>]);

/// Checks that the frames of each case cause `expected`, that an error of the connection, and no
/// other, closes it, and that either error fails a client's request on stream 1.
fn check_cases(
    connection: fn() -> Connection,
    expected: Option<(u32, ErrorCode)>,
    cases: &[Case<'_>],
) {
    for (why, frames) in cases {
        let mut connection = connection();
        let received = frames
            .iter()
            .try_for_each(|frame| connection.receive(frame).map(drop));
        assert_eq!(reported_error(&mut connection), expected, "{why}");
        let ends = matches!(expected, Some((0, _)));
        assert_eq!(received.is_err(), ends, "{why}");
        assert_eq!(connection.is_closed(), ends, "{why}");
        if connection.role == Role::Client {
            let failure = connection.poll_failure(StreamId(1), noop_waker());
            assert_eq!(failure.is_ready(), expected.is_some(), "{why}");
        }
    }
}
