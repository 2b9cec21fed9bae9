//! Tests of a client and a server that are connected to each other, and of endpoints that receive
//! hand-made frames.

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
use crate::stream::BodyFrame;

const LIMITS: Limits = Limits {
    max_concurrent_streams: 10,
    max_header_list_size: 16 * 1024,
    max_fields: 20,
    idle_frames: 1000,
    resets: 1000,
    stream_errors: 1000,
    pending_accept_resets: 5,
};

fn config(role: Role) -> Config {
    Config {
        role,
        limits: LIMITS,
        stream_window: DEFAULT_WINDOW,
        connection_window: DEFAULT_WINDOW,
        max_frame_size: None,
        output_limit: None,
        buffers: BufferPool {
            acquire: Vec::new,
            release: drop,
        },
        clock: Instant::now,
    }
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

/// Receives all of `bytes`, in as many turns as necessary.
fn take(connection: &mut Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = connection.receive(bytes).unwrap();
        bytes = &bytes[taken..];
    }
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
            frame::RST_STREAM => {
                Some((header.stream, ErrorCode(frame::read_u32(payload).unwrap())))
            }
            frame::GOAWAY => Some((0, frame::goaway(payload).unwrap().1)),
            _ => None,
        });
    let first = errors.next();
    assert!(errors.next().is_none(), "{frames:?}");
    first
}
