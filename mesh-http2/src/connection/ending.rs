//! How streams and connections end.

use std::collections::VecDeque;

use super::receive::ReceiveError;
use super::{Connection, GOAWAY_PING_PAYLOAD, PendingInput, Role};
use crate::error::{Error, ErrorCode, LimitExceeded};
use crate::frame;
use crate::stream::MessageState;
use crate::window::MAX_WINDOW;

/// How far we have left. Clients learn first that no more streams are taken, and only when they
/// know which was the last (RFC 9113, section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAwayState {
    None,
    Notice,
    /// The last stream that is looked at.
    Final(u32),
}

/// Streams that we have reset while the other side was still sending, and may not know yet.
#[derive(Debug, Default)]
pub(super) struct ResetStreams {
    ids: VecDeque<u32>,
    /// Up to here some were forgotten.
    forgotten: u32,
}

/// Beyond these, every closed stream before is taken for one that was reset.
const MAX_REMEMBERED: usize = 32;

impl ResetStreams {
    fn add(&mut self, id: u32) {
        if self.ids.len() == MAX_REMEMBERED
            && let Some(oldest) = self.ids.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.ids.push_back(id);
    }

    fn may_contain(&self, id: u32) -> bool {
        id <= self.forgotten || self.ids.contains(&id)
    }
}

impl Connection {
    /// Whether the other side may open streams of this number.
    pub(super) fn is_peer_initiated(&self, id: u32) -> bool {
        id.is_multiple_of(2) == (self.role == Role::Client)
    }

