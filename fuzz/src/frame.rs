//! Reads HTTP/2 frames of the proxy, and checks them (RFC 9113, section 6). Shares no code with the
//! proxy.

use std::iter;

use mesh_test_support::http2;

pub(crate) use mesh_test_support::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, MAX_FRAME, PING,
    PREFACE, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, write,
};

/// The initial flow-control window of streams and of the connection.
pub(crate) const WINDOW: usize = http2::WINDOW as usize;

/// Returns all complete frames: a connection may close within one.
pub(crate) fn read(mut bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    iter::from_fn(move || {
        let (frame, rest) = http2::read(bytes)?;
        bytes = rest;
        Some(frame)
    })
}

/// Returns the proxy's frames. Each must be valid, and the first must be SETTINGS. A peer that is
/// not orderly may have allowed longer frames.
pub(crate) fn read_checked(bytes: &[u8], is_orderly: bool) -> impl Iterator<Item = Frame<'_>> {
    read(bytes).enumerate().map(move |(n, frame)| {
        let length = frame.payload.len();
        let is_within = length <= MAX_FRAME || !is_orderly;
        assert!(is_within, "frame of {length} bytes");
        let is_settings = (frame.kind, frame.flags & ACK) == (SETTINGS, 0);
        assert!(n > 0 || is_settings, "the first frame is {frame:?}");
        check(&frame);
        frame
    })
}

fn check(frame: &Frame<'_>) {
    let Frame {
        kind,
        flags,
        stream,
        payload,
    } = *frame;
    let is_connection_frame = matches!(kind, SETTINGS | PING | GOAWAY);
    let is_allowed = kind == WINDOW_UPDATE || (stream == 0) == is_connection_frame;
    assert!(is_allowed, "frame {kind} on stream {stream}");
    match kind {
        HEADERS => assert!(flags & END_HEADERS != 0, "field block in several frames"),
        DATA => {}
        RST_STREAM => assert_eq!(payload.len(), 4),
        SETTINGS => {
            let is_empty = flags & ACK == 0 || payload.is_empty();
            assert!(payload.len().is_multiple_of(6) && is_empty);
        }
        PING => assert_eq!(payload.len(), 8),
        GOAWAY => assert!(payload.len() >= 8),
        WINDOW_UPDATE => assert!(payload.len() == 4 && payload != [0; 4]),
        CONTINUATION => panic!("field block in several frames"),
        other => panic!("frame of type {other}"),
    }
}
