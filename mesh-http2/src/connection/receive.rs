//! Parsing of received bytes into frames, and the frames that are not part of messages.

use mesh_planted::Bug;

use super::{Connection, GOAWAY_PING_PAYLOAD, GoAwayState, PING_PAYLOAD, Role};
use crate::error::{Error, ErrorCode, LimitExceeded};
use crate::flood::FloodAction;
use crate::frame::{self, FrameError, FrameHeader, PREFACE};
use crate::settings;
use crate::stream::MessageState;

/// The parser's position in the received bytes.
#[derive(Debug)]
pub(super) enum ReadState {
    /// In the client's preface, with the number of bytes received.
    Preface(usize),
    FrameHeader {
        bytes: [u8; frame::FRAME_HEADER_SIZE],
        received: usize,
    },
    /// In a payload that is buffered until it is complete.
    Payload {
        header: FrameHeader,
        received: Vec<u8>,
    },
    /// In the payload of DATA, which is not buffered here. `stream` is `None` if it is discarded.
    Data {
        stream: Option<u32>,
        remaining: u32,
        ends_stream: bool,
    },
}

/// A connection error.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveError {
    Protocol(ErrorCode, &'static str),
    Limit(LimitExceeded),
}

/// The work of one call of [`Connection::receive`], in units of field lines: about twenty
/// microseconds, so that a connection with the most expensive input occupies its thread no longer
/// than others. 64 bytes of a field section count as one more field line. A frame that has begun is
/// completed: 16 KiB of field lines of one byte each, the most that one can hold, take 0.3 ms, and
/// close the connection when they occur ten times.
pub const WORK_PER_TURN: usize = 1024;

/// Work of a frame, in field lines.
const FRAME_WORK: usize = 2;

/// Bytes of DATA, which are only copied, that cost as much work as a field line.
pub(super) const BYTES_PER_WORK: usize = 1024;

impl Default for ReadState {
    fn default() -> Self {
        Self::FrameHeader {
            bytes: [0; frame::FRAME_HEADER_SIZE],
            received: 0,
        }
    }
}

impl ReadState {
    /// Whether a frame of a field block is incomplete.
    pub(super) fn is_within_field_block(&self) -> bool {
        matches!(self, Self::Payload { header, .. } if matches!(header.kind, frame::HEADERS | frame::CONTINUATION))
    }
}

impl From<FrameError> for ReceiveError {
    fn from((code, message): FrameError) -> Self {
        Self::Protocol(code, message)
    }
}

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::Protocol(code, message) => Self::ConnectionError(code, message),
            ReceiveError::Limit(exceeded) => Self::LimitExceeded(exceeded),
        }
    }
}

fn protocol_error(message: &'static str) -> ReceiveError {
    ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, message)
}

