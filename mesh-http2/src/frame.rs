//! Encoding and decoding of frames (RFC 9113, sections 4 and 6).

use mesh_planted::Bug;

use crate::error::ErrorCode;

/// A frame header (RFC 9113, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// The client's connection preface (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame header.
pub(crate) const FRAME_HEADER_SIZE: usize = 9;

/// The range of SETTINGS_MAX_FRAME_SIZE, in bytes; any receiver accepts the smallest.
pub(crate) const MIN_MAX_FRAME_SIZE: u32 = 16_384;
pub(crate) const MAX_MAX_FRAME_SIZE: u32 = (1 << 24) - 1;

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
/// An extension (RFC 9113, section 5.5), without a payload: the HTTP/1 client of this stream's
/// request has closed its sending direction. The type is in the range for experiments. Sent only to
/// servers whose SETTINGS contain
/// [`ACCEPTS_CLIENT_CLOSED`](crate::settings::ACCEPTS_CLIENT_CLOSED); others would ignore it.
pub(crate) const CLIENT_CLOSED: u8 = 0xf3;

pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;

/// The reserved highest bit of stream identifiers and window increments.
const RESERVED: u32 = 1 << 31;

impl FrameHeader {
    pub(crate) fn parse(bytes: [u8; FRAME_HEADER_SIZE]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & !RESERVED,
        }
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        out.extend_from_slice(&[l0, l1, l2, self.kind, self.flags, s0, s1, s2, s3]);
    }

    /// The ACK flag of SETTINGS and PING.
    pub(crate) fn is_ack(self) -> bool {
        self.flags & ACK != 0
    }

    /// The END_STREAM flag of HEADERS and DATA.
    pub(crate) fn ends_stream(self) -> bool {
        self.flags & END_STREAM != 0
    }

    /// The END_HEADERS flag of HEADERS and CONTINUATION.
    pub(crate) fn ends_headers(self) -> bool {
        self.flags & END_HEADERS != 0
    }

    /// The PADDED flag of HEADERS and DATA.
    pub(crate) fn is_padded(self) -> bool {
        self.flags & PADDED != 0
    }
}

/// The payload of HEADERS.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeadersPayload<'a> {
    pub(crate) fragment: &'a [u8],
    /// The parent stream in the deprecated priority signal.
    pub(crate) dependency: Option<u32>,
}

/// A connection error: its code and a description.
pub(crate) type FrameError = (ErrorCode, &'static str);

const FRAME_SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;

pub(crate) fn headers(
    header: FrameHeader,
    mut payload: &[u8],
) -> Result<HeadersPayload<'_>, FrameError> {
    const TOO_SHORT: FrameError = (FRAME_SIZE, "HEADERS too short");
    let mut padding = 0;
    if header.is_padded() {
        let (length, rest) = payload.split_first().ok_or(TOO_SHORT)?;
        padding = usize::from(*length);
        payload = rest;
    }
    let mut dependency = None;
    if header.flags & HAS_PRIORITY != 0 {
        let (stream, rest) = payload.split_first_chunk::<4>().ok_or(TOO_SHORT)?;
        let (_weight, rest) = rest.split_first().ok_or(TOO_SHORT)?;
        dependency = Some(u32::from_be_bytes(*stream) & !RESERVED);
        payload = rest;
    }
    let length = payload.len().checked_sub(padding).ok_or((
        ErrorCode::PROTOCOL_ERROR,
        "padding of HEADERS exceeds their length",
    ))?;
    Ok(HeadersPayload {
        fragment: &payload[..length],
        dependency,
    })
}

/// Returns the parent stream of a PRIORITY payload, `None` if its size is invalid.
pub(crate) fn priority(payload: &[u8]) -> Option<u32> {
    let (dependency, _weight) = payload.split_first_chunk::<4>()?;
    (payload.len() == 5).then(|| u32::from_be_bytes(*dependency) & !RESERVED)
}

/// Parses the payload of RST_STREAM or WINDOW_UPDATE.
pub(crate) fn read_u32(payload: &[u8]) -> Result<u32, FrameError> {
    let bytes = payload.try_into().map_err(|_other_size| {
        (
            FRAME_SIZE,
            "RST_STREAM or WINDOW_UPDATE is not 4 bytes long",
        )
    })?;
    Ok(u32::from_be_bytes(bytes))
}

pub(crate) fn window_increment(payload: &[u8]) -> Result<u32, FrameError> {
    Ok(read_u32(payload)? & !RESERVED)
}

pub(crate) fn ping(payload: &[u8]) -> Result<[u8; 8], FrameError> {
    let bytes = payload.try_into();
    bytes.map_err(|_other_size| (FRAME_SIZE, "PING is not 8 bytes long"))
}

/// Returns the last stream identifier and the error code of a GOAWAY payload.
pub(crate) fn goaway(payload: &[u8]) -> Result<(u32, ErrorCode), FrameError> {
    let numbers = payload.first_chunk::<8>();
    let [a, b, c, d, e, f, g, h] = *numbers.ok_or((FRAME_SIZE, "GOAWAY too short"))?;
    Ok((
        u32::from_be_bytes([a, b, c, d]) & !RESERVED,
        ErrorCode(u32::from_be_bytes([e, f, g, h])),
    ))
}

