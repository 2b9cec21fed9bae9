//! SETTINGS (RFC 9113, section 6.5) and the local limits.

use crate::error::ErrorCode;
use crate::frame::{self, FrameError, FrameHeader, MAX_MAX_FRAME_SIZE, MIN_MAX_FRAME_SIZE};
use crate::window::{DEFAULT_WINDOW, MAX_WINDOW};

/// The role of the local endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts streams.
    Server,
    /// Opens streams.
    Client,
}

/// Limits of what a peer may consume.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent streams of a client.
    pub max_concurrent_streams: u32,
    /// Bytes of a field section, with 32 for each field line. Larger messages are rejected.
    pub max_header_list_size: u32,
    /// Field lines of a request. Requests with more are rejected.
    pub max_fields: u16,
    /// Frames without message content, beyond those that the traffic accounts for.
    pub idle_frames: u32,
    /// Streams that a client resets, beyond those that it lets complete.
    pub resets: u32,
    /// Points for stream errors of the peer. A client's costs ten, a server's and a stream beyond
    /// the limit one; a tenth of the points returns each second.
    pub stream_errors: u32,
    /// Field lines beyond those that the bytes of their field blocks account for. A tenth of them
    /// returns each second.
    pub field_lines: u32,
    /// Streams that are reset before [`Connection::next_request`](crate::Connection::next_request)
    /// returns them, at a time.
    pub pending_accept_resets: u32,
}

/// The SETTINGS of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSettings {
    pub(crate) initial_window_size: u32,
    pub(crate) max_frame_size: u32,
    /// Streams that the local endpoint may open; `None` means no limit.
    pub(crate) max_concurrent_streams: Option<u32>,
    pub(crate) header_table_size: u32,
    /// The peer passes [`frame::CLIENT_CLOSED`] on.
    pub(crate) accepts_client_closed: bool,
}

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// An extension, in the range for experiments: a server that sends the value 1 passes
/// [`frame::CLIENT_CLOSED`] on. Other implementations ignore it (RFC 9113, section 6.5.2).
pub(crate) const ACCEPTS_CLIENT_CLOSED: u16 = 0xf3e5;

/// SETTINGS to send; `None` leaves a parameter as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LocalSettings {
    pub(crate) initial_window_size: Option<u32>,
    pub(crate) max_frame_size: Option<u32>,
    pub(crate) max_concurrent_streams: Option<u32>,
    pub(crate) max_header_list_size: Option<u32>,
    /// Clients disable server push.
    pub(crate) is_client: bool,
    pub(crate) accepts_client_closed: bool,
}

impl PeerSettings {
    /// Returns the initial values of RFC 9113, section 6.5.2.
    pub(crate) fn new() -> Self {
        Self {
            initial_window_size: DEFAULT_WINDOW,
            max_frame_size: MIN_MAX_FRAME_SIZE,
            max_concurrent_streams: None,
            header_table_size: crate::hpack::MAX_TABLE_SIZE,
            accepts_client_closed: false,
        }
    }

    /// Applies a SETTINGS payload, and returns the smallest SETTINGS_HEADER_TABLE_SIZE in it.
    /// `from_server`: the peer is a server.
    pub(crate) fn update(
        &mut self,
        payload: &[u8],
        from_server: bool,
    ) -> Result<Option<u32>, FrameError> {
        let mut smallest_table = None;
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err((
                ErrorCode::FRAME_SIZE_ERROR,
                "incomplete setting in SETTINGS",
            ));
        }
        for [i0, i1, v0, v1, v2, v3] in settings {
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            match u16::from_be_bytes([*i0, *i1]) {
                HEADER_TABLE_SIZE => {
                    self.header_table_size = value;
                    smallest_table = Some(smallest_table.unwrap_or(value).min(value));
                }
                ENABLE_PUSH if value > 1 || (from_server && value == 1) => {
                    return Err((ErrorCode::PROTOCOL_ERROR, "invalid SETTINGS_ENABLE_PUSH"));
                }
                MAX_CONCURRENT_STREAMS => self.max_concurrent_streams = Some(value),
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
                    return Err((
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "SETTINGS_INITIAL_WINDOW_SIZE too large",
                    ));
                }
                INITIAL_WINDOW_SIZE => self.initial_window_size = value,
                MAX_FRAME_SIZE if !(MIN_MAX_FRAME_SIZE..=MAX_MAX_FRAME_SIZE).contains(&value) => {
                    return Err((
                        ErrorCode::PROTOCOL_ERROR,
                        "SETTINGS_MAX_FRAME_SIZE out of range",
                    ));
                }
                MAX_FRAME_SIZE => self.max_frame_size = value,
                ACCEPTS_CLIENT_CLOSED => self.accepts_client_closed = from_server && value == 1,
                _ => {}
            }
        }
        Ok(smallest_table)
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
            (
                ACCEPTS_CLIENT_CLOSED,
                self.accepts_client_closed.then_some(1),
            ),
        ];
        let count = settings.iter().filter(|(_, value)| value.is_some()).count();
        let header = FrameHeader {
            length: 6 * count as u32,
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
    fn settings_round_trip() {
        let mut bytes = Vec::new();
        let local = LocalSettings {
            initial_window_size: Some(70_000),
            max_frame_size: Some(20_000),
            max_concurrent_streams: Some(7),
            max_header_list_size: Some(9),
            is_client: true,
            accepts_client_closed: true,
        };
        local.write(&mut bytes);
        let mut peer = PeerSettings::new();
        peer.update(&bytes[frame::FRAME_HEADER_SIZE..], false)
            .unwrap();
        let expected = PeerSettings {
            initial_window_size: 70_000,
            max_frame_size: 20_000,
            max_concurrent_streams: Some(7),
            header_table_size: 4096,
            accepts_client_closed: false,
        };
        assert_eq!(peer, expected, "only servers accept the extension");
    }

    #[test]
    fn settings_out_of_range_are_rejected() {
        for (id, value, from_server, code) in [
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
            let (count, _) = PeerSettings::new()
                .update(&payload, from_server)
                .unwrap_err();
            assert_eq!(count, code, "{id}: {value}");
            assert!(
                PeerSettings::new()
                    .update(&payload[..5], from_server)
                    .is_err()
            );
        }
    }
}
