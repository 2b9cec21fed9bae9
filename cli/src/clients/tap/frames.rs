//! Splits a stream of bytes into messages, each preceded by its length.

use bytes::{Buf as _, Bytes, BytesMut};

/// The bytes that have arrived and belong to no complete message.
#[derive(Debug, Default)]
pub(super) struct Frames {
    buffer: BytesMut,
}

/// Why the stream cannot be read further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the tap sent a message of {0} bytes; expected at most {MAX_FRAME}")]
    TooLarge(u32),
    #[error("the tap ended within a message")]
    Truncated,
}

/// Maximum size of a message. An event has the header fields of one request, of which the proxy
/// reports at most 16 KiB, a path and labels.
pub(super) const MAX_FRAME: u32 = 1 << 20;

/// The size of the length.
const PREFIX: usize = 4;

impl Frames {
    /// Adds bytes. The buffer has at most one incomplete message and what has been added since, if
    /// all messages are taken before more bytes are added.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix);
        if length > MAX_FRAME {
            return Err(FrameError::TooLarge(length));
        }
        let end = PREFIX + length as usize;
        if self.buffer.len() < end {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(end);
        frame.advance(PREFIX);
        Ok(Some(frame.freeze()))
    }

    /// Checks that no message is incomplete at the end of the stream.
    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Truncated)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&length.to_le_bytes()[..], message].concat()
    }

    /// Reads the stream in parts of `size` bytes.
    fn read(stream: &[u8], size: usize) -> Result<Vec<Bytes>, FrameError> {
        let mut frames = Frames::default();
        let mut messages = Vec::new();
        for part in stream.chunks(size) {
            frames.push(part);
            while let Some(message) = frames.next()? {
                messages.push(message);
            }
        }
        frames.end()?;
        Ok(messages)
    }

    #[test]
    fn messages_are_independent_of_the_parts_they_arrive_in() {
        let messages: [&[u8]; 4] = [b"first", b"", b"third", &[7; 300]];
        let stream: Vec<u8> = messages.iter().flat_map(|it| framed(it)).collect();
        for size in 1..=stream.len() {
            assert_eq!(read(&stream, size).unwrap(), messages, "{size}");
        }
    }

    #[test]
    fn size_of_a_message_is_bounded() {
        let largest = vec![1; MAX_FRAME as usize];
        assert_eq!(read(&framed(&largest), 1 << 16).unwrap(), [&largest[..]]);
        // The length alone is enough; the message is not waited for.
        let mut frames = Frames::default();
        frames.push(&(MAX_FRAME + 1).to_le_bytes());
        assert_eq!(frames.next(), Err(FrameError::TooLarge(MAX_FRAME + 1)));
        let mut frames = Frames::default();
        frames.push(&[0xff; 9]);
        assert_eq!(frames.next(), Err(FrameError::TooLarge(u32::MAX)));
    }

    #[test]
    fn incomplete_message_at_the_end_is_an_error() {
        for end in 1..framed(b"event").len() {
            let stream = &framed(b"event")[..end];
            assert_eq!(read(stream, 3), Err(FrameError::Truncated), "{end}");
        }
        assert_eq!(read(&[], 1), Ok(Vec::new()));
    }
}
