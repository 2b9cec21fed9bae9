//! Two connections that talk to each other, and those that are talked to by somebody who makes his
//! own frames.

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
use crate::stream::Piece;

const LIMITS: Limits = Limits {
    streams: 10,
    header_list: 16 * 1024,
    fields: 20,
    idle_frames: 1000,
    resets: 1000,
    mistakes: 1000,
    unseen_resets: 5,
};

fn config(role: Role) -> Config {
    Config {
        role,
        limits: LIMITS,
        stream_window: DEFAULT_WINDOW,
        connection_window: DEFAULT_WINDOW,
        max_frame: None,
        collected: None,
        buffers: Buffers {
            take: Vec::new,
            give: drop,
        },
        clock: Instant::now,
    }
}

/// Takes everything that is to be written.
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
        connection.written(n);
    }
    bytes
}

/// Receives all of `bytes`, in as many turns as that takes.
fn take(connection: &mut Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let taken = connection.receive(bytes).unwrap();
        bytes = &bytes[taken..];
    }
}

/// Knows whether it was woken.
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

fn nobody() -> &'static Waker {
    Waker::noop()
}

/// A frame.
fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = frame::Head {
        length: payload.len() as u32,
        kind,
        flags,
        stream,
    };
    let mut bytes = Vec::new();
    head.write(&mut bytes);
    bytes.extend(payload);
    bytes
}

/// The frames that are to be written.
fn said(connection: &mut Connection) -> Vec<(frame::Head, Vec<u8>)> {
    let bytes = output(connection);
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk() {
        let head = frame::Head::parse(*head);
        let (payload, behind) = behind.split_at(head.length as usize);
        frames.push((head, payload.to_vec()));
        rest = behind;
    }
    frames
}

/// What was said of a mistake: on which stream, or 0 for the connection, and why.
fn verdict(connection: &mut Connection) -> Option<(u32, Reason)> {
    let frames = said(connection);
    let mut verdicts = frames.iter().filter_map(|(head, payload)| match head.kind {
        frame::RST_STREAM => Some((head.stream, Reason(frame::number(payload).unwrap()))),
        frame::GOAWAY => Some((0, frame::go_away(payload).unwrap().1)),
        _ => None,
    });
    let first = verdicts.next();
    assert!(verdicts.next().is_none(), "{frames:?}");
    first
}
