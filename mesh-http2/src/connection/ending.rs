//! How streams and connections end.

use std::collections::VecDeque;

use super::receive::Fault;
use super::{Awaited, Connection, LEAVE, Role};
use crate::error::{Error, Reason, Violation};
use crate::frame;
use crate::stream::Stage;
use crate::window::MAX_WINDOW;

/// How far we have left. Clients learn first that no more streams are taken, and only when they
/// know which was the last (RFC 9113, section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    Announced,
    /// The last stream that is looked at.
    Last(u32),
}

/// Streams that we have reset while the other side was still sending, and may not know yet.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    ids: VecDeque<u32>,
    /// Up to here some were forgotten.
    forgotten: u32,
}

/// Beyond these, every closed stream before is taken for one that was reset.
const REMEMBERED: usize = 32;

impl Tombstones {
    fn add(&mut self, id: u32) {
        if self.ids.len() == REMEMBERED
            && let Some(oldest) = self.ids.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest);
        }
        self.ids.push_back(id);
    }

    fn may_have(&self, id: u32) -> bool {
        id <= self.forgotten || self.ids.contains(&id)
    }
}

impl Connection {
    /// Whether the other side may open streams of this number.
    pub(super) fn is_theirs(&self, id: u32) -> bool {
        id.is_multiple_of(2) == (self.role == Role::Client)
    }

