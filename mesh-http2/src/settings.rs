//! What both sides tell each other at the beginning (RFC 9113, section 6.5), and what we allow
//! besides.

use crate::error::ErrorCode;
use crate::frame::{self, FrameError, FrameHeader, MAX_MAX_FRAME_SIZE, MIN_MAX_FRAME_SIZE};
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
    pub max_concurrent_streams: u32,
    /// Bytes of a header list, with 32 for each field. Messages with more are refused.
    pub max_header_list_size: u32,
    /// Fields of a request's header list. Requests with more are refused.
    pub max_fields: u16,
    /// Frames that carry nothing, beyond what the traffic explains.
    pub idle_frames: u32,
    /// Streams that a client resets, beyond those that it lets end.
    pub resets: u32,
    /// Points for stream errors of the peer. A client's costs ten, a server's and a stream beyond
    /// the limit one; a tenth of the points returns each second.
    pub stream_errors: u32,
    /// Streams that are reset before anybody has looked at them, at a time.
    pub pending_accept_resets: u32,
}

/// What the other side takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    pub(crate) initial_window_size: u32,
    pub(crate) max_frame_size: u32,
    /// Streams that we may open; none means as many as we like.
    pub(crate) max_concurrent_streams: Option<u32>,
    pub(crate) header_table_size: u32,
}

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;

/// What we say of ourselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalSettings {
    pub(crate) initial_window_size: Option<u32>,
    pub(crate) max_frame_size: Option<u32>,
    pub(crate) max_concurrent_streams: Option<u32>,
    pub(crate) max_header_list_size: Option<u32>,
    /// Clients say that they want no pushes.
    pub(crate) is_client: bool,
}

impl PeerSettings {
    /// RFC 9113, section 6.5.2.
    pub(crate) fn new() -> Self {
        Self {
            initial_window_size: DEFAULT_WINDOW,
            max_frame_size: MIN_MAX_FRAME_SIZE,
            max_concurrent_streams: None,
            header_table_size: crate::hpack::MAX_TABLE_SIZE,
        }
    }

    /// Takes over what a SETTINGS frame says. `from_server`: a server says it.
    pub(crate) fn update(&mut self, payload: &[u8], from_server: bool) -> Result<(), FrameError> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err((ErrorCode::FRAME_SIZE_ERROR, "SETTINGS end within a setting"));
        }
        for [i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            match u16::from_be_bytes([*i0, *i1]) {
                HEADER_TABLE_SIZE => self.header_table_size = value,
                ENABLE_PUSH if value > 1 || (from_server && value == 1) => {
                    return Err((ErrorCode::PROTOCOL_ERROR, "ENABLE_PUSH is not allowed"));
                }
                MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = Some(value),
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    return Err((
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "INITIAL_WINDOW_SIZE is too large",
                    ));
                }
                INITIAL_WINDOW_SIZE => self.initial_window_size = value,
                MAX_FRAME_SIZE if !(MIN_MAX_FRAME_SIZE..=MAX_MAX_FRAME_SIZE).contains(&value) => {
                    return Err((ErrorCode::PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range"));
                }
                MAX_FRAME_SIZE => self.max_frame_size = value,
                _ => {}
            }
        }
        Ok(())
    }
}

impl LocalSettings {
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let settings = [
            (ENABLE_PUSH, self.is_client.then_some(0)),
            (MAX_CONCURRENT_STREAMS, self.max_concurrent_streams),
            (INITIAL_WINDOW_SIZE, self.initial_window_size),
            (MAX_FRAME_SIZE, self.max_frame_size),
            (MAX_HEADER_LIST_SIZE, self.max_header_list_size),
        ];
        let said = settings.iter().filter(|(_, value)| value.is_some()).count();
        let header = FrameHeader {
            length: 6 * said as u32,
            kind: frame::SETTINGS,
            flags: 0,
            stream: 0,
        };
        header.write(out);
        for (id, value) in settings {
            if let Some(value) = value {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

pub(crate) fn write_ack(out: &mut Vec<u8>) {
    let header = FrameHeader {
        length: 0,
        kind: frame::SETTINGS,
        flags: frame::ACK,
        stream: 0,
    };
    header.write(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let mut bytes = Vec::new();
        let ours = LocalSettings {
            initial_window_size: Some(70_000),
            max_frame_size: Some(20_000),
            max_concurrent_streams: Some(7),
            max_header_list_size: Some(9),
            is_client: true,
        };
        ours.write(&mut bytes);
        let mut peer = PeerSettings::new();
        peer.update(&bytes[frame::FRAME_HEADER_SIZE..], false)
            .unwrap();
        let expected = PeerSettings {
            initial_window_size: 70_000,
            max_frame_size: 20_000,
            max_concurrent_streams: Some(7),
            header_table_size: 4096,
        };
        assert_eq!(peer, expected);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (id, value, from_server, reason) in [
            (ENABLE_PUSH, 2, false, ErrorCode::PROTOCOL_ERROR),
            (ENABLE_PUSH, 1, true, ErrorCode::PROTOCOL_ERROR),
            (
                INITIAL_WINDOW_SIZE,
                1 << 31,
                false,
                ErrorCode::FLOW_CONTROL_ERROR,
            ),
            (MAX_FRAME_SIZE, 16_383, false, ErrorCode::PROTOCOL_ERROR),
            (MAX_FRAME_SIZE, 1 << 24, false, ErrorCode::PROTOCOL_ERROR),
        ] {
            let mut payload = id.to_be_bytes().to_vec();
            payload.extend(u32::to_be_bytes(value));
            let (said, _) = PeerSettings::new()
                .update(&payload, from_server)
                .unwrap_err();
            assert_eq!(said, reason, "{id}: {value}");
            assert!(
                PeerSettings::new()
                    .update(&payload[..5], from_server)
                    .is_err()
            );
        }
    }
}
