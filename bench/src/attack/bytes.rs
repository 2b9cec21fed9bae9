//! Encodes and parses HTTP/2 frames, and encodes field blocks.

pub(super) const DATA: u8 = 0x0;
pub(super) const HEADERS: u8 = 0x1;
pub(super) const RST_STREAM: u8 = 0x3;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const PING: u8 = 0x6;
pub(super) const WINDOW_UPDATE: u8 = 0x8;
pub(super) const CONTINUATION: u8 = 0x9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `:method` with GET and with POST, in the static table.
pub(super) const GET: u8 = 0x82;
pub(super) const POST: u8 = 0x83;

const FRAME_HEADER_LENGTH: usize = 9;

/// A received frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: &'a [u8],
}

/// Appends a frame. Payloads here are at most 16 KiB.
pub(super) fn frame(buffer: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    buffer.extend_from_slice(&length);
    buffer.extend_from_slice(&[kind, flags]);
    buffer.extend_from_slice(&stream.to_be_bytes());
    buffer.extend_from_slice(payload);
}

/// Encodes the pseudo-header fields of a request for `/` without touching the dynamic table.
pub(super) fn request(method: u8, authority: &str) -> Vec<u8> {
    // The scheme `http`, the path `/`, and a literal authority; a length below 127 is one byte.
    let mut block = vec![method, 0x86, 0x84, 0x01, authority.len() as u8 & 0x7f];
    block.extend_from_slice(authority.as_bytes());
    block
}

/// Parses the first frame; returns it and the remaining bytes, or `None` if it is incomplete.
pub(super) fn parse_frame(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_HEADER_LENGTH>()?;
    let [l2, l1, l0, kind, flags, stream @ ..] = *head;
    let length = u32::from_be_bytes([0, l2, l1, l0]) as usize;
    let (payload, rest) = rest.split_at_checked(length)?;
    let frame = Frame {
        kind,
        flags,
        stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        payload,
    };
    Some((frame, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_through_parser() {
        let mut bytes = Vec::new();
        frame(&mut bytes, DATA, END_STREAM, 5, b"abc");
        frame(&mut bytes, PING, 0, 0, &[7; 8]);
        let (data, rest) = parse_frame(&bytes).unwrap();
        let expected = Frame {
            kind: DATA,
            flags: END_STREAM,
            stream: 5,
            payload: b"abc",
        };
        assert_eq!(data, expected);
        let (ping, rest) = parse_frame(rest).unwrap();
        assert_eq!((ping.kind, ping.payload), (PING, &[7; 8][..]));
        assert_eq!(parse_frame(rest), None);
        assert_eq!(parse_frame(&bytes[..11]), None, "two bytes of three");
    }

    #[test]
    fn request_block_contains_authority() {
        assert_eq!(request(GET, "web"), b"\x82\x86\x84\x01\x03web");
    }
}
