//! What the other side of a connection has spent and earned. Pure: heads of frames go in, verdicts
//! come out.
//!
//! A frame that carries nothing (settings, pings, priorities, window updates, empty ones) costs
//! some hundred nanoseconds and often an answer, and may be sent for ever at 9 bytes each. Honest
//! sides send few of them for each frame that carries something, so messages *earn* such frames;
//! what nothing explains is taken from a budget that time refills. Resets have a budget of their
//! own: streams earn them.

use std::time::{Duration, Instant};

use crate::error::Violation;
use crate::frame::{self, Head};
use crate::settings::{Limits, Role};

/// The account of one connection.
#[derive(Debug)]
pub(crate) struct Account {
    role: Role,
    idle_frames: Budget,
    resets: Budget,
    mistakes: Budget,
    /// The other side was to be told not to open streams any more.
    retired: bool,
    clock: fn() -> Instant,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    /// No more streams; those that are open may end.
    Retire(Violation),
    Cut(Violation),
}

#[derive(Debug)]
struct Budget {
    left: u32,
    /// What time refills it to.
    max: u32,
    /// What it may hold by what was earned.
    most: u32,
    refilled: Instant,
}

/// What a frame that carries a message, or a part of one, explains, in either direction: window
/// updates of the stream and the connection, a ping that measures the round trip, a priority.
const EARNED: u32 = 4;

/// Settings are answered, and may concern every stream.
const SETTINGS_COST: u32 = 10;

/// Pings are answered.
const PING_COST: u32 = 2;

/// A stream earns one, so that half of all streams may be reset for ever.
const RESET_COST: u32 = 2;

/// A client's stream error ends a request that may have reached the application, which costs far
/// more than the bytes of the error. A stream beyond the limit reaches no application and costs
/// one. So does a stream error of a server: its connection carries the streams of many clients,
/// which would all end with it.
const MISTAKE_COST: u32 = 10;

/// A field section costs one for each so many bytes beyond what its field block accounts for.
const EXPANSION_COST: usize = 4 * 1024;

/// Frames that may have been in flight when we reset their stream.
const EARNED_BY_RESET: u32 = 100;

/// A discarded frame of at least so many bytes is free: receiving its bytes costs its sender more
/// than discarding it costs us.
const FREE_DISCARD: u32 = 256;

/// How long a budget takes to be refilled by time alone.
const REFILL: Duration = Duration::from_secs(10);

impl Account {
    pub(crate) fn new(role: Role, limits: &Limits, clock: fn() -> Instant) -> Self {
        let now = clock();
        Self {
            role,
            // Whole crowds of messages are acknowledged at once, when the other side gets to them.
            idle_frames: Budget::new(limits.idle_frames, u32::MAX, now),
            resets: Budget::new(limits.resets, limits.resets, now),
            mistakes: Budget::new(limits.mistakes, limits.mistakes, now),
            retired: false,
            clock,
        }
    }

    /// The peer has sent a frame. `is_told`: a GOAWAY has told it not to open streams any more.
    /// HEADERS and DATA are judged once the state of their stream is known, by
    /// [`Account::data`], [`Account::carries`] and [`Account::discarded`].
    pub(crate) fn received(&mut self, head: Head, is_told: bool) -> Verdict {
        match head.kind {
            frame::HEADERS | frame::DATA => Verdict::GoOn,
            // A server that resets streams answers requests of ours.
            frame::RST_STREAM if self.role == Role::Client => Verdict::GoOn,
            frame::RST_STREAM => self.reset(is_told),
            frame::SETTINGS if !head.is_ack() => self.idle(SETTINGS_COST),
            // GOAWAY may concern every stream, too.
            frame::GOAWAY => self.idle(SETTINGS_COST),
            frame::PING if !head.is_ack() => self.idle(PING_COST),
            // Their number is limited otherwise.
            frame::CONTINUATION => Verdict::GoOn,
            _ => self.idle(1),
        }
    }

    /// A DATA frame was received on a stream that accepts it.
    pub(crate) fn data(&mut self, length: u32, ends_stream: bool) -> Verdict {
        match length {
            // Once for each stream.
            0 if ends_stream => Verdict::GoOn,
            0 => self.idle(1),
            _ => {
                self.carries();
                Verdict::GoOn
            }
        }
    }

