//! The client's output: checks its frames and their order.

use std::collections::BTreeMap;

use super::script::Script;
use crate::frame::{self, DATA, END_STREAM, Frame, HEADERS, PREFACE, RST_STREAM, WINDOW};

/// The encoded error code (RFC 9113, section 7).
const STREAM_CLOSED: [u8; 4] = [0, 0, 0, 5];

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    /// Number of body bytes so far.
    Body(usize),
    Complete,
    Reset,
}

/// Panics at a frame that a client must not send.
pub(super) fn check(bytes: &[u8], script: &Script) {
    let Some(frames) = bytes.strip_prefix(PREFACE) else {
        assert!(PREFACE.starts_with(bytes), "no connection preface");
        return;
    };
    let mut streams = BTreeMap::new();
    let mut data = 0;
    for frame in frame::read_checked(frames, script.is_orderly) {
        if frame.kind == DATA {
            data += frame.payload.len();
        }
        check_frame(frame, &mut streams);
    }
    if !script.is_orderly {
        return;
    }
    let window = WINDOW + script.granted;
    assert!(data <= window, "{data} bytes of DATA exceed {window}");
    for (stream, state) in streams {
        let is_within = !matches!(state, StreamState::Body(sent) if sent > window);
        assert!(is_within, "stream {stream} is {state:?}");
    }
}

fn check_frame(frame: Frame<'_>, streams: &mut BTreeMap<u32, StreamState>) {
    let Frame {
        kind,
        flags,
        stream,
        payload,
    } = frame;
    let state_after = |sent| match flags & END_STREAM {
        0 => StreamState::Body(sent),
        _ => StreamState::Complete,
    };
    match kind {
        HEADERS => {
            let last = streams.keys().next_back().copied().unwrap_or(0);
            let is_new = stream % 2 == 1 && stream > last;
            assert!(is_new, "stream {stream} after {last}");
            streams.insert(stream, state_after(0));
        }
        DATA => {
            let state = streams.get(&stream).copied();
            let Some(StreamState::Body(sent)) = state else {
                panic!("data on stream {stream}, which is {state:?}");
            };
            streams.insert(stream, state_after(sent + payload.len()));
        }
        RST_STREAM => {
            let before = streams.insert(stream, StreamState::Reset);
            // Frames of the server after its END_STREAM may cause another STREAM_CLOSED.
            let is_first = before != Some(StreamState::Reset) || payload == STREAM_CLOSED;
            assert!(is_first, "stream {stream} is reset twice");
        }
        _ => {}
    }
}
