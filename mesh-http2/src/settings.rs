//! What both sides tell each other at the beginning (RFC 9113, section 6.5), and what we allow
//! besides.

use crate::error::Reason;
use crate::frame::{self, Head, MAX_MAX_FRAME, MIN_MAX_FRAME, Wrong};
use crate::window::{DEFAULT_WINDOW, MAX_WINDOW};

/// What we are on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// What the other side of a connection may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams that a client may have open at a time.
    pub streams: u32,
    /// Bytes of a header list, with 32 for each field. Messages with more are refused.
    pub header_list: u32,
    /// Fields of a request's header list. Requests with more are refused.
    pub fields: u16,
    /// Frames that carry nothing, beyond what the traffic explains.
    pub idle_frames: u32,
    /// Streams that a client resets, beyond those that it lets end.
    pub resets: u32,
    /// Points for stream errors of the peer. A client's costs ten, a server's and a stream beyond
    /// the limit one; a tenth of the points returns each second.
    pub mistakes: u32,
    /// Streams that are reset before anybody has looked at them, at a time.
    pub unseen_resets: u32,
}

/// What the other side takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) stream_window: u32,
    pub(crate) max_frame: u32,
    /// Streams that we may open; none means as many as we like.
    pub(crate) streams: Option<u32>,
    pub(crate) header_table: u32,
}

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// What we say of ourselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ours {
    pub(crate) stream_window: Option<u32>,
    pub(crate) max_frame: Option<u32>,
    pub(crate) streams: Option<u32>,
    pub(crate) header_list: Option<u32>,
    /// Clients say that they want no pushes.
    pub(crate) is_client: bool,
}

impl Peer {
    /// RFC 9113, section 6.5.2.
    pub(crate) fn new() -> Self {
        Self {
            stream_window: DEFAULT_WINDOW,
            max_frame: MIN_MAX_FRAME,
            streams: None,
            header_table: crate::hpack::TABLE_SIZE,
        }
    }

    /// Takes over what a SETTINGS frame says. `from_server`: a server says it.
    pub(crate) fn update(&mut self, payload: &[u8], from_server: bool) -> Result<(), Wrong> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err((Reason::FRAME_SIZE_ERROR, "SETTINGS end within a setting"));
        }
        for [i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            match u16::from_be_bytes([*i0, *i1]) {
                HEADER_TABLE_SIZE => self.header_table = value,
                ENABLE_PUSH if value > 1 || (from_server && value == 1) => {
                    return Err((Reason::PROTOCOL_ERROR, "ENABLE_PUSH is not allowed"));
                }
                MAX_CONCURRENT_STREAMS => self.streams = Some(value),
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    return Err((
                        Reason::FLOW_CONTROL_ERROR,
                        "INITIAL_WINDOW_SIZE is too large",
                    ));
                }
                INITIAL_WINDOW_SIZE => self.stream_window = value,
                MAX_FRAME_SIZE if !(MIN_MAX_FRAME..=MAX_MAX_FRAME).contains(&value) => {
                    return Err((Reason::PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range"));
                }
                MAX_FRAME_SIZE => self.max_frame = value,
                _ => {}
            }
        }
        Ok(())
    }
}

impl Ours {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let settings = [
            (ENABLE_PUSH, self.is_client.then_some(0)),
            (MAX_CONCURRENT_STREAMS, self.streams),
            (INITIAL_WINDOW_SIZE, self.stream_window),
            (MAX_FRAME_SIZE, self.max_frame),
            (MAX_HEADER_LIST_SIZE, self.header_list),
        ];
        let said = settings.iter().filter(|(_, value)| value.is_some()).count();
        let head = Head {
            length: 6 * said as u32,
            kind: frame::SETTINGS,
            flags: 0,
            stream: 0,
        };
        head.write(out);
        for (id, value) in settings {
            if let Some(value) = value {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

pub(crate) fn write_ack(out: &mut Vec<u8>) {
    let head = Head {
        length: 0,
        kind: frame::SETTINGS,
        flags: frame::ACK,
        stream: 0,
    };
    head.write(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let mut bytes = Vec::new();
        let ours = Ours {
            stream_window: Some(70_000),
            max_frame: Some(20_000),
            streams: Some(7),
            header_list: Some(9),
            is_client: true,
        };
        ours.write(&mut bytes);
        let mut peer = Peer::new();
        peer.update(&bytes[frame::HEAD..], false).unwrap();
        let expected = Peer {
            stream_window: 70_000,
            max_frame: 20_000,
            streams: Some(7),
            header_table: 4096,
        };
        assert_eq!(peer, expected);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (id, value, from_server, reason) in [
            (ENABLE_PUSH, 2, false, Reason::PROTOCOL_ERROR),
            (ENABLE_PUSH, 1, true, Reason::PROTOCOL_ERROR),
            (
                INITIAL_WINDOW_SIZE,
                1 << 31,
                false,
                Reason::FLOW_CONTROL_ERROR,
            ),
            (MAX_FRAME_SIZE, 16_383, false, Reason::PROTOCOL_ERROR),
            (MAX_FRAME_SIZE, 1 << 24, false, Reason::PROTOCOL_ERROR),
        ] {
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend(u32::to_be_bytes(value));
            let (said, _) = Peer::new().update(&payload, from_server).unwrap_err();
            assert_eq!(said, reason, "{id}: {value}");
            assert!(Peer::new().update(&payload[..5], from_server).is_err());
        }
    }
}
