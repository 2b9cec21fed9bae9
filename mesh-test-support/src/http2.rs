//! HTTP/2 frames as hand-made peers of the proxy send and read them, also invalid ones (RFC 9113,
//! sections 4.1 and 6). Shares no code with the proxy.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const PRIORITY_FLAG: u8 = 0x20;

/// The initial value of SETTINGS_MAX_FRAME_SIZE, in bytes.
pub const MAX_FRAME: usize = 16_384;

/// The initial flow-control window of streams and of the connection, in bytes.
pub const WINDOW: u32 = 65_535;

/// Bytes of a frame's header.
const HEADER: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    /// With the reserved bit, if it is set.
    pub stream: u32,
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// The stream without the reserved bit, which receivers ignore.
    pub fn stream_id(&self) -> u32 {
        self.stream & (u32::MAX >> 1)
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame, whose payload is shorter than 2^24 bytes.
#[inline]
pub fn write(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    to.extend_from_slice(&length);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Returns the first frame and the bytes behind it, or `None` if it is incomplete.
pub fn read(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (&[_, _, _, kind, flags, stream @ ..], rest) = bytes.split_first_chunk::<HEADER>()?;
    let (payload, rest) = rest.split_at_checked(announced_length(bytes)?)?;
    let frame = Frame {
        kind,
        flags,
        stream: u32::from_be_bytes(stream),
        payload,
    };
    Some((frame, rest))
}

/// Returns the length in the header of the first frame.
pub fn announced_length(bytes: &[u8]) -> Option<usize> {
    let [a, b, c] = *bytes.first_chunk()?;
    Some(u32::from_be_bytes([0, a, b, c]) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let mut bytes = Vec::new();
        write(&mut bytes, DATA, END_STREAM, 5, b"abc");
        write(&mut bytes, PING, 0, 0, &[7; 8]);
        let (data, rest) = read(&bytes).unwrap();
        let expected = Frame {
            kind: DATA,
            flags: END_STREAM,
            stream: 5,
            payload: b"abc",
        };
        assert_eq!(data, expected);
        assert!(data.has(END_STREAM) && !data.has(PADDED));
        let (ping, rest) = read(rest).unwrap();
        assert_eq!((ping.kind, ping.payload), (PING, &[7; 8][..]));
        assert_eq!(read(rest), None);
        assert_eq!(read(&bytes[..11]), None, "two bytes of three");
        assert_eq!(announced_length(&bytes), Some(3));
        assert_eq!(announced_length(&bytes[..2]), None);
    }

    #[test]
    fn reserved_bit_is_not_part_of_the_stream() {
        let mut bytes = Vec::new();
        write(&mut bytes, PING, 0, 1 << 31 | 5, &[]);
        let (frame, _) = read(&bytes).unwrap();
        assert_eq!((frame.stream, frame.stream_id()), (1 << 31 | 5, 5));
    }
}
