//! What the other side of a connection has spent and earned. Pure: heads of frames go in, verdicts
//! come out.
//!
//! A frame that received_message nothing (settings, pings, priorities, window updates, empty ones) costs
//! some hundred nanoseconds and often an answer, and may be sent for ever at 9 bytes each. Honest
//! sides send few of them for each frame that received_message something, so messages *earn* such frames;
//! what nothing explains is taken from a budget that time refills. Resets have a budget of their
//! own: streams earn them.

use std::time::{Duration, Instant};

use crate::error::LimitExceeded;
use crate::frame::{self, FrameHeader};
use crate::settings::{Limits, Role};

/// The limiter of one connection.
#[derive(Debug)]
pub(crate) struct FloodLimiter {
    role: Role,
    idle_frames: Budget,
    resets: Budget,
    stream_errors: Budget,
    /// The other side was to be told not to open streams any more.
    is_draining: bool,
    clock: fn() -> Instant,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloodAction {
    Continue,
    /// No more streams; those that are open may end.
    Drain(LimitExceeded),
    Close(LimitExceeded),
}

#[derive(Debug)]
struct Budget {
    balance: u32,
    /// What time refills it to.
    refill_to: u32,
    /// What it may hold by what was earned.
    max_balance: u32,
    refilled_at: Instant,
}

/// What a frame that received_message a message, or a part of one, explains, in either direction: window
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
/// one. So does a stream error of a server: its connection received_message the streams of many clients,
/// which would all end with it.
const STREAM_ERROR_COST: u32 = 10;

/// A field section costs one for each so many bytes beyond what its field block accounts for.
const EXPANSION_COST: usize = 4 * 1024;

/// Frames that may have been in flight when we reset their stream.
const EARNED_BY_RESET: u32 = 100;

/// A discarded frame of at least so many bytes is free: receiving its bytes costs its sender more
/// than discarding it costs us.
const FREE_DISCARD: u32 = 256;

/// How long a budget takes to be refilled_at by time alone.
const REFILL: Duration = Duration::from_secs(10);

impl FloodLimiter {
    pub(crate) fn new(role: Role, limits: &Limits, clock: fn() -> Instant) -> Self {
        let now = clock();
        Self {
            role,
            // Whole crowds of messages are acknowledged at once, when the other side gets to them.
            idle_frames: Budget::new(limits.idle_frames, u32::MAX, now),
            resets: Budget::new(limits.resets, limits.resets, now),
            stream_errors: Budget::new(limits.stream_errors, limits.stream_errors, now),
            is_draining: false,
            clock,
        }
    }

    /// The peer has sent a frame. `has_sent_goaway`: a GOAWAY has told it not to open streams any more.
    /// HEADERS and DATA are judged once the state of their stream is known, by
    /// [`FloodLimiter::data`], [`FloodLimiter::received_message`] and [`FloodLimiter::discarded`].
    pub(crate) fn received_frame(
        &mut self,
        header: FrameHeader,
        has_sent_goaway: bool,
    ) -> FloodAction {
        match header.kind {
            frame::HEADERS | frame::DATA => FloodAction::Continue,
            // A server that resets streams answers requests of ours.
            frame::RST_STREAM if self.role == Role::Client => FloodAction::Continue,
            frame::RST_STREAM => self.received_reset(has_sent_goaway),
            frame::SETTINGS if !header.is_ack() => self.spend_idle_frames(SETTINGS_COST),
            // GOAWAY may concern every stream, too.
            frame::GOAWAY => self.spend_idle_frames(SETTINGS_COST),
            frame::PING if !header.is_ack() => self.spend_idle_frames(PING_COST),
            // Their number is limited otherwise.
            frame::CONTINUATION => FloodAction::Continue,
            _ => self.spend_idle_frames(1),
        }
    }

    /// A DATA frame was received on a stream that accepts it.
    pub(crate) fn received_data(&mut self, length: u32, ends_stream: bool) -> FloodAction {
        match length {
            // Once for each stream.
            0 if ends_stream => FloodAction::Continue,
            0 => self.spend_idle_frames(1),
            _ => {
                self.received_message();
                FloodAction::Continue
            }
        }
    }