    /// Whether nobody has opened the stream, or ever will by using it.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        match self.is_theirs(id) {
            _ if id == 0 => true,
            true => id > self.last_theirs,
            false => id >= self.next_ours,
        }
    }

    /// A frame of a message has come on a stream that is closed.
    pub(super) fn on_closed(&self, id: u32) -> Result<(), Fault> {
        let is_ignored = match self.leaving {
            Leaving::Last(last) if self.is_theirs(id) => id > last,
            _ => false,
        };
        if is_ignored || self.tombstones.may_have(id) {
            return Ok(());
        }
        let what = "a frame on a stream that is closed";
        Err(Fault::Protocol(Reason::STREAM_CLOSED, what))
    }

    /// A frame of a message has come on a stream that has failed, and that somebody still holds.
    pub(super) fn on_failed(&mut self, id: u32) -> Result<(), Fault> {
        if self.tombstones.may_have(id) {
            return Ok(());
        }
        // The other side has reset it, and knows.
        self.write_reset(id, Reason::STREAM_CLOSED);
        self.tombstones.add(id);
        let verdict = self.account.mistake();
        self.obey(verdict)
    }

    /// A frame of a message is discarded because its stream is closed.
    pub(super) fn on_discarded(&mut self, length: u32) -> Result<(), Fault> {
        let verdict = self.account.discarded(length);
        self.obey(verdict)
    }

    /// Does not take a stream that the other side opens.
    pub(super) fn refuse_opening(&mut self, id: u32, reason: Reason) -> Result<(), Fault> {
        self.write_reset(id, reason);
        self.tombstones.add(id);
        self.account.sent_reset();
        let verdict = match reason {
            Reason::REFUSED_STREAM => self.account.refused(),
            _ => self.account.mistake(),
        };
        self.obey(verdict)
    }

    /// Resets a stream because of what the other side did on it. One that is closed, by whatever,
    /// stays as it is, and was reset often enough.
    pub(super) fn refuse(
        &mut self,
        id: u32,
        reason: Reason,
        what: &'static str,
    ) -> Result<(), Fault> {
        if self.is_idle(id) {
            return Err(Fault::Protocol(reason, what));
        }
        self.reset_stream(id, reason, Error::Malformed(reason, what));
        let verdict = self.account.mistake();
        self.obey(verdict)
    }

    /// Resets a stream that is not over.
    pub(super) fn reset_stream(&mut self, id: u32, reason: Reason, error: Error) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.is_over() {
            return;
        }
        // Whoever has sent what is wrong sends, and be it behind the end.
        let is_sending =
            stream.inbound.stage != Stage::Over || matches!(error, Error::Malformed(..));
        stream.fail(error);
        if is_sending {
            self.tombstones.add(id);
            self.account.sent_reset();
        }
        self.remove_unaccepted(id);
        self.write_reset(id, reason);
        self.settle(id);
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
            stream.is_read = false;
            stream.is_written = false;
            let held = stream.inbound.held();
            self.free(None, held);
        }
        true
    }

    fn write_reset(&mut self, id: u32, reason: Reason) {
        self.output
            .write(|out| frame::write_number(out, frame::RST_STREAM, id, reason.0));
        self.wake_driver();
    }

    /// The other side has reset a stream.
    pub(super) fn was_reset(&mut self, id: u32, reason: Reason) -> Result<(), Fault> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.fail(Error::Reset(reason));
        if self.remove_unaccepted(id) {
            self.unseen_resets += 1;
            if self.unseen_resets > self.limits.unseen_resets {
                return Err(Fault::Violation(Violation::UnseenResets));
            }
        }
        self.settle(id);
        Ok(())
    }

    /// Gives the place of a stream back when it is over, and forgets it when nobody holds it.
    pub(super) fn settle(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !stream.is_over() {
            return;
        }
        let is_held = stream.is_held();
        if std::mem::take(&mut stream.is_counted) {
            match self.is_theirs(id) {
                true => self.open_theirs -= 1,
                false => self.open_ours -= 1,
            }
            self.wake_openers();
            if self.open_theirs + self.open_ours == 0 {
                // Whoever drives the connection may wait for it.
                self.wake_driver();
            }
        }
        if !is_held {
            self.streams.remove(&id);
            if self.streams.is_empty() && self.streams.capacity() > 14 {
                self.streams.shrink_to(0);
            }
        }
    }

    /// Begins to leave: the other side is told to open no more streams, and those that are open go
    /// on to their end.
    pub fn leave(&mut self) {
        if self.leaving != Leaving::No || self.failure.is_some() {
            return;
        }
        self.leaving = Leaving::Announced;
        match self.role {
            Role::Server => {
                self.write_go_away(MAX_WINDOW, Reason::NO_ERROR, "");
                self.write_ping(LEAVE);
            }
            // There is nothing that it could still open.
            Role::Client => self.leave_for_good(),
        }
    }

    /// The other side knows that we leave.
    pub(super) fn leave_for_good(&mut self) {
        if self.leaving == Leaving::Announced {
            self.leaving = Leaving::Last(self.last_theirs);
            self.write_go_away(self.last_theirs, Reason::NO_ERROR, "");
        }
    }

    fn write_go_away(&mut self, last: u32, reason: Reason, words: &str) {
        self.output
            .write(|out| frame::write_go_away(out, last, reason, words));
        self.wake_driver();
    }

    /// Whether nothing is left but to write what there is and to close.
    pub fn is_over(&self) -> bool {
        let has_left = matches!(self.leaving, Leaving::Last(_));
        self.failure.is_some() || (has_left && self.open_theirs + self.open_ours == 0)
    }

    /// Ends the connection at once.
    pub fn abort(&mut self, reason: Reason) {
        if self.failure.is_none() {
            self.write_go_away(self.last_theirs, reason, "");
            self.fail(Error::Closed);
        }
    }

    /// The time for what [`Connection::awaited`] returns is up. A peer that does not acknowledge
    /// the PING of a graceful shutdown is sent the final GOAWAY all the same.
    pub fn too_late(&mut self) {
        match self.awaited() {
            Some(Awaited::GoAwayPing) => self.leave_for_good(),
            _ => drop(self.die(Fault::Violation(Violation::HeadTime))),
        }
    }

    /// Nothing more will be read. An error tells more than the end of what there is to read.
    pub fn closed(&mut self, error: Option<std::io::Error>) {
        let error = match (error, self.gone) {
            (_, Some((_, reason))) if reason != Reason::NO_ERROR => Error::Ended(reason),
            (Some(error), _) => error.into(),
            (None, _) => Error::Closed,
        };
        self.output.clear();
        self.fail(error);
    }

    /// Ends the connection because of what the other side did.
    pub(super) fn die(&mut self, fault: Fault) -> Error {
        let (reason, words) = match fault {
            Fault::Protocol(reason, what) => (reason, what),
            Fault::Violation(violation) => {
                self.violation = Some(violation);
                (Reason::ENHANCE_YOUR_CALM, violation.label())
            }
        };
        self.write_go_away(self.last_theirs, reason, words);
        let error = Error::from(fault);
        self.fail(error.clone());
        error
    }

    fn fail(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(error.clone());
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_over()
            {
                stream.fail(error.clone());
            }
            self.settle(id);
        }
        for accepted in std::mem::take(&mut self.accepted) {
            // Nobody will see them.
            self.streams.remove(&accepted.id.0);
        }
        self.wake_openers();
        self.wake_driver();
    }

    /// The other side leaves.
    pub(super) fn is_left(&mut self, last: u32, reason: Reason) {
        self.gone = Some((last, reason));
        let after = |id: &u32| *id > last && !self.is_theirs(*id);
        let ids: Vec<u32> = self.streams.keys().copied().filter(after).collect();
        for id in ids {
            if let Some(stream) = self.streams.get_mut(&id)
                && !stream.is_over()
            {
                stream.fail(Error::GoneAway(reason));
            }
            self.settle(id);
        }
        self.wake_openers();
        self.wake_driver();
    }
}
