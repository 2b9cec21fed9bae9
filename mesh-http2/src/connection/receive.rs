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
    /// Takes what was read. After an error there is only the farewell to be written.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.process(bytes).map_err(|fault| self.die(fault))
    }

    fn process(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
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
                Input::Head { bytes: head, have } => {
                    let n = bytes.len().min(frame::HEAD - *have);
                    head[*have..*have + n].copy_from_slice(&bytes[..n]);
                    *have += n;
                    bytes = &bytes[n..];
                    if *have == frame::HEAD {
                        let head = Head::parse(*head);
                        self.input = Input::default();
                        self.begin(head)?;
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
                    self.take_data(stream, piece, is_last && ends)?;
                }
            }
        }
        Ok(())
    }

    /// A frame begins.
    fn begin(&mut self, head: Head) -> Result<(), Fault> {
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
            frame::DATA => {
                self.count_message();
                self.begin_data(head)
            }
            frame::HEADERS => {
                self.count_message();
                self.blocks = self.blocks.wrapping_add(1);
                self.expect(head)
            }
            _ => self.expect(head),
        }
    }

    /// Waits for the payload, if there is one.
    pub(super) fn expect(&mut self, head: Head) -> Result<(), Fault> {
        if head.length == 0 {
            return self.frame(head, &[]);
        }
        let have = Vec::new();
        self.input = Input::Payload { head, have };
        Ok(())
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