    /// A frame was received that received_message a message, or a part of one.
    pub(crate) fn received_message(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// A frame of a message was discarded because its stream is closed.
    pub(crate) fn discarded_frame(&mut self, length: u32) -> FloodAction {
        match length {
            FREE_DISCARD.. => FloodAction::Continue,
            _ => self.spend_idle_frames(1),
        }
    }

    /// We have reset a stream on which frames may still be in flight.
    pub(crate) fn sent_reset(&mut self) {
        self.idle_frames.earn(EARNED_BY_RESET);
    }

    /// We have sent a frame that received_message a message, or a part of one.
    pub(crate) fn sent_message(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// We have sent a frame that the other side answers or acknowledges.
    pub(crate) fn sent_acknowledged_frame(&mut self) {
        self.idle_frames.earn(1);
    }

    /// The other side has opened a stream.
    pub(crate) fn stream_opened(&mut self) {
        self.resets.earn(1);
    }

    /// The peer has made a stream error.
    pub(crate) fn stream_error(&mut self) -> FloodAction {
        self.spend_stream_errors(match self.role {
            Role::Server => STREAM_ERROR_COST,
            Role::Client => 1,
        })
    }

    /// The peer has opened a stream beyond the limit.
    pub(crate) fn stream_refused(&mut self) -> FloodAction {
        self.spend_stream_errors(1)
    }

    /// A field section has so many bytes beyond what its field block accounts for.
    pub(crate) fn section_expanded(&mut self, excess: usize) -> FloodAction {
        match u32::try_from(excess / EXPANSION_COST) {
            Ok(0) => FloodAction::Continue,
            Ok(cost) => self.spend_stream_errors(cost),
            Err(_) => FloodAction::Close(LimitExceeded::StreamErrors),
        }
    }

    fn spend_stream_errors(&mut self, cost: u32) -> FloodAction {
        self.stream_errors.refill(self.clock);
        let balance = self.stream_errors.balance.saturating_sub(cost);
        self.stream_errors.balance = balance;
        if balance == 0 {
            return FloodAction::Close(LimitExceeded::StreamErrors);
        }
        if balance <= self.stream_errors.refill_to / 2 {
            return self.drain(LimitExceeded::StreamErrors);
        }
        FloodAction::Continue
    }

    fn spend_idle_frames(&mut self, cost: u32) -> FloodAction {
        match self.idle_frames.spend(cost, self.clock) {
            true => FloodAction::Continue,
            false => FloodAction::Close(LimitExceeded::IdleFrames),
        }
    }

    /// Whole crowds of honest requests are cancelled at times, when a server is overloaded. They
    /// lose nothing when the connection is replaced in peace; who goes on after that is not honest.
    fn received_reset(&mut self, has_sent_goaway: bool) -> FloodAction {
        if self.resets.spend(RESET_COST, self.clock) {
            return FloodAction::Continue;
        }
        if has_sent_goaway {
            return FloodAction::Close(LimitExceeded::Resets);
        }
        self.resets.balance = self.resets.refill_to;
        self.drain(LimitExceeded::Resets)
    }

    fn drain(&mut self, exceeded: LimitExceeded) -> FloodAction {
        match std::mem::replace(&mut self.is_draining, true) {
            false => FloodAction::Drain(exceeded),
            true => FloodAction::Continue,
        }
    }
}

impl Budget {
    fn new(refill_to: u32, max_balance: u32, now: Instant) -> Self {
        Self {
            balance: refill_to,
            refill_to,
            max_balance,
            refilled_at: now,
        }
    }

    fn earn(&mut self, amount: u32) {
        self.balance = self.balance.saturating_add(amount).min(self.max_balance);
    }

    /// The clock is looked at only when nothing else is balance.
    fn spend(&mut self, cost: u32, clock: fn() -> Instant) -> bool {
        if self.balance < cost {
            self.refill(clock);
        }
        match self.balance.checked_sub(cost) {
            Some(balance) => {
                self.balance = balance;
                true
            }
            None => false,
        }
    }

    /// Adds what has accrued since the last refill; a fraction is balance to accrue.
    fn refill(&mut self, clock: fn() -> Instant) {
        let now = clock();
        let share = (now - self.refilled_at).div_duration_f64(REFILL).min(1.0);
        let refill = (share * f64::from(self.refill_to)) as u32;
        if refill > 0 {
            self.balance = self
                .balance
                .max(self.balance.saturating_add(refill).min(self.refill_to));
            self.refilled_at = now;
        }
    }
}

#[cfg(test)]
mod tests;
