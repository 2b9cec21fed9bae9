//! Stream errors, connection errors and graceful shutdown.

use std::collections::VecDeque;

use mesh_planted::Bug;

use super::receive::ReceiveError;
use super::{Connection, GOAWAY_PING_PAYLOAD, PendingInput, Role};
use crate::error::{Error, ErrorCode, LimitExceeded};
use crate::frame;
use crate::stream::MessageState;
use crate::window::MAX_WINDOW;

/// The state of a graceful shutdown. A server first announces it and sends a PING; when the PING is
/// acknowledged, the final GOAWAY names the last stream (RFC 9113, section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAwayState {
    /// No GOAWAY was sent.
    None,
    /// The GOAWAY that only announces the shutdown was sent.
    Notice,
    /// The final GOAWAY was sent, with the last stream that is processed.
    Final(u32),
}

/// Streams that the local endpoint has reset while the peer may still be sending on them.
#[derive(Debug, Default)]
pub(super) struct ResetStreams {
    ids: VecDeque<u32>,
    /// The highest identifier that was removed from `ids`.
    forgotten: u32,
}

/// Number of streams in [`ResetStreams`]; all closed streams up to the last removed one count as
/// reset.
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
    /// Whether only the peer may open the stream.
    pub(super) fn is_peer_initiated(&self, id: u32) -> bool {
        id.is_multiple_of(2) == (self.role == Role::Client)
    }

    /// Whether the stream is idle (RFC 9113, section 5.1): not opened, nor closed by opening a
    /// later one.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        if id == 0 {
            true
        } else if self.is_peer_initiated(id) {
            id > self.last_peer_stream
        } else {
            id >= self.next_local_stream
        }
    }

    /// Returns an error for a message frame on a closed stream, unless it was sent before the peer
    /// could know.
    pub(super) fn check_frame_on_closed_stream(&self, id: u32) -> Result<(), ReceiveError> {
        let is_ignored = match self.goaway {
            GoAwayState::Final(last) if self.is_peer_initiated(id) => id > last,
            _ => false,
        };
        if is_ignored || self.reset_streams.may_contain(id) {
            return Ok(());
        }
        let message = "frame on a closed stream";
        Err(ReceiveError::Protocol(ErrorCode::STREAM_CLOSED, message))
    }

    /// Handles a message frame on a failed stream that its owner has not dropped yet.
    pub(super) fn handle_frame_on_failed_stream(&mut self, id: u32) -> Result<(), ReceiveError> {
        if self.reset_streams.may_contain(id) {
            return Ok(());
        }
        // The peer has reset the stream itself.
        self.write_reset(id, ErrorCode::STREAM_CLOSED);
        self.reset_streams.add(id);
        let action = self.flood.record_stream_error();
        self.apply(action)
    }

    /// Accounts for a discarded message frame.
    pub(super) fn count_discarded_frame(&mut self, length: u32) -> Result<(), ReceiveError> {
        let action = self.flood.record_discarded_frame(length);
        self.apply(action)
    }

    /// Resets a stream of the peer before it is accepted.
    pub(super) fn refuse_stream(&mut self, id: u32, code: ErrorCode) -> Result<(), ReceiveError> {
        self.write_reset(id, code);
        self.reset_streams.add(id);
        self.flood.record_sent_reset(self.stream_window.into());
        let action = match code {
            ErrorCode::REFUSED_STREAM => self.flood.record_refused_stream(),
            _ => self.flood.record_stream_error(),
        };
        self.apply(action)
    }

    /// Resets a stream because of an error of the peer. A stream that is closed already is not
    /// reset again.
    pub(super) fn raise_stream_error(
        &mut self,
        id: u32,
        code: ErrorCode,
        message: &'static str,
    ) -> Result<(), ReceiveError> {
        if self.is_idle(id) {
            return Err(ReceiveError::Protocol(code, message));
        }
        self.reset_stream(id, code, Error::StreamError(code, message));
        let action = self.flood.record_stream_error();
        self.apply(action)
    }

    /// Resets a stream that is not closed.
    pub(super) fn reset_stream(&mut self, id: u32, code: ErrorCode, error: Error) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.is_closed() {
            return;
        }
        // A stream error shows that the peer is sending, even after the end of its message.
        let is_sending = stream.inbound.state != MessageState::Complete
            || matches!(error, Error::StreamError(..));
        let window = stream.inbound.window.credit();
        stream.fail(error);
        if is_sending {
            self.reset_streams.add(id);
            self.flood.record_sent_reset(window);
        }
        self.remove_unaccepted(id);
        self.write_reset(id, code);
        self.release_closed(id);
    }

    /// Removes a stream that [`Connection::next_request`] has not returned yet, so that its request
    /// reaches no application. Returns whether there was one.
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

    fn write_reset(&mut self, id: u32, code: ErrorCode) {
        self.output
            .write(|out| frame::write_u32_frame(out, frame::RST_STREAM, id, code.0));
        self.wake_driver();
    }

    /// Applies the peer's RST_STREAM.
    pub(super) fn apply_peer_reset(
        &mut self,
        id: u32,
        code: ErrorCode,
    ) -> Result<(), ReceiveError> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if Bug::PeerResetIgnored.is_planted() {
            return Ok(());
        }
        stream.fail(Error::Reset(code));
        if self.remove_unaccepted(id) {
            self.pending_accept_resets += 1;
            if self.pending_accept_resets > self.limits.pending_accept_resets {
                return Err(ReceiveError::Limit(LimitExceeded::PendingAcceptResets));
            }
        }
        self.release_closed(id);
        Ok(())
    }

    /// Stops counting a stream as open when it is closed, and removes it when it has no owner.
    pub(super) fn release_closed(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !stream.is_closed() {
            return;
        }
        let has_owner = stream.has_owner();
        let is_leaked = stream.failure.is_some() && Bug::StreamPermitLeak.is_planted();
        if std::mem::take(&mut stream.is_counted) && !is_leaked {
            if self.is_peer_initiated(id) {
                self.open_peer_streams -= 1;
            } else {
                self.open_local_streams -= 1;
            }
            if !Bug::LostWakeUpOfStreamLimit.is_planted() {
                self.wake_open_wakers();
            }
            if self.open_peer_streams + self.open_local_streams == 0 {
                // The driver of a graceful shutdown waits for the last stream.
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

    /// Starts a graceful shutdown: the peer may open no more streams, and the open ones complete.
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
            // A server opens no streams, so that no announcement is needed.
            Role::Client => self.send_final_goaway(),
        }
    }

    /// Sends the final GOAWAY of a graceful shutdown, unless it was sent.
    pub(super) fn send_final_goaway(&mut self) {
        if self.goaway == GoAwayState::Notice && !Bug::FinalGoAwayLost.is_planted() {
            self.goaway = GoAwayState::Final(self.last_peer_stream);
            self.write_goaway(self.last_peer_stream, ErrorCode::NO_ERROR, "");
        }
    }

    /// The last stream of another GOAWAY. Streams after the final one are discarded, and the number
    /// must not increase (RFC 9113, section 6.8).
    fn last_processed_stream(&self) -> u32 {
        match self.goaway {
            GoAwayState::Final(last) => last,
            GoAwayState::None | GoAwayState::Notice => self.last_peer_stream,
        }
    }

    fn write_goaway(&mut self, last: u32, code: ErrorCode, debug_data: &str) {
        self.output
            .write(|out| frame::write_goaway(out, last, code, debug_data));
        self.wake_driver();
    }

    /// Whether the connection is closed: only its output has to be written.
    pub fn is_closed(&self) -> bool {
        let is_final = matches!(self.goaway, GoAwayState::Final(_));
        self.failure.is_some()
            || (is_final && self.open_peer_streams + self.open_local_streams == 0)
    }

    /// Closes the connection immediately with a GOAWAY.
    pub fn abort(&mut self, code: ErrorCode) {
        if self.failure.is_none() {
            self.write_goaway(self.last_processed_stream(), code, "");
            self.close_with_error(Error::Closed);
        }
    }

    /// Handles the timeout of [`Connection::pending_input`]: closes the connection, or sends the
    /// final GOAWAY to a peer that does not acknowledge the PING of a graceful shutdown.
    pub fn handle_input_timeout(&mut self) {
        match self.pending_input() {
            Some(PendingInput::GoAwayPing) => self.send_final_goaway(),
            _ => {
                let _error =
                    self.fail_connection(ReceiveError::Limit(LimitExceeded::HeaderTimeout));
            }
        }
    }

    /// Handles the end of the socket's input, or a failure of the socket. The error code of the
    /// peer's GOAWAY takes precedence over `error`.
    pub fn handle_close(&mut self, error: Option<std::io::Error>) {
        let error = match (error, self.peer_goaway) {
            (_, Some((_, code))) if code != ErrorCode::NO_ERROR => Error::PeerGoAway(code),
            (Some(error), _) => error.into(),
            (None, _) => Error::Closed,
        };
        self.output.clear();
        self.close_with_error(error);
    }

    /// Closes the connection because of an error of the peer.
    pub(super) fn fail_connection(&mut self, cause: ReceiveError) -> Error {
        let (code, debug_data) = match cause {
            ReceiveError::Protocol(code, message) => (code, message),
            ReceiveError::Limit(exceeded) => {
                self.limit_exceeded = Some(exceeded);
                (ErrorCode::ENHANCE_YOUR_CALM, exceeded.label())
            }
        };
        self.write_goaway(self.last_processed_stream(), code, debug_data);
        let error = Error::from(cause);
        self.close_with_error(error.clone());
        error
    }

    /// Closes the connection and all of its streams with an error. The first error is kept.
    fn close_with_error(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        for id in self.sorted_ids(|_| true) {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_closed()
            {
                stream.fail(error.clone());
            }
            self.release_closed(id);
        }
        for accepted in std::mem::take(&mut self.accepted) {
            // They have no owner.
            self.streams.remove(&accepted.id.0);
        }
        self.wake_open_wakers();
        self.wake_driver();
    }

    /// Applies the peer's GOAWAY: streams after `last` were not processed.
    pub(super) fn fail_unprocessed_streams(&mut self, last: u32, code: ErrorCode) {
        self.peer_goaway = Some((last, code));
        let first = match () {
            () if Bug::GoAwayIgnored.is_planted() => u32::MAX,
            () if Bug::GoAwayFailsLastStream.is_planted() => last,
            () => last + 1,
        };
        for id in self.sorted_ids(|id| id >= first && !self.is_peer_initiated(id)) {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_closed()
            {
                stream.fail(Error::Unprocessed(code));
            }
            self.release_closed(id);
        }
        self.wake_open_wakers();
        self.wake_driver();
    }

    /// Returns the included streams in ascending order, for their tasks to be woken in it. The
    /// map's own order differs from process to process.
    fn sorted_ids(&self, includes: impl Fn(u32) -> bool) -> Vec<u32> {
        let ids = self.streams.keys().copied();
        let mut ids: Vec<u32> = ids.filter(|id| includes(*id)).collect();
        ids.sort_unstable();
        ids
    }
}
