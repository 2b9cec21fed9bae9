//! Finds the heads of HTTP/2 frames in a stream of bytes, cut anywhere. Pure; RFC 9113, section 4.1.

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

/// Where in the stream the next byte stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scanner {
    head: [u8; HEAD],
    /// How much of `head` is there.
    have: usize,
    /// What is to come of a frame whose head has been seen, or of the preface.
    payload: usize,
}

/// Bytes of a frame's head.
const HEAD: usize = 9;

/// Bytes that a client sends before its first frame.
pub(super) const PREFACE: usize = 24;

impl Head {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const CONTINUATION: u8 = 9;

    const ACK_OR_END_STREAM: u8 = 0x1;
    const END_HEADERS: u8 = 0x4;

    fn parse(bytes: [u8; HEAD]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & !(1 << 31),
        }
    }

    /// Of settings and pings.
    pub(super) fn is_ack(&self) -> bool {
        self.flags & Self::ACK_OR_END_STREAM != 0
    }

    /// Of headers and data.
    pub(super) fn ends_stream(&self) -> bool {
        self.flags & Self::ACK_OR_END_STREAM != 0
    }

    /// Of headers and continuations.
    pub(super) fn ends_headers(&self) -> bool {
        self.flags & Self::END_HEADERS != 0
    }

    pub(super) fn is_of_header_block(&self) -> bool {
        matches!(self.kind, Self::HEADERS | Self::CONTINUATION)
    }
}

impl Scanner {
    /// A stream that begins with this many bytes which are no frame.
    pub(super) fn behind(preface: usize) -> Self {
        Self {
            payload: preface,
            ..Self::default()
        }
    }

    /// The next head in `bytes`, which is advanced behind it. `None` when the rest of `bytes` holds none.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let skipped = self.payload.min(bytes.len());
        self.payload -= skipped;
        *bytes = &bytes[skipped..];
        let taken = (HEAD - self.have).min(bytes.len());
        self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
        self.have += taken;
        *bytes = &bytes[taken..];
        if self.have < HEAD {
            return None;
        }
        self.have = 0;
        let head = Head::parse(self.head);
        self.payload = head.length as usize;
        Some(head)
    }

    /// Whether the frame whose head was seen last is still to be read in part.
    pub(super) fn is_within_payload(&self) -> bool {
        self.payload > 0
    }

    /// Whether a frame may begin with the next byte.
    pub(super) fn is_between_frames(&self) -> bool {
        self.payload == 0 && self.have == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn heads_are_found_however_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(Head::SETTINGS, 0, 0, &[0; 12]));
        bytes.extend(frame(Head::PING, 1, 0, &[1; 8]));
        bytes.extend(frame(Head::DATA, 0, 5, &[]));
        bytes.extend(frame(Head::DATA, 1, 0x8000_0005, &[9; 300]));
        let heads = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut scanner = Scanner::behind(PREFACE);
            let mut heads = Vec::new();
            for mut piece in pieces {
                while let Some(head) = scanner.next(&mut piece) {
                    heads.push((head.kind, head.flags, head.length, head.stream));
                }
            }
            assert!(scanner.is_between_frames() && !scanner.is_within_payload());
            heads
        };
        let expected = [(4, 0, 12, 0), (6, 1, 8, 0), (0, 0, 0, 5), (0, 1, 300, 5)];
        for size in 1..bytes.len() {
            assert_eq!(heads(&mut bytes.chunks(size)), expected, "pieces of {size}");
        }
    }
}
