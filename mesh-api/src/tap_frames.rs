//! The framing of the tap API's responses: each message follows its length, four bytes in
//! little-endian order. The tap API writes it, and the CLI and the dashboard read it.

use prost::Message;
use prost::bytes::{Buf as _, Bytes, BytesMut};

/// The bytes that have arrived and belong to no complete message.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// The maximum size of a message, in bytes.
    limit: u32,
}

/// Why the stream cannot be read further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A message is longer than the limit. It is not waited for.
    #[error("the tap sent a message of {length} bytes; expected at most {limit}")]
    TooLarge {
        /// The announced length in bytes.
        length: u32,
        /// The limit in bytes.
        limit: u32,
    },
    /// The stream ended within a message.
    #[error("the tap ended within a message")]
    Truncated,
}

/// The size of the length.
const PREFIX: usize = size_of::<u32>();

/// Returns a message after its length. A message has less than 4 GiB.
pub fn frame(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    // Events and errors are far smaller.
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &encoded].concat().into()
}

impl Frames {
    /// Creates an empty stream whose messages have at most `limit` bytes.
    pub fn with_limit(limit: u32) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
        }
    }

    /// Adds bytes. The buffer has at most one incomplete message and what has been added since, if
    /// all messages are taken before more bytes are added.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message; `None` until it is complete.
    ///
    /// # Errors
    ///
    /// The next message is longer than the limit.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix);
        if length > self.limit {
            return Err(FrameError::TooLarge {
                length,
                limit: self.limit,
            });
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
    ///
    /// # Errors
    ///
    /// A message is incomplete.
    pub fn end(&self) -> Result<(), FrameError> {
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

    const LIMIT: u32 = 1 << 20;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&length.to_le_bytes()[..], message].concat()
    }

    /// Reads the stream in parts of `size` bytes.
    fn read(stream: &[u8], size: usize) -> Result<Vec<Bytes>, FrameError> {
        let mut frames = Frames::with_limit(LIMIT);
        let mut messages = Vec::new();
        for part in stream.chunks(size) {
            frames.push(part);
            while let Some(message) = frames.next_frame()? {
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
        let largest = vec![1; LIMIT as usize];
        assert_eq!(read(&framed(&largest), 1 << 16).unwrap(), [&largest[..]]);
        // The length alone is enough; the message is not waited for.
        let too_large = |length| {
            Err(FrameError::TooLarge {
                length,
                limit: LIMIT,
            })
        };
        let mut frames = Frames::with_limit(LIMIT);
        frames.push(&LIMIT.to_le_bytes());
        assert_eq!(frames.next_frame(), Ok(None));
        let mut frames = Frames::with_limit(LIMIT);
        frames.push(&(LIMIT + 1).to_le_bytes());
        assert_eq!(frames.next_frame(), too_large(LIMIT + 1));
        let mut frames = Frames::with_limit(LIMIT);
        frames.push(&[0xff; 9]);
        assert_eq!(frames.next_frame(), too_large(u32::MAX));
    }

    #[test]
    fn incomplete_message_at_the_end_is_an_error() {
        for end in 1..framed(b"event").len() {
            let stream = &framed(b"event")[..end];
            assert_eq!(read(stream, 3), Err(FrameError::Truncated), "{end}");
        }
        assert_eq!(read(&[], 1), Ok(Vec::new()));
    }

    #[test]
    fn written_frame_is_read() {
        let message = "event".to_owned();
        let frames = read(&frame(&message), 2).unwrap();
        assert_eq!(String::decode(frames[0].clone()).unwrap(), "event");
    }
}