    /// Whether nobody has opened the stream, or ever will by using it.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match self.is_peer_initiated(id) {
            _ if id == 0 => true,
            true => id > self.last_peer_stream,
            false => id >= self.next_local_stream,
        }
    }

    /// A frame of a message has come on a stream that is closed.
    pub(super) fn frame_on_closed_stream(&self, id: u32) -> Result<(), ReceiveError> {
        let is_ignored = match self.goaway {
            GoAwayState::Final(last) if self.is_peer_initiated(id) => id > last,
            _ => false,
        };
        if is_ignored || self.reset_streams.may_contain(id) {
            return Ok(());
        }
        let what = "a frame on a stream that is closed";
        Err(ReceiveError::Protocol(ErrorCode::STREAM_CLOSED, what))
    }

    /// A frame of a message has come on a stream that has failed, and that somebody still holds.
    pub(super) fn frame_on_failed_stream(&mut self, id: u32) -> Result<(), ReceiveError> {
        if self.reset_streams.may_contain(id) {
            return Ok(());
        }
        // The other side has reset it, and knows.
        self.write_reset(id, ErrorCode::STREAM_CLOSED);
        self.reset_streams.add(id);
        let action = self.flood.stream_error();
        self.apply(action)
    }

    /// A frame of a message is discarded because its stream is closed.
    pub(super) fn frame_discarded(&mut self, length: u32) -> Result<(), ReceiveError> {
        let action = self.flood.discarded_frame(length);
        self.apply(action)
    }

    /// Does not take a stream that the other side opens.
    pub(super) fn refuse_stream(&mut self, id: u32, reason: ErrorCode) -> Result<(), ReceiveError> {
        self.write_reset(id, reason);
        self.reset_streams.add(id);
        self.flood.sent_reset();
        let action = match reason {
            ErrorCode::REFUSED_STREAM => self.flood.stream_refused(),
            _ => self.flood.stream_error(),
        };
        self.apply(action)
    }

    /// Resets a stream because of what the other side did on it. One that is closed, by whatever,
    /// stays as it is, and was reset often enough.
    pub(super) fn stream_error(
        &mut self,
        id: u32,
        reason: ErrorCode,
        what: &'static str,
    ) -> Result<(), ReceiveError> {
        if self.is_idle(id) {
            return Err(ReceiveError::Protocol(reason, what));
        }
        self.reset_stream(id, reason, Error::StreamError(reason, what));
        let action = self.flood.stream_error();
        self.apply(action)
    }

    /// Resets a stream that is not over.
    pub(super) fn reset_stream(&mut self, id: u32, reason: ErrorCode, error: Error) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.is_closed() {
            return;
        }
        // Whoever has sent what is wrong sends, and be it behind the end.
        let is_sending = stream.inbound.stage != MessageState::Complete
            || matches!(error, Error::StreamError(..));
        stream.fail(error);
        if is_sending {
            self.reset_streams.add(id);
            self.flood.sent_reset();
        }
        self.remove_unaccepted(id);
        self.write_reset(id, reason);
        self.release_closed(id);
    }

    /// Removes a stream that was not handed out by [`Connection::next_request`] yet, so that its
    /// request reaches no application. Returns whether there was one.
    fn remove_unaccepted(&mut self, id: u32) -> bool {
        let Some(position) = self
            .accepted
            .iter()
            .rposition(|accepted| accepted.id.0 == id)
        else {
            return false;
        };
        self.accepted.remove(position);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.has_reader = false;
            stream.has_writer = false;
            let held = stream.inbound.unreleased_bytes();
            self.release_capacity(None, held);
        }
        true
    }

    fn write_reset(&mut self, id: u32, reason: ErrorCode) {
        self.output
            .write(|out| frame::write_u32_frame(out, frame::RST_STREAM, id, reason.0));
        self.wake_driver();
    }

    /// The other side has reset a stream.
    pub(super) fn peer_reset(&mut self, id: u32, reason: ErrorCode) -> Result<(), ReceiveError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.fail(Error::Reset(reason));
        if self.remove_unaccepted(id) {
            self.pending_accept_resets += 1;
            if self.pending_accept_resets > self.limits.pending_accept_resets {
                return Err(ReceiveError::LimitExceeded(
                    LimitExceeded::PendingAcceptResets,
                ));
            }
        }
        self.release_closed(id);
        Ok(())
    }

    /// Gives the place of a stream back when it is over, and forgets it when nobody holds it.
    pub(super) fn release_closed(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !stream.is_closed() {
            return;
        }
        let has_owner = stream.has_owner();
        if std::mem::take(&mut stream.is_counted) {
            match self.is_peer_initiated(id) {
                true => self.open_peer_streams -= 1,
                false => self.open_local_streams -= 1,
            }
            self.wake_open_wakers();
            if self.open_peer_streams + self.open_local_streams == 0 {
                // Whoever drives the connection may wait for it.
                self.wake_driver();
            }
        }
        if !has_owner {
            self.streams.remove(&id);
            if self.streams.is_empty() && self.streams.capacity() > 14 {
                self.streams.shrink_to(0);
            }
        }
    }

    /// Begins to leave: the other side is told to open no more streams, and those that are open go
    /// on to their end.
    pub fn start_graceful_shutdown(&mut self) {
        if self.goaway != GoAwayState::None || self.failure.is_some() {
            return;
        }
        self.goaway = GoAwayState::Notice;
        match self.role {
            Role::Server => {
                self.write_goaway(MAX_WINDOW, ErrorCode::NO_ERROR, "");
                self.write_ping(GOAWAY_PING_PAYLOAD);
            }
            // There is nothing that it could still open.
            Role::Client => self.send_final_goaway(),
        }
    }

    /// The other side knows that we leave.
    pub(super) fn send_final_goaway(&mut self) {
        if self.goaway == GoAwayState::Notice {
            self.goaway = GoAwayState::Final(self.last_peer_stream);
            self.write_goaway(self.last_peer_stream, ErrorCode::NO_ERROR, "");
        }
    }

    fn write_goaway(&mut self, last: u32, reason: ErrorCode, words: &str) {
        self.output
            .write(|out| frame::write_goaway(out, last, reason, words));
        self.wake_driver();
    }

    /// Whether nothing is left but to write what there is and to close.
    pub fn is_closed(&self) -> bool {
        let is_final = matches!(self.goaway, GoAwayState::Final(_));
        self.failure.is_some()
            || (is_final && self.open_peer_streams + self.open_local_streams == 0)
    }

    /// Ends the connection at once.
    pub fn abort(&mut self, reason: ErrorCode) {
        if self.failure.is_none() {
            self.write_goaway(self.last_peer_stream, reason, "");
            self.fail_all_streams(Error::Closed);
        }
    }

    /// The time for what [`Connection::pending_input`] returns is up. A peer that does not acknowledge
    /// the PING of a graceful shutdown is sent the final GOAWAY all the same.
    pub fn input_timed_out(&mut self) {
        match self.pending_input() {
            Some(PendingInput::GoAwayPing) => self.send_final_goaway(),
            _ => drop(
                self.fail_connection(ReceiveError::LimitExceeded(LimitExceeded::HeaderTimeout)),
            ),
        }
    }

    /// Nothing more will be read. An error tells more than the end of what there is to read.
    pub fn closed(&mut self, error: Option<std::io::Error>) {
        let error = match (error, self.peer_goaway) {
            (_, Some((_, reason))) if reason != ErrorCode::NO_ERROR => Error::PeerGoAway(reason),
            (Some(error), _) => error.into(),
            (None, _) => Error::Closed,
        };
        self.output.clear();
        self.fail_all_streams(error);
    }

    /// Ends the connection because of what the other side did.
    pub(super) fn fail_connection(&mut self, fault: ReceiveError) -> Error {
        let (reason, words) = match fault {
            ReceiveError::Protocol(reason, what) => (reason, what),
            ReceiveError::LimitExceeded(violation) => {
                self.limit_exceeded = Some(violation);
                (ErrorCode::ENHANCE_YOUR_CALM, violation.label())
            }
        };
        self.write_goaway(self.last_peer_stream, reason, words);
        let error = Error::from(fault);
        self.fail_all_streams(error.clone());
        error
    }

    fn fail_all_streams(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_closed()
            {
                stream.fail(error.clone());
            }
            self.release_closed(id);
        }
        for accepted in std::mem::take(&mut self.accepted) {
            // Nobody will see them.
            self.streams.remove(&accepted.id.0);
        }
        self.wake_open_wakers();
        self.wake_driver();
    }

    /// The other side leaves.
    pub(super) fn fail_unprocessed_streams(&mut self, last: u32, reason: ErrorCode) {
        self.peer_goaway = Some((last, reason));
        let after = |id: &u32| *id > last && !self.is_peer_initiated(*id);
        let ids: Vec<u32> = self.streams.keys().copied().filter(after).collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_closed()
            {
                stream.fail(Error::Unprocessed(reason));
            }
            self.release_closed(id);
        }
        self.wake_open_wakers();
        self.wake_driver();
    }
}
