//! The framing of tap responses: each message follows its length, four bytes in little-endian
//! order.

use hyper::body::Bytes;

/// Bytes that have been received and are not yet a complete message.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: Vec<u8>,
    /// How many bytes of the buffer have been returned.
    read: usize,
}

/// A peer that does not send events.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid event: it has {0} bytes, at most {MAX_FRAME} are expected")]
pub(super) struct FrameTooLong(usize);

/// An event has at most 16 KiB of header fields, a path and labels.
const MAX_FRAME: usize = 256 << 10;

const PREFIX: usize = size_of::<u32>();

impl Frames {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.read);
        self.read = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` until it is complete.
    pub(super) fn next_frame(&mut self) -> Result<Option<Bytes>, FrameTooLong> {
        let unread = &self.buffer[self.read..];
        let Some((prefix, rest)) = unread.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(FrameTooLong(length));
        }
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Bytes::copy_from_slice(frame);
        self.read += PREFIX + length;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_complete_however_they_are_split() {
        let mut stream = Vec::new();
        for payload in ["", "a", "event"] {
            stream.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            stream.extend_from_slice(payload.as_bytes());
        }
        for size in 1..=stream.len() {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for part in stream.chunks(size) {
                frames.push(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, ["", "a", "event"], "{size}");
        }
    }

    #[test]
    fn long_frames_are_refused_before_they_arrive() {
        let mut frames = Frames::default();
        frames.push(&(MAX_FRAME as u32).to_le_bytes());
        assert_eq!(frames.next_frame(), Ok(None));
        let mut frames = Frames::default();
        frames.push(&(MAX_FRAME as u32 + 1).to_le_bytes());
        assert_eq!(frames.next_frame(), Err(FrameTooLong(MAX_FRAME + 1)));
    }
}