impl Connection {
    /// Processes received bytes until the work of one turn is done, and returns the number of
    /// processed bytes: the caller passes the rest in its next turn, after other tasks of the
    /// thread have run.
    ///
    /// # Errors
    ///
    /// The connection has failed with this call or before. Its output is the GOAWAY.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.work = 0;
        self.process(bytes)
            .map_err(|error| self.fail_connection(error))
    }

    /// The work of the last call of [`Connection::receive`], see [`WORK_PER_TURN`].
    pub fn work(&self) -> usize {
        self.work
    }

    /// Adds work to this turn.
    pub(super) fn add_work(&mut self, increment: usize) {
        self.work += increment;
    }

    fn process(&mut self, all: &[u8]) -> Result<usize, ReceiveError> {
        let mut bytes = all;
        while !bytes.is_empty() && self.work < WORK_PER_TURN {
            match &mut self.input {
                ReadState::Preface(received) => {
                    let n = bytes.len().min(PREFACE.len() - *received);
                    if bytes[..n] != PREFACE[*received..*received + n] {
                        return Err(protocol_error("invalid connection preface"));
                    }
                    *received += n;
                    bytes = &bytes[n..];
                    if *received == PREFACE.len() {
                        self.input = ReadState::default();
                    }
                }
                ReadState::FrameHeader { received: 0, .. }
                    if bytes.len() >= frame::FRAME_HEADER_SIZE =>
                {
                    let (header, after_header) = bytes.split_at(frame::FRAME_HEADER_SIZE);
                    let mut parsed = [0; frame::FRAME_HEADER_SIZE];
                    parsed.copy_from_slice(header);
                    let processed = self.begin_frame(FrameHeader::parse(parsed), after_header)?;
                    bytes = &after_header[processed..];
                }
                ReadState::FrameHeader {
                    bytes: header,
                    received,
                } => {
                    let n = bytes.len().min(frame::FRAME_HEADER_SIZE - *received);
                    let is_misread = Bug::SplitFrameHeaderMisread.is_planted();
                    let at = if is_misread { 0 } else { *received };
                    header[at..at + n].copy_from_slice(&bytes[..n]);
                    *received += n;
                    bytes = &bytes[n..];
                    if *received == frame::FRAME_HEADER_SIZE {
                        let header = FrameHeader::parse(*header);
                        self.input = ReadState::default();
                        let processed = self.begin_frame(header, bytes)?;
                        bytes = &bytes[processed..];
                    }
                }
                ReadState::Payload { header, received } => {
                    let header = *header;
                    let n = bytes.len().min(header.length as usize - received.len());
                    let (chunk, rest) = bytes.split_at(n);
                    bytes = rest;
                    if received.len() + n < header.length as usize {
                        received.extend_from_slice(chunk);
                    } else if received.is_empty() {
                        self.input = ReadState::default();
                        self.process_frame(header, chunk)?;
                    } else {
                        received.extend_from_slice(chunk);
                        let payload = std::mem::take(received);
                        self.input = ReadState::default();
                        self.process_frame(header, &payload)?;
                    }
                }
                ReadState::Data {
                    stream,
                    remaining,
                    ends_stream,
                } => {
                    let n = bytes.len().min(*remaining as usize);
                    let (chunk, rest) = bytes.split_at(n);
                    bytes = rest;
                    *remaining -= n as u32;
                    let (stream, is_last, ends_stream) = (*stream, *remaining == 0, *ends_stream);
                    if is_last {
                        self.input = ReadState::default();
                    }
                    self.add_work(n / BYTES_PER_WORK);
                    self.receive_data(stream, chunk, is_last && ends_stream)?;
                }
            }
        }
        Ok(all.len() - bytes.len())
    }

    /// Begins a frame. Processes the payload in `bytes`, which follow the frame header, if that is
    /// possible without a copy, and returns the number of bytes processed.
    fn begin_frame(&mut self, header: FrameHeader, bytes: &[u8]) -> Result<usize, ReceiveError> {
        self.add_work(FRAME_WORK);
        if header.length > self.max_frame_size {
            return Err(ReceiveError::Protocol(
                ErrorCode::FRAME_SIZE_ERROR,
                "frame exceeds SETTINGS_MAX_FRAME_SIZE",
            ));
        }
        match &self.field_block {
            Some(block) if header.kind != frame::CONTINUATION || header.stream != block.stream => {
                return Err(protocol_error("field block interrupted by another frame"));
            }
            None if header.kind == frame::CONTINUATION => {
                return Err(protocol_error("CONTINUATION without HEADERS"));
            }
            _ => {}
        }
        if !self.has_peer_settings && (header.kind != frame::SETTINGS || header.is_ack()) {
            return Err(protocol_error("first frame is not SETTINGS"));
        }
        let has_sent_goaway = self.goaway != GoAwayState::None;
        let action = self.flood.record_frame(header, has_sent_goaway);
        self.apply(action)?;
        match header.kind {
            frame::DATA => self.begin_data(header, bytes),
            frame::HEADERS => {
                self.field_blocks = self.field_blocks.wrapping_add(1);
                self.last_field_block = header.stream;
                self.process_payload(header, bytes)
            }
            _ => self.process_payload(header, bytes),
        }
    }

    /// Processes a frame whose payload is complete in `bytes`, or starts to buffer the payload.
    pub(super) fn process_payload(
        &mut self,
        header: FrameHeader,
        bytes: &[u8],
    ) -> Result<usize, ReceiveError> {
        let length = header.length as usize;
        if let Some(payload) = bytes.get(..length) {
            self.process_frame(header, payload)?;
            return Ok(length);
        }
        let received = Vec::new();
        self.input = ReadState::Payload { header, received };
        Ok(0)
    }

    pub(super) fn apply(&mut self, action: FloodAction) -> Result<(), ReceiveError> {
        match action {
            FloodAction::Continue => Ok(()),
            FloodAction::Drain(exceeded) => {
                self.limit_exceeded = Some(exceeded);
                self.is_drain_due = true;
                Ok(())
            }
            FloodAction::Close(exceeded) => Err(ReceiveError::Limit(exceeded)),
        }
    }

    /// Processes a complete frame.
    fn process_frame(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        match header.kind {
            frame::DATA => self.on_padded_data(header, payload),
            frame::HEADERS => self.on_headers(header, payload),
            frame::CONTINUATION => self.on_continuation(header, payload),
            frame::PRIORITY => self.on_priority(header, payload),
            frame::RST_STREAM => self.on_rst_stream(header, payload),
            frame::SETTINGS => self.on_settings(header, payload),
            frame::PUSH_PROMISE => Err(protocol_error("PUSH_PROMISE despite disabled push")),
            frame::PING => self.on_ping(header, payload),
            frame::GOAWAY => self.on_goaway(header, payload),
            frame::WINDOW_UPDATE => self.on_window_update(header, payload),
            frame::CLIENT_CLOSED => {
                self.on_client_closed(header);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_priority(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        if header.stream == 0 {
            return Err(protocol_error("PRIORITY on stream 0"));
        }
        match frame::priority(payload) {
            None => self.raise_stream_error(
                header.stream,
                ErrorCode::FRAME_SIZE_ERROR,
                "PRIORITY is not 5 bytes long",
            ),
            Some(on) if on == header.stream => self.reset_self_dependent(header.stream),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn reset_self_dependent(&mut self, stream: u32) -> Result<(), ReceiveError> {
        self.raise_stream_error(
            stream,
            ErrorCode::PROTOCOL_ERROR,
            "stream depends on itself",
        )
    }

    fn on_rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        let code = ErrorCode(frame::read_u32(payload)?);
        if self.is_idle(header.stream) {
            return Err(protocol_error("RST_STREAM on an idle stream"));
        }
        let stream = self.streams.get(&header.stream);
        if self.role == Role::Client && stream.is_none_or(|stream| stream.is_closed()) {
            // A server resets a stream at most once.
            self.count_discarded_frame(0)?;
        }
        self.apply_peer_reset(header.stream, code)
    }

    fn on_settings(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        if header.stream != 0 {
            return Err(protocol_error("SETTINGS on a stream"));
        }
        if header.is_ack() {
            if !payload.is_empty() {
                return Err(ReceiveError::Protocol(
                    ErrorCode::FRAME_SIZE_ERROR,
                    "SETTINGS with ACK and a payload",
                ));
            }
            self.on_settings_ack();
            return Ok(());
        }
        let before = self.peer_settings;
        let smallest_table = self
            .peer_settings
            .update(payload, self.role == Role::Client)?;
        self.has_peer_settings = true;
        if !Bug::SettingsNotAcknowledged.is_planted() {
            self.output.write(settings::write_ack);
        }
        if let Some(smallest) = smallest_table {
            // The peer's decoder expects the smallest size first (RFC 7541, section 4.2).
            self.encoder.resize(smallest);
            self.encoder.resize(self.peer_settings.header_table_size);
        }
        if self.peer_settings.initial_window_size != before.initial_window_size
            && !Bug::InitialWindowNotApplied.is_planted()
        {
            let change = i64::from(self.peer_settings.initial_window_size)
                - i64::from(before.initial_window_size);
            self.add_work(self.streams.len());
            // The tasks of the streams are woken in the order of the streams.
            let mut streams: Vec<_> = self.streams.iter_mut().collect();
            streams.sort_unstable_by_key(|(id, _)| **id);
            for (_, stream) in streams {
                stream
                    .outbound
                    .window
                    .increase(change)
                    .map_err(|_overflow| {
                        ReceiveError::Protocol(
                            ErrorCode::FLOW_CONTROL_ERROR,
                            "SETTINGS_INITIAL_WINDOW_SIZE overflows a stream's window",
                        )
                    })?;
                stream.outbound.wake();
            }
        }
        if self.peer_settings.accepts_client_closed && !before.accepts_client_closed {
            self.send_delayed_client_closed();
        }
        self.wake_open_wakers();
        Ok(())
    }

    /// Applies the settings that the peer has acknowledged.
    fn on_settings_ack(&mut self) {
        let Some(size) = self.unacknowledged_window.take() else {
            return;
        };
        if size != self.stream_window {
            self.stream_window = size;
        }
        for stream in self.streams.values_mut() {
            stream.inbound.window.resize(size);
        }
    }

    fn on_ping(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        let payload = frame::ping(payload)?;
        if header.stream != 0 {
            return Err(protocol_error("PING on a stream"));
        }
        if !header.is_ack() {
            if Bug::PingNotAnswered.is_planted() {
                return Ok(());
            }
            self.output
                .write(|out| frame::write_ping(out, frame::ACK, payload));
        } else if payload == PING_PAYLOAD {
            self.has_pong = true;
        } else if payload == GOAWAY_PING_PAYLOAD {
            self.send_final_goaway();
        }
        Ok(())
    }

    fn on_goaway(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        let (last, code) = frame::goaway(payload)?;
        if header.stream != 0 {
            return Err(protocol_error("GOAWAY on a stream"));
        }
        self.fail_unprocessed_streams(last, code);
        Ok(())
    }

    fn on_window_update(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ReceiveError> {
        let increment = frame::window_increment(payload)?;
        if header.stream == 0 {
            if increment == 0 {
                return Err(protocol_error("WINDOW_UPDATE with increment 0"));
            }
            self.send_window
                .increase(increment.into())
                .map_err(|_overflow| {
                    ReceiveError::Protocol(
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "WINDOW_UPDATE overflows the connection's window",
                    )
                })?;
            if self.has_output_capacity() && !Bug::LostWakeUpOfConnectionWindow.is_planted() {
                self.wake_waiting();
            }
            return Ok(());
        }
        if self.is_idle(header.stream) {
            return Err(protocol_error("WINDOW_UPDATE on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&header.stream) else {
            return Ok(());
        };
        if increment == 0 {
            let code = ErrorCode::PROTOCOL_ERROR;
            return self.raise_stream_error(header.stream, code, "WINDOW_UPDATE with increment 0");
        }
        if stream.outbound.window.increase(increment.into()).is_err() {
            let code = ErrorCode::FLOW_CONTROL_ERROR;
            return self.raise_stream_error(
                header.stream,
                code,
                "WINDOW_UPDATE overflows the stream's window",
            );
        }
        if stream.outbound.state != MessageState::Complete
            && !Bug::LostWakeUpOfStreamWindow.is_planted()
        {
            stream.outbound.wake();
        }
        Ok(())
    }
}
