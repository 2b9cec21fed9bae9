//! What was read: bytes become frames, frames are judged and do what they say.

use super::{Connection, LEAVE, Leaving, PING, Role};
use crate::account::Verdict;
use crate::error::{Error, Reason, Violation};
use crate::frame::{self, Head, PREFACE, Wrong};
use crate::settings;
use crate::stream::Stage;

/// Where in the stream of bytes the next one stands.
#[derive(Debug)]
pub(super) enum Input {
    /// So much of it has come.
    Preface(usize),
    Head {
        bytes: [u8; frame::HEAD],
        have: usize,
    },
    /// Of a frame that is looked at as a whole; so much has come in earlier pieces.
    Payload { head: Head, have: Vec<u8> },
    /// Of data, which is handed on as it comes. `stream` is none when nobody wants it.
    Data {
        stream: Option<u32>,
        left: u32,
        ends: bool,
    },
}

/// Why the connection must end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Protocol(Reason, &'static str),
    Violation(Violation),
}

/// The work of one call of [`Connection::receive`], in field lines: about twenty microseconds, so
/// that a connection whose bytes cost most holds its thread no longer than others do. 64 bytes of a
/// field section count as another field line. A frame that has begun is finished: 16 KiB of field
/// lines of one byte each, the most that one can hold, take 0.3 ms, and end the connection when
/// they come ten times.
pub const WORK_PER_TURN: usize = 1024;

/// A frame is as much work as two field lines.
const FRAME_OF_WORK: usize = 2;

/// Bytes of DATA, which are only copied, that are as much work as a field line.
pub(super) const BYTES_OF_WORK: usize = 1024;

impl Default for Input {
    fn default() -> Self {
        Self::Head {
            bytes: [0; frame::HEAD],
            have: 0,
        }
    }
}

impl Input {
    /// Whether part of a header block has come.
    pub(super) fn is_within_head(&self) -> bool {
        matches!(self, Self::Payload { head, .. } if matches!(head.kind, frame::HEADERS | frame::CONTINUATION))
    }
}

impl From<Wrong> for Fault {
    fn from((reason, what): Wrong) -> Self {
        Self::Protocol(reason, what)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Protocol(reason, what) => Self::Protocol(reason, what),
            Fault::Violation(violation) => Self::Violation(violation),
        }
    }
}

