//! What was read: bytes become frames, frames are judged and do what they say.

use super::{Connection, GOAWAY_PING_PAYLOAD, GoAwayState, PING_PAYLOAD, Role};
use crate::error::{Error, ErrorCode, LimitExceeded};
use crate::flood::FloodAction;
use crate::frame::{self, FrameError, FrameHeader, PREFACE};
use crate::settings;
use crate::stream::MessageState;

/// Where in the stream of bytes the next one stands.
#[derive(Debug)]
pub(super) enum ReadState {
    /// So much of it has come.
    Preface(usize),
    FrameHeader {
        bytes: [u8; frame::FRAME_HEADER_SIZE],
        have: usize,
    },
    /// Of a frame that is looked at as a whole; so much has come in earlier pieces.
    Payload { header: FrameHeader, have: Vec<u8> },
    /// Of data, which is handed on as it comes. `stream` is none when nobody wants it.
    Data {
        stream: Option<u32>,
        left: u32,
        ends: bool,
    },
}

/// Why the connection must end.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveError {
    Protocol(ErrorCode, &'static str),
    LimitExceeded(LimitExceeded),
}

/// The work of one call of [`Connection::receive`], in field lines: about twenty microseconds, so
/// that a connection whose bytes cost most holds its thread no longer than others do. 64 bytes of a
/// field section count as another field line. A frame that has begun is finished: 16 KiB of field
/// lines of one byte each, the most that one can hold, take 0.3 ms, and end the connection when
/// they come ten times.
pub const WORK_PER_TURN: usize = 1024;

/// A frame is as much work as two field lines.
const FRAME_WORK: usize = 2;

/// Bytes of DATA, which are only copied, that are as much work as a field line.
pub(super) const BYTES_PER_WORK: usize = 1024;

impl Default for ReadState {
    fn default() -> Self {
        Self::FrameHeader {
            bytes: [0; frame::FRAME_HEADER_SIZE],
            have: 0,
        }
    }
}

impl ReadState {
    /// Whether part of a header block has come.
    pub(super) fn is_within_field_block(&self) -> bool {
        matches!(self, Self::Payload { header, .. } if matches!(header.kind, frame::HEADERS | frame::CONTINUATION))
    }
}

impl From<FrameError> for ReceiveError {
    fn from((reason, what): FrameError) -> Self {
        Self::Protocol(reason, what)
    }
}

impl From<ReceiveError> for Error {
    fn from(fault: ReceiveError) -> Self {
        match fault {
            ReceiveError::Protocol(reason, what) => Self::ConnectionError(reason, what),
            ReceiveError::LimitExceeded(exceeded) => Self::LimitExceeded(exceeded),
        }
    }
}

fn protocol_error(what: &'static str) -> ReceiveError {
    ReceiveError::Protocol(ErrorCode::PROTOCOL_ERROR, what)
}

