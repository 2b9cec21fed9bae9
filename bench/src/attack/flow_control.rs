//! The receiver's flow-control windows and stream resets, which an attacker has to respect to stay
//! within the protocol.

use super::bytes::{Frame, RST_STREAM, SETTINGS, WINDOW, WINDOW_UPDATE, parse_frame};

const INITIAL_WINDOW_SIZE: u16 = 0x4;

/// The windows of a connection and of the one stream on it that carries data.
#[derive(Debug)]
pub(super) struct FlowControl {
    /// The beginning of an incomplete frame.
    unread: Vec<u8>,
    connection: i64,
    /// Initial window of new streams.
    initial: i64,
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    id: u32,
    window: i64,
}

impl Default for FlowControl {
    fn default() -> Self {
        Self {
            unread: Vec::new(),
            connection: i64::from(WINDOW),
            initial: i64::from(WINDOW),
            stream: None,
        }
    }
}

impl FlowControl {
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let mut unread = std::mem::take(&mut self.unread);
        unread.extend_from_slice(bytes);
        let mut rest = &unread[..];
        while let Some((frame, after)) = parse_frame(rest) {
            self.apply(&frame);
            rest = after;
        }
        let read = unread.len() - rest.len();
        unread.drain(..read);
        self.unread = unread;
    }

    /// Returns the stream that carries data, unless it was reset.
    pub(super) fn stream(&self) -> Option<u32> {
        self.stream.as_ref().map(|stream| stream.id)
    }

    /// Makes `id` the stream that carries data.
    pub(super) fn open(&mut self, id: u32) {
        let window = self.initial;
        self.stream = Some(Stream { id, window });
    }

    /// Consumes up to `length` bytes of both windows and returns the number.
    pub(super) fn take(&mut self, length: usize) -> usize {
        let Some(stream) = &mut self.stream else {
            return 0;
        };
        let admitted = self.connection.min(stream.window).clamp(0, length as i64);
        self.connection -= admitted;
        stream.window -= admitted;
        admitted as usize
    }

    fn apply(&mut self, frame: &Frame<'_>) {
        let stream = self.stream.as_mut();
        let stream = stream.filter(|stream| stream.id == frame.stream_id());
        match (frame.kind, stream) {
            (WINDOW_UPDATE, Some(stream)) => stream.window += increment(frame),
            (WINDOW_UPDATE, None) if frame.stream_id() == 0 => self.connection += increment(frame),
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

    fn encoded_frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, 0, stream, payload);
        bytes
    }

    #[test]
    fn connection_and_stream_windows_bound_sent_data() {
        let mut flow_control = FlowControl::default();
        assert_eq!(flow_control.take(1), 0, "no stream");
        flow_control.open(1);
        assert_eq!(flow_control.take(65_000), 65_000);
        assert_eq!(flow_control.take(1_000), 535);
        flow_control.read(&encoded_frame(WINDOW_UPDATE, 1, &[0, 0, 0, 7]));
        assert_eq!(flow_control.take(9), 0, "the connection's window is closed");
        flow_control.read(&encoded_frame(WINDOW_UPDATE, 0, &[0, 0, 0, 5]));
        flow_control.read(&encoded_frame(WINDOW_UPDATE, 3, &[0, 0, 0, 9]));
        assert_eq!(flow_control.take(9), 5);
    }

    #[test]
    fn initial_window_size_updates_open_stream() {
        let mut flow_control = FlowControl::default();
        flow_control.open(1);
        flow_control.read(&encoded_frame(
            SETTINGS,
            0,
            &[0, 3, 0, 0, 0, 9, 0, 4, 0, 0, 0, 10],
        ));
        assert_eq!(flow_control.take(100), 10);
        flow_control.open(3);
        assert_eq!(flow_control.take(100), 10);
    }

    #[test]
    fn rst_stream_is_parsed_across_reads() {
        let mut bytes = encoded_frame(PING, 0, &[0; 8]);
        bytes.extend(encoded_frame(RST_STREAM, 1, &[0, 0, 0, 8]));
        let mut flow_control = FlowControl::default();
        flow_control.open(1);
        for byte in bytes {
            assert_eq!(flow_control.stream(), Some(1));
            flow_control.read(&[byte]);
        }
        assert_eq!(flow_control.stream(), None);
        flow_control.open(3);
        flow_control.read(&encoded_frame(RST_STREAM, 1, &[0, 0, 0, 8]));
        assert_eq!(flow_control.stream(), Some(3));
    }
}