pub(crate) fn write_u32_frame(out: &mut Vec<u8>, kind: u8, stream: u32, read_u32: u32) {
    let header = FrameHeader {
        length: 4,
        kind,
        flags: 0,
        stream,
    };
    header.write(out);
    out.extend_from_slice(&read_u32.to_be_bytes());
}

pub(crate) fn write_ping(out: &mut Vec<u8>, flags: u8, payload: [u8; 8]) {
    let header = FrameHeader {
        length: 8,
        kind: PING,
        flags,
        stream: 0,
    };
    header.write(out);
    out.extend_from_slice(&payload);
}

pub(crate) fn write_goaway(out: &mut Vec<u8>, last: u32, code: ErrorCode, debug_data: &str) {
    let header = FrameHeader {
        length: 8 + debug_data.len() as u32,
        kind: GOAWAY,
        flags: 0,
        stream: 0,
    };
    header.write(out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    out.extend_from_slice(debug_data.as_bytes());
}

/// Completes the frames of a field block, which stands at the end of `out`, behind
/// [`FRAME_HEADER_SIZE`] bytes at `start` for the header of HEADERS. Moves what exceeds `max_frame`
/// to CONTINUATION frames.
pub(crate) fn finish_headers(
    out: &mut Vec<u8>,
    start: usize,
    stream: u32,
    ends_stream: bool,
    max_frame: usize,
) {
    let mut header = FrameHeader {
        length: 0,
        kind: HEADERS,
        flags: if ends_stream { END_STREAM } else { 0 },
        stream,
    };
    let length = out.len() - start - FRAME_HEADER_SIZE;
    let fits = length <= max_frame;
    let rest = if fits {
        Vec::new()
    } else {
        out.split_off(start + FRAME_HEADER_SIZE + max_frame)
    };
    if fits {
        header.flags |= END_HEADERS;
    }
    header.length = (length - rest.len()) as u32;
    let mut bytes = Vec::with_capacity(FRAME_HEADER_SIZE);
    header.write(&mut bytes);
    out[start..start + FRAME_HEADER_SIZE].copy_from_slice(&bytes);
    let mut fragments = rest.chunks(max_frame).peekable();
    while let Some(fragment) = fragments.next() {
        let header = FrameHeader {
            length: fragment.len() as u32,
            kind: CONTINUATION,
            flags: if fragments.peek().is_none() && !Bug::ContinuationEndLost.is_planted() {
                END_HEADERS
            } else {
                0
            },
            stream,
        };
        header.write(out);
        out.extend_from_slice(fragment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, flags: u8) -> FrameHeader {
        FrameHeader {
            length: 0,
            kind,
            flags,
            stream: 1,
        }
    }

    #[test]
    fn frame_header_round_trips() {
        let written = FrameHeader {
            length: 0x01_02_03,
            kind: DATA,
            flags: END_STREAM,
            stream: 0x7fff_fffe,
        };
        let mut bytes = Vec::new();
        written.write(&mut bytes);
        assert_eq!(FrameHeader::parse(bytes[..].try_into().unwrap()), written);
        bytes[5] |= 0x80;
        assert_eq!(
            FrameHeader::parse(bytes[..].try_into().unwrap()),
            written,
            "reserved"
        );
    }

    #[test]
    fn headers_payload_excludes_padding_and_priority() {
        let payload = [2, 0x80, 0, 0, 3, 16, b'x', b'y', 0, 0];
        let both = headers(header(HEADERS, PADDED | HAS_PRIORITY), &payload);
        let expected = HeadersPayload {
            fragment: b"xy",
            dependency: Some(3),
        };
        assert_eq!(both, Ok(expected));
        for (flags, payload) in [
            (PADDED, &[][..]),
            (PADDED, &[3, 0, 0]),
            (HAS_PRIORITY, &[0; 4]),
            (PADDED | HAS_PRIORITY, &[1, 0, 0, 0, 0, 0]),
        ] {
            headers(header(HEADERS, flags), payload).unwrap_err();
        }
    }

    #[test]
    fn long_field_block_is_split_into_continuations() {
        for (length, frames) in [(0, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)] {
            let mut out = vec![7; 3];
            out.extend([0; FRAME_HEADER_SIZE]);
            let fragment: Vec<u8> = (0..length).collect();
            out.extend(&fragment);
            finish_headers(&mut out, 3, 5, true, 10);
            let mut rest = &out[3..];
            let mut reassembled = Vec::new();
            let mut count = 0;
            while let Some((bytes, after)) = rest.split_first_chunk::<FRAME_HEADER_SIZE>() {
                let header = FrameHeader::parse(*bytes);
                count += 1;
                assert_eq!(header.kind, if count == 1 { HEADERS } else { CONTINUATION });
                assert_eq!(header.stream, 5);
                assert_eq!(header.ends_headers(), count == frames, "{length}");
                assert_eq!(header.ends_stream(), count == 1);
                let (payload, after) = after.split_at(header.length as usize);
                reassembled.extend(payload);
                rest = after;
            }
            assert_eq!((reassembled, count), (fragment, frames));
        }
    }
}