    /// A frame was received that carries a message, or a part of one.
    pub(crate) fn carries(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// A frame of a message was discarded because its stream is closed.
    pub(crate) fn discarded(&mut self, length: u32) -> Verdict {
        match length {
            FREE_DISCARD.. => Verdict::GoOn,
            _ => self.idle(1),
        }
    }

    /// We have reset a stream on which frames may still be in flight.
    pub(crate) fn sent_reset(&mut self) {
        self.idle_frames.earn(EARNED_BY_RESET);
    }

    /// We have sent a frame that carries a message, or a part of one.
    pub(crate) fn sent_message(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// We have sent a frame that the other side answers or acknowledges.
    pub(crate) fn sent_question(&mut self) {
        self.idle_frames.earn(1);
    }

    /// The other side has opened a stream.
    pub(crate) fn opened(&mut self) {
        self.resets.earn(1);
    }

    /// The peer has made a stream error.
    pub(crate) fn mistake(&mut self) -> Verdict {
        self.mistaken(match self.role {
            Role::Server => MISTAKE_COST,
            Role::Client => 1,
        })
    }

    /// The peer has opened a stream beyond the limit.
    pub(crate) fn refused(&mut self) -> Verdict {
        self.mistaken(1)
    }

    /// A field section has so many bytes beyond what its field block accounts for.
    pub(crate) fn expanded(&mut self, excess: usize) -> Verdict {
        match u32::try_from(excess / EXPANSION_COST) {
            Ok(0) => Verdict::GoOn,
            Ok(cost) => self.mistaken(cost),
            Err(_) => Verdict::Cut(Violation::Mistakes),
        }
    }

    fn mistaken(&mut self, cost: u32) -> Verdict {
        self.mistakes.refill(self.clock);
        let left = self.mistakes.left.saturating_sub(cost);
        self.mistakes.left = left;
        if left == 0 {
            return Verdict::Cut(Violation::Mistakes);
        }
        if left <= self.mistakes.max / 2 {
            return self.retire(Violation::Mistakes);
        }
        Verdict::GoOn
    }

    fn idle(&mut self, cost: u32) -> Verdict {
        match self.idle_frames.spend(cost, self.clock) {
            true => Verdict::GoOn,
            false => Verdict::Cut(Violation::IdleFrames),
        }
    }

    /// Whole crowds of honest requests are cancelled at times, when a server is overloaded. They
    /// lose nothing when the connection is replaced in peace; who goes on after that is not honest.
    fn reset(&mut self, is_told: bool) -> Verdict {
        if self.resets.spend(RESET_COST, self.clock) {
            return Verdict::GoOn;
        }
        if is_told {
            return Verdict::Cut(Violation::Resets);
        }
        self.resets.left = self.resets.max;
        self.retire(Violation::Resets)
    }

    fn retire(&mut self, violation: Violation) -> Verdict {
        match std::mem::replace(&mut self.retired, true) {
            false => Verdict::Retire(violation),
            true => Verdict::GoOn,
        }
    }
}

impl Budget {
    fn new(max: u32, most: u32, now: Instant) -> Self {
        Self {
            left: max,
            max,
            most,
            refilled: now,
        }
    }

    fn earn(&mut self, amount: u32) {
        self.left = self.left.saturating_add(amount).min(self.most);
    }

    /// The clock is looked at only when nothing else is left.
    fn spend(&mut self, cost: u32, clock: fn() -> Instant) -> bool {
        if self.left < cost {
            self.refill(clock);
        }
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Adds what has accrued since the last refill; a fraction is left to accrue.
    fn refill(&mut self, clock: fn() -> Instant) {
        let now = clock();
        let share = (now - self.refilled).div_duration_f64(REFILL).min(1.0);
        let refill = (share * f64::from(self.max)) as u32;
        if refill > 0 {
            self.left = self
                .left
                .max(self.left.saturating_add(refill).min(self.max));
            self.refilled = now;
        }
    }
}

#[cfg(test)]
mod tests;
