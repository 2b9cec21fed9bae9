//! Encodes and decodes HTTP/2 frames, also invalid ones (RFC 9113, sections 4.1 and 6). Shares no
//! code with the proxy.

use std::iter;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The initial value of SETTINGS_MAX_FRAME_SIZE.
pub(crate) const MAX_FRAME: usize = 16_384;

/// The initial flow-control window of streams and of the connection.
pub(crate) const WINDOW: usize = 65_535;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'a [u8],
}

pub(crate) fn write(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    to.extend_from_slice(&[a, b, c, kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Returns all complete frames: a connection may close within one.
pub(crate) fn read(mut bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    iter::from_fn(move || {
        let (&[a, b, c, kind, flags, s, t, u, v], rest) = bytes.split_first_chunk()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        Some(Frame {
            kind,
            flags,
            stream: u32::from_be_bytes([s, t, u, v]),
            payload,
        })
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
        frame.check();
        frame
    })
}

impl Frame<'_> {
    fn check(&self) {
        let Self {
            kind,
            flags,
            stream,
            payload,
        } = *self;
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
}