fn protocol(what: &'static str) -> Fault {
    Fault::Protocol(Reason::PROTOCOL_ERROR, what)
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
        self.process(bytes).map_err(|fault| self.die(fault))
    }

    /// How much work the last call of [`Connection::receive`] was, see [`WORK_PER_TURN`].
    pub fn work(&self) -> usize {
        self.work
    }

    /// Counts work of this turn.
    pub(super) fn worked(&mut self, more: usize) {
        self.work += more;
    }

    fn process(&mut self, all: &[u8]) -> Result<usize, Fault> {
        let mut bytes = all;
        while !bytes.is_empty() && self.work < WORK_PER_TURN {
            match &mut self.input {
                Input::Preface(have) => {
                    let n = bytes.len().min(PREFACE.len() - *have);
                    if bytes[..n] != PREFACE[*have..*have + n] {
                        return Err(protocol(
                            "the connection does not begin with HTTP/2's preface",
                        ));
                    }
                    *have += n;
                    bytes = &bytes[n..];
                    if *have == PREFACE.len() {
                        self.input = Input::default();
                    }
                }
                Input::Head { have: 0, .. } if bytes.len() >= frame::HEAD => {
                    let (head, behind) = bytes.split_at(frame::HEAD);
                    let mut parsed = [0; frame::HEAD];
                    parsed.copy_from_slice(head);
                    let taken = self.begin(Head::parse(parsed), behind)?;
                    bytes = &behind[taken..];
                }
                Input::Head { bytes: head, have } => {
                    let n = bytes.len().min(frame::HEAD - *have);
                    head[*have..*have + n].copy_from_slice(&bytes[..n]);
                    *have += n;
                    bytes = &bytes[n..];
                    if *have == frame::HEAD {
                        let head = Head::parse(*head);
                        self.input = Input::default();
                        let taken = self.begin(head, bytes)?;
                        bytes = &bytes[taken..];
                    }
                }
                Input::Payload { head, have } => {
                    let head = *head;
                    let n = bytes.len().min(head.length as usize - have.len());
                    let (piece, rest) = bytes.split_at(n);
                    bytes = rest;
                    if have.len() + n < head.length as usize {
                        have.extend_from_slice(piece);
                    } else if have.is_empty() {
                        self.input = Input::default();
                        self.frame(head, piece)?;
                    } else {
                        have.extend_from_slice(piece);
                        let payload = std::mem::take(have);
                        self.input = Input::default();
                        self.frame(head, &payload)?;
                    }
                }
                Input::Data { stream, left, ends } => {
                    let n = bytes.len().min(*left as usize);
                    let (piece, rest) = bytes.split_at(n);
                    bytes = rest;
                    *left -= n as u32;
                    let (stream, is_last, ends) = (*stream, *left == 0, *ends);
                    if is_last {
                        self.input = Input::default();
                    }
                    self.worked(n / BYTES_OF_WORK);
                    self.take_data(stream, piece, is_last && ends)?;
                }
            }
        }
        Ok(all.len() - bytes.len())
    }

    /// A frame begins. Processes all of it that is in `bytes`, which follow its header, if that is
    /// possible without a copy, and returns how many bytes that were.
    fn begin(&mut self, head: Head, bytes: &[u8]) -> Result<usize, Fault> {
        self.worked(FRAME_OF_WORK);
        if head.length > self.max_frame {
            return Err(Fault::Protocol(
                Reason::FRAME_SIZE_ERROR,
                "a frame is larger than it may be",
            ));
        }
        match &self.block {
            Some(block) if head.kind != frame::CONTINUATION || head.stream != block.stream => {
                return Err(protocol("a header block is interrupted"));
            }
            None if head.kind == frame::CONTINUATION => {
                return Err(protocol("CONTINUATION continues nothing"));
            }
            _ => {}
        }
        if !self.is_greeted && (head.kind != frame::SETTINGS || head.is_ack()) {
            return Err(protocol("the first frame is not SETTINGS"));
        }
        let is_told = self.leaving != Leaving::No;
        let verdict = self.account.received(head, is_told);
        self.obey(verdict)?;
        match head.kind {
            frame::DATA => self.begin_data(head, bytes),
            frame::HEADERS => {
                self.blocks = self.blocks.wrapping_add(1);
                self.payload(head, bytes)
            }
            _ => self.payload(head, bytes),
        }
    }

    /// Processes a frame whose payload is complete in `bytes`, or waits for the payload.
    pub(super) fn payload(&mut self, head: Head, bytes: &[u8]) -> Result<usize, Fault> {
        let length = head.length as usize;
        if let Some(payload) = bytes.get(..length) {
            self.frame(head, payload)?;
            return Ok(length);
        }
        let have = Vec::new();
        self.input = Input::Payload { head, have };
        Ok(0)
    }

    pub(super) fn obey(&mut self, verdict: Verdict) -> Result<(), Fault> {
        match verdict {
            Verdict::GoOn => Ok(()),
            Verdict::Retire(violation) => {
                self.violation = Some(violation);
                self.is_retired = true;
                Ok(())
            }
            Verdict::Cut(violation) => Err(Fault::Violation(violation)),
        }
    }

    /// A whole frame.
    fn frame(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        match head.kind {
            frame::DATA => self.padded_data(head, payload),
            frame::HEADERS => self.headers(head, payload),
            frame::CONTINUATION => self.continuation(head, payload),
            frame::PRIORITY => self.priority(head, payload),
            frame::RST_STREAM => self.rst_stream(head, payload),
            frame::SETTINGS => self.settings(head, payload),
            frame::PUSH_PROMISE => Err(protocol("PUSH_PROMISE was not allowed")),
            frame::PING => self.pinged(head, payload),
            frame::GOAWAY => self.go_away(head, payload),
            frame::WINDOW_UPDATE => self.window_update(head, payload),
            _ => Ok(()),
        }
    }

    fn priority(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream == 0 {
            return Err(protocol("PRIORITY concerns no stream"));
        }
        match frame::priority(payload) {
            None => self.refuse(
                head.stream,
                Reason::FRAME_SIZE_ERROR,
                "PRIORITY is not five bytes long",
            ),
            Some(on) if on == head.stream => self.depends_on_itself(head.stream),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn depends_on_itself(&mut self, stream: u32) -> Result<(), Fault> {
        self.refuse(
            stream,
            Reason::PROTOCOL_ERROR,
            "the stream depends on itself",
        )
    }

    fn rst_stream(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let reason = Reason(frame::number(payload)?);
        if self.is_idle(head.stream) {
            return Err(protocol("RST_STREAM on a stream that was never opened"));
        }
        let stream = self.streams.get(&head.stream);
        if self.role == Role::Client && stream.is_none_or(|stream| stream.is_over()) {
            // A server resets a stream once.
            self.on_discarded(0)?;
        }
        self.was_reset(head.stream, reason)
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        if head.stream != 0 {
            return Err(protocol("SETTINGS on a stream"));
        }
        if head.is_ack() {
            if !payload.is_empty() {
                return Err(Fault::Protocol(
                    Reason::FRAME_SIZE_ERROR,
                    "an acknowledgement of SETTINGS says something",
                ));
            }
            self.acknowledged();
            return Ok(());
        }
        let before = self.peer;
        self.peer.update(payload, self.role == Role::Client)?;
        self.is_greeted = true;
        self.output.write(settings::write_ack);
        if self.peer.header_table != before.header_table {
            self.encoder.resize(self.peer.header_table);
        }
        if self.peer.stream_window != before.stream_window {
            let change = i64::from(self.peer.stream_window) - i64::from(before.stream_window);
            self.worked(self.streams.len());
            for stream in self.streams.values_mut() {
                stream.outbound.window.grow(change).map_err(|_overflow| {
                    Fault::Protocol(Reason::FLOW_CONTROL_ERROR, "a stream's window is too large")
                })?;
                stream.outbound.wake();
            }
        }
        self.wake_openers();
        Ok(())
    }

    /// The other side goes by our last settings.
    fn acknowledged(&mut self) {
        let Some(size) = self.unacknowledged.take() else {
            return;
        };
        if size != self.stream_window {
            self.stream_window = size;
        }
        for stream in self.streams.values_mut() {
            stream.inbound.window.resize(size);
        }
    }

    fn pinged(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let payload = frame::ping(payload)?;
        if head.stream != 0 {
            return Err(protocol("PING on a stream"));
        }
        if !head.is_ack() {
            self.output
                .write(|out| frame::write_ping(out, frame::ACK, payload));
        } else if payload == PING {
            self.has_pong = true;
        } else if payload == LEAVE {
            self.leave_for_good();
        }
        Ok(())
    }

    fn go_away(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let (last, reason) = frame::go_away(payload)?;
        if head.stream != 0 {
            return Err(protocol("GOAWAY on a stream"));
        }
        self.is_left(last, reason);
        Ok(())
    }

    fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), Fault> {
        let more = frame::increment(payload)?;
        if head.stream == 0 {
            if more == 0 {
                return Err(protocol("WINDOW_UPDATE by nothing"));
            }
            self.sending.grow(more.into()).map_err(|_overflow| {
                Fault::Protocol(
                    Reason::FLOW_CONTROL_ERROR,
                    "the connection's window is too large",
                )
            })?;
            if self.is_collecting() {
                self.wake_waiting();
            }
            return Ok(());
        }
        if self.is_idle(head.stream) {
            return Err(protocol("WINDOW_UPDATE on a stream that was never opened"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return Ok(());
        };
        if more == 0 {
            let reason = Reason::PROTOCOL_ERROR;
            return self.refuse(head.stream, reason, "WINDOW_UPDATE by nothing");
        }
        if stream.outbound.window.grow(more.into()).is_err() {
            let reason = Reason::FLOW_CONTROL_ERROR;
            return self.refuse(head.stream, reason, "the stream's window is too large");
        }
        if stream.outbound.stage != Stage::Over {
            stream.outbound.wake();
        }
        Ok(())
    }
}
