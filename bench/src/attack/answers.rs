//! What the receiver of an attack says that an attacker must heed to stay within the protocol: how
//! much data it admits, and that a stream is over.

use super::bytes::{Frame, RST_STREAM, SETTINGS, WINDOW_UPDATE, split};

/// Of every window, until something else is said.
const WINDOW: i64 = 65_535;
const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// Of one connection, and of the one stream on it that carries data.
#[derive(Debug)]
pub(super) struct Answers {
    /// A frame of which the rest has not come.
    unread: Vec<u8>,
    connection: i64,
    /// What a new stream begins with.
    initial: i64,
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    id: u32,
    window: i64,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            unread: Vec::new(),
            connection: WINDOW,
            initial: WINDOW,
            stream: None,
        }
    }
}

impl Answers {
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut rest = &unread[..];
        while let Some((frame, after)) = split(rest) {
            self.heed(&frame);
            rest = after;
        }
        let read = unread.len() - rest.len();
        unread.drain(..read);
        self.unread = unread;
    }

    /// The stream that carries data, until it is reset.
    pub(super) fn stream(&self) -> Option<u32> {
        self.stream.as_ref().map(|stream| stream.id)
    }

    /// From now on this stream carries data.
    pub(super) fn open(&mut self, id: u32) {
        let window = self.initial;
        self.stream = Some(Stream { id, window });
    }

    /// Takes as much of this from the windows as they have.
    pub(super) fn take(&mut self, length: usize) -> usize {
        let Some(stream) = &mut self.stream else {
            return 0;
        };
        let admitted = self.connection.min(stream.window).clamp(0, length as i64);
        self.connection -= admitted;
        stream.window -= admitted;
        admitted as usize
    }

    fn heed(&mut self, frame: &Frame<'_>) {
        let stream = self.stream.as_mut();
        let stream = stream.filter(|stream| stream.id == frame.stream);
        match (frame.kind, stream) {
            (WINDOW_UPDATE, Some(stream)) => stream.window += increment(frame),
            (WINDOW_UPDATE, None) if frame.stream == 0 => self.connection += increment(frame),
            (RST_STREAM, Some(_)) => self.stream = None,
            (SETTINGS, _) => self.set(frame.payload),
            _ => (),
        }
    }

    fn set(&mut self, settings: &[u8]) {
        for &[n1, n0, ref value @ ..] in settings.as_chunks::<6>().0 {
            if u16::from_be_bytes([n1, n0]) != INITIAL_WINDOW_SIZE {
                continue;
            }
            let initial = i64::from(u32::from_be_bytes(*value));
            if let Some(stream) = &mut self.stream {
                stream.window += initial - self.initial;
            }
            self.initial = initial;
        }
    }
}

fn increment(frame: &Frame<'_>) -> i64 {
    let bytes = frame.payload.first_chunk();
    bytes.map_or(0, |bytes| i64::from(u32::from_be_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use super::{
        super::bytes::{PING, frame},
        *,
    };

    fn said(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, 0, stream, payload);
        bytes
    }

    #[test]
    fn both_windows_bound_what_is_sent() {
        let mut answers = Answers::default();
        assert_eq!(answers.take(1), 0, "no stream");
        answers.open(1);
        assert_eq!(answers.take(65_000), 65_000);
        assert_eq!(answers.take(1_000), 535);
        answers.read(&said(WINDOW_UPDATE, 1, &[0, 0, 0, 7]));
        assert_eq!(answers.take(9), 0, "the connection's window is closed");
        answers.read(&said(WINDOW_UPDATE, 0, &[0, 0, 0, 5]));
        answers.read(&said(WINDOW_UPDATE, 3, &[0, 0, 0, 9]));
        assert_eq!(answers.take(9), 5);
    }

    #[test]
    fn settings_change_the_windows_of_streams() {
        let mut answers = Answers::default();
        answers.open(1);
        answers.read(&said(SETTINGS, 0, &[0, 3, 0, 0, 0, 9, 0, 4, 0, 0, 0, 10]));
        assert_eq!(answers.take(100), 10);
        answers.open(3);
        assert_eq!(answers.take(100), 10);
    }

    #[test]
    fn a_reset_ends_its_stream_however_it_arrives() {
        let mut bytes = said(PING, 0, &[0; 8]);
        bytes.extend(said(RST_STREAM, 1, &[0, 0, 0, 8]));
        let mut answers = Answers::default();
        answers.open(1);
        for byte in bytes {
            assert_eq!(answers.stream(), Some(1));
            answers.read(&[byte]);
        }
        assert_eq!(answers.stream(), None);
        answers.open(3);
        answers.read(&said(RST_STREAM, 1, &[0, 0, 0, 8]));
        assert_eq!(answers.stream(), Some(3));
    }
}