impl Connection {
    /// Processes received bytes until one turn's work is done, and returns how many that were: the
    /// caller passes the rest in its next turn, after other tasks of the thread have run. After an
    /// error only the GOAWAY is left to be written.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.work = 0;
        self.process(bytes)
            .map_err(|fault| self.fail_connection(fault))
    }

    /// How much work the last call of [`Connection::receive`] was, see [`WORK_PER_TURN`].
    pub fn work(&self) -> usize {
        self.work
    }

    /// Counts work of this turn.
    pub(super) fn add_work(&mut self, more: usize) {
        self.work += more;
    }

    fn process(&mut self, all: &[u8]) -> Result<usize, ReceiveError> {
        let mut bytes = all;
        while !bytes.is_empty() && self.work < WORK_PER_TURN {
            match &mut self.input {
                ReadState::Preface(have) => {
                    let n = bytes.len().min(PREFACE.len() - *have);
                    if bytes[..n] != PREFACE[*have..*have + n] {
                        return Err(protocol_error(
                            "the connection does not begin with HTTP/2's preface",
                        ));
                    }
                    *have += n;
                    bytes = &bytes[n..];
                    if *have == PREFACE.len() {
                        self.input = ReadState::default();
                    }
                }
                ReadState::FrameHeader { have: 0, .. }
                    if bytes.len() >= frame::FRAME_HEADER_SIZE =>
                {
                    let (header, behind) = bytes.split_at(frame::FRAME_HEADER_SIZE);
                    let mut parsed = [0; frame::FRAME_HEADER_SIZE];
                    parsed.copy_from_slice(header);
                    let taken = self.begin_frame(FrameHeader::parse(parsed), behind)?;
                    bytes = &behind[taken..];
                }
                ReadState::FrameHeader {
                    bytes: header,
                    have,
                } => {
                    let n = bytes.len().min(frame::FRAME_HEADER_SIZE - *have);
                    header[*have..*have + n].copy_from_slice(&bytes[..n]);
                    *have += n;
                    bytes = &bytes[n..];
                    if *have == frame::FRAME_HEADER_SIZE {
                        let header = FrameHeader::parse(*header);
                        self.input = ReadState::default();
                        let taken = self.begin_frame(header, bytes)?;
                        bytes = &bytes[taken..];
                    }
                }
                ReadState::Payload { header, have } => {
                    let header = *header;
                    let n = bytes.len().min(header.length as usize - have.len());
                    let (piece, rest) = bytes.split_at(n);
                    bytes = rest;
                    if have.len() + n < header.length as usize {
                        have.extend_from_slice(piece);
                    } else if have.is_empty() {
                        self.input = ReadState::default();
                        self.process_frame(header, piece)?;
                    } else {
                        have.extend_from_slice(piece);
                        let payload = std::mem::take(have);
                        self.input = ReadState::default();
                        self.process_frame(header, &payload)?;
                    }
                }
                ReadState::Data { stream, left, ends } => {
                    let n = bytes.len().min(*left as usize);
                    let (piece, rest) = bytes.split_at(n);
                    bytes = rest;
                    *left -= n as u32;
                    let (stream, is_last, ends) = (*stream, *left == 0, *ends);
                    if is_last {
                        self.input = ReadState::default();
                    }
                    self.add_work(n / BYTES_PER_WORK);
                    self.receive_data(stream, piece, is_last && ends)?;
                }
            }
        }
        Ok(all.len() - bytes.len())
    }

    /// A frame begins. Processes all of it that is in `bytes`, which follow its header, if that is
    /// possible without a copy, and returns how many bytes that were.
    fn begin_frame(&mut self, header: FrameHeader, bytes: &[u8]) -> Result<usize, ReceiveError> {
        self.add_work(FRAME_WORK);
        if header.length > self.max_frame_size {
            return Err(ReceiveError::Protocol(
                ErrorCode::FRAME_SIZE_ERROR,
                "a frame is larger than it may be",
            ));
        }
        match &self.field_block {
            Some(block) if header.kind != frame::CONTINUATION || header.stream != block.stream => {
                return Err(protocol_error("a header block is interrupted"));
            }
            None if header.kind == frame::CONTINUATION => {
                return Err(protocol_error("CONTINUATION continues nothing"));
            }
            _ => {}
        }
        if !self.has_peer_settings && (header.kind != frame::SETTINGS || header.is_ack()) {
            return Err(protocol_error("the first frame is not SETTINGS"));
        }
        let has_sent_goaway = self.goaway != GoAwayState::None;
        let action = self.flood.received_frame(header, has_sent_goaway);
        self.apply(action)?;
        match header.kind {
            frame::DATA => self.begin_data(header, bytes),
            frame::HEADERS => {
                self.field_blocks = self.field_blocks.wrapping_add(1);
                self.process_payload(header, bytes)
            }
            _ => self.process_payload(header, bytes),
        }
    }

    /// Processes a frame whose payload is complete in `bytes`, or waits for the payload.
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
        let have = Vec::new();
        self.input = ReadState::Payload { header, have };
        Ok(0)
    }

    pub(super) fn apply(&mut self, action: FloodAction) -> Result<(), ReceiveError> {
        match action {
            FloodAction::Continue => Ok(()),
            FloodAction::Drain(violation) => {
                self.limit_exceeded = Some(violation);
                self.is_drain_due = true;
                Ok(())
            }
            FloodAction::Close(violation) => Err(ReceiveError::LimitExceeded(violation)),
        }
    }

    /// A whole frame.
    fn process_frame(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        match header.kind {
            frame::DATA => self.on_padded_data(header, payload),
            frame::HEADERS => self.on_headers(header, payload),
            frame::CONTINUATION => self.on_continuation(header, payload),
            frame::PRIORITY => self.on_priority(header, payload),
            frame::RST_STREAM => self.on_rst_stream(header, payload),
            frame::SETTINGS => self.on_settings(header, payload),
            frame::PUSH_PROMISE => Err(protocol_error("PUSH_PROMISE was not allowed")),
            frame::PING => self.on_ping(header, payload),
            frame::GOAWAY => self.on_goaway(header, payload),
            frame::WINDOW_UPDATE => self.on_window_update(header, payload),
            _ => Ok(()),
        }
    }

    fn on_priority(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        if header.stream == 0 {
            return Err(protocol_error("PRIORITY concerns no stream"));
        }
        match frame::priority(payload) {
            None => self.stream_error(
                header.stream,
                ErrorCode::FRAME_SIZE_ERROR,
                "PRIORITY is not five bytes long",
            ),
            Some(on) if on == header.stream => self.reset_self_dependent(header.stream),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn reset_self_dependent(&mut self, stream: u32) -> Result<(), ReceiveError> {
        self.stream_error(
            stream,
            ErrorCode::PROTOCOL_ERROR,
            "the stream depends on itself",
        )
    }

    fn on_rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        let reason = ErrorCode(frame::read_u32(payload)?);
        if self.is_idle(header.stream) {
            return Err(protocol_error(
                "RST_STREAM on a stream that was never opened",
            ));
        }
        let stream = self.streams.get(&header.stream);
        if self.role == Role::Client && stream.is_none_or(|stream| stream.is_closed()) {
            // A server resets a stream once.
            self.frame_discarded(0)?;
        }
        self.peer_reset(header.stream, reason)
    }

    fn on_settings(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ReceiveError> {
        if header.stream != 0 {
            return Err(protocol_error("SETTINGS on a stream"));
        }
        if header.is_ack() {
            if !payload.is_empty() {
                return Err(ReceiveError::Protocol(
                    ErrorCode::FRAME_SIZE_ERROR,
                    "an acknowledgement of SETTINGS says something",
                ));
            }
            self.on_settings_ack();
            return Ok(());
        }
        let before = self.peer_settings;
        self.peer_settings
            .update(payload, self.role == Role::Client)?;
        self.has_peer_settings = true;
        self.output.write(settings::write_ack);
        if self.peer_settings.header_table_size != before.header_table_size {
            self.encoder.resize(self.peer_settings.header_table_size);
        }
        if self.peer_settings.initial_window_size != before.initial_window_size {
            let change = i64::from(self.peer_settings.initial_window_size)
                - i64::from(before.initial_window_size);
            self.add_work(self.streams.len());
            for stream in self.streams.values_mut() {
                stream
                    .outbound
                    .window
                    .increase(change)
                    .map_err(|_overflow| {
                        ReceiveError::Protocol(
                            ErrorCode::FLOW_CONTROL_ERROR,
                            "a stream's window is too large",
                        )
                    })?;
                stream.outbound.wake();
            }
        }
        self.wake_open_wakers();
        Ok(())
    }

    /// The other side goes by our last settings.
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
        let (last, reason) = frame::goaway(payload)?;
        if header.stream != 0 {
            return Err(protocol_error("GOAWAY on a stream"));
        }
        self.fail_unprocessed_streams(last, reason);
        Ok(())
    }

    fn on_window_update(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ReceiveError> {
        let more = frame::window_increment(payload)?;
        if header.stream == 0 {
            if more == 0 {
                return Err(protocol_error("WINDOW_UPDATE by nothing"));
            }
            self.send_window
                .increase(more.into())
                .map_err(|_overflow| {
                    ReceiveError::Protocol(
                        ErrorCode::FLOW_CONTROL_ERROR,
                        "the connection's window is too large",
                    )
                })?;
            if self.has_output_capacity() {
                self.wake_waiting();
            }
            return Ok(());
        }
        if self.is_idle(header.stream) {
            return Err(protocol_error(
                "WINDOW_UPDATE on a stream that was never opened",
            ));
        }
        let Some(stream) = self.streams.get_mut(&header.stream) else {
            return Ok(());
        };
        if more == 0 {
            let reason = ErrorCode::PROTOCOL_ERROR;
            return self.stream_error(header.stream, reason, "WINDOW_UPDATE by nothing");
        }
        if stream.outbound.window.increase(more.into()).is_err() {
            let reason = ErrorCode::FLOW_CONTROL_ERROR;
            return self.stream_error(header.stream, reason, "the stream's window is too large");
        }
        if stream.outbound.stage != MessageState::Complete {
            stream.outbound.wake();
        }
        Ok(())
    }
}
