//! What the other side of a connection has spent and earned. Pure: heads of frames go in, verdicts come out.
//!
//! A frame that carries nothing (settings, pings, priorities, window updates, empty ones) costs some hundred nanoseconds and often an answer, and may be sent
//! for ever at 9 bytes each. Honest sides send few of them for each frame that carries something, so messages *earn* such frames; what nothing explains
//! is taken from a budget that time refills. Resets have a budget of their own: streams earn them.

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
    /// Streams that we have reset because of the other side, in the connection's life.
    mistakes: u32,
    max_mistakes: u32,
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

/// What a frame that carries a message, or a part of one, explains, in either direction: window updates of the stream and the connection, a ping that measures the
/// round trip, a priority.
const EARNED: u32 = 4;

/// Settings are answered, and may concern every stream.
const SETTINGS_COST: u32 = 10;

/// Pings are answered.
const PING_COST: u32 = 2;

/// A stream earns one, so that half of all streams may be reset for ever.
const RESET_COST: u32 = 2;

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
            mistakes: 0,
            max_mistakes: limits.mistakes,
            retired: false,
            clock,
        }
    }

    /// The other side has sent a frame. `is_told`: it has been told not to open streams any more.
    pub(crate) fn received(&mut self, head: Head, is_told: bool) -> Verdict {
        match head.kind {
            frame::HEADERS => self.carries(),
            frame::DATA if head.length > 0 => self.carries(),
            frame::DATA if head.ends_stream() => Verdict::GoOn,
            // A server that resets streams answers requests of ours.
            frame::RST_STREAM if self.role == Role::Client => Verdict::GoOn,
            frame::RST_STREAM => self.reset(is_told),
            frame::SETTINGS if !head.is_ack() => self.idle(SETTINGS_COST),
            frame::PING if !head.is_ack() => self.idle(PING_COST),
            // Their number is limited otherwise.
            frame::CONTINUATION => Verdict::GoOn,
            _ => self.idle(1),
        }
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

    /// We have reset a stream because of the other side.
    pub(crate) fn mistake(&mut self) -> Verdict {
        self.mistakes += 1;
        if self.mistakes >= self.max_mistakes {
            return Verdict::Cut(Violation::Mistakes);
        }
        if self.mistakes >= self.max_mistakes / 2 {
            return self.retire(Violation::Mistakes);
        }
        Verdict::GoOn
    }

    fn carries(&mut self) -> Verdict {
        self.idle_frames.earn(EARNED);
        Verdict::GoOn
    }

    fn idle(&mut self, cost: u32) -> Verdict {
        match self.idle_frames.spend(cost, self.clock) {
            true => Verdict::GoOn,
            false => Verdict::Cut(Violation::IdleFrames),
        }
    }

    /// Whole crowds of honest requests are cancelled at times, when a server is overloaded. They lose nothing when the connection is replaced in peace; who goes
    /// on after that is not honest.
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
            let now = clock();
            let share = (now - self.refilled).div_duration_f64(REFILL).min(1.0);
            let refill = (share * f64::from(self.max)) as u32;
            self.left = (self.left + refill).min(self.max);
            self.refilled = now;
        }
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
