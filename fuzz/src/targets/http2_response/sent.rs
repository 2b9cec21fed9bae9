//! What the client sent: frames that are right by themselves, and in an order that is.

use std::collections::BTreeMap;

use super::script::Script;
use crate::wire::{self, DATA, END_STREAM, Frame, HEADERS, PREFACE, RST_STREAM, WINDOW};

/// The reason, as it stands in the frame (RFC 9113, section 7).
const STREAM_CLOSED: [u8; 4] = [0, 0, 0, 5];

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// So much of the body.
    Body(usize),
    Over,
    Reset,
}

/// Complains about what a client must not send.
pub(super) fn check(bytes: &[u8], script: &Script) {
    let Some(frames) = bytes.strip_prefix(PREFACE) else {
        assert!(PREFACE.starts_with(bytes), "it begins with something else");
        return;
    };
    let mut streams = BTreeMap::new();
    let mut data = 0;
    for frame in wire::read_ours(frames, script.is_orderly) {
        if frame.kind == DATA {
            data += frame.payload.len();
        }
        check_frame(frame, &mut streams);
    }
    if !script.is_orderly {
        return;
    }
    let room = WINDOW + script.granted;
    assert!(data <= room, "{data} bytes of bodies where {room} may come");
    for (stream, stage) in streams {
        let is_within = !matches!(stage, Stage::Body(sent) if sent > room);
        assert!(is_within, "stream {stream} is {stage:?}");
    }
}

fn check_frame(frame: Frame<'_>, streams: &mut BTreeMap<u32, Stage>) {
    let Frame {
        kind,
        flags,
        stream,
        payload,
    } = frame;
    let stage_behind = |sent| match flags & END_STREAM {
        0 => Stage::Body(sent),
        _ => Stage::Over,
    };
    match kind {
        HEADERS => {
            let last = streams.keys().next_back().copied().unwrap_or(0);
            assert!(
                stream % 2 == 1 && stream > last,
                "stream {stream} behind {last}"
            );
            streams.insert(stream, stage_behind(0));
        }
        DATA => {
            let Some(Stage::Body(sent)) = streams.get(&stream).copied() else {
                panic!(
                    "data on stream {stream}, which is {:?}",
                    streams.get(&stream)
                );
            };
            streams.insert(stream, stage_behind(sent + payload.len()));
        }
        RST_STREAM => {
            let before = streams.insert(stream, Stage::Reset);
            // A server that goes on behind its own end may be told so, whatever it was told before.
            assert!(
                before != Some(Stage::Reset) || payload == STREAM_CLOSED,
                "stream {stream} is reset twice"
            );
        }
        _ => {}
    }
}
