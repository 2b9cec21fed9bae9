//! Limits what a peer costs the local endpoint. Has no side effects: frame headers go in, a
//! [`FloodAction`] comes out.
//!
//! A frame without message content (SETTINGS, PING, PRIORITY, WINDOW_UPDATE, empty DATA) costs some
//! hundred nanoseconds and often a response, for 9 bytes. Honest peers send few of them for each
//! frame with content, so frames of messages *earn* such frames; the remaining ones are paid from a
//! budget that refills over time. Resets have a separate budget, which new streams earn.

use std::time::{Duration, Instant};

use crate::error::LimitExceeded;
use crate::frame::{self, FrameHeader};
use crate::settings::{Limits, Role};

/// The flood limiter of one connection.
#[derive(Debug)]
pub(crate) struct FloodLimiter {
    role: Role,
    idle_frames: Budget,
    resets: Budget,
    stream_errors: Budget,
    /// Allocated when a peer first spends of it, which few do.
    field_lines: Option<Box<Budget>>,
    /// Bytes of content that the peer may have sent on streams before it learnt of their reset.
    in_flight: u32,
    /// [`FloodAction::Drain`] was returned.
    is_draining: bool,
    clock: fn() -> Instant,
}

/// What the connection must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloodAction {
    Continue,
    /// Shut down gracefully.
    Drain(LimitExceeded),
    Close(LimitExceeded),
}

/// How much of a budget is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetLeft {
    More,
    /// At most half.
    Half,
    Nothing,
}

/// Points that frames spend, and that time and message frames refill.
#[derive(Debug)]
struct Budget {
    balance: u32,
    /// Time refills the balance up to this.
    refill_to: u32,
    /// Message frames refill the balance up to this.
    max_balance: u32,
    refilled_at: Instant,
}

/// Idle frames that one message frame earns, in either direction: WINDOW_UPDATE of the stream and
/// of the connection, a PING that measures the round-trip time, a PRIORITY.
const EARNED: u32 = 4;

/// SETTINGS are acknowledged, and may change every stream.
const SETTINGS_COST: u32 = 10;

/// A PING is acknowledged.
const PING_COST: u32 = 2;

/// A stream earns one, so that half of all streams may be reset indefinitely.
const RESET_COST: u32 = 2;

/// A client's stream error ends a request that may have reached the application, which costs far
/// more than the bytes of the error. A stream beyond the limit reaches no application and costs
/// one. So does a stream error of a server: its connection carries the streams of many clients,
/// which would all end with it.
const STREAM_ERROR_COST: u32 = 10;

/// A field section costs one for this number of bytes beyond the allowance of its field block.
const EXPANSION_COST: usize = 4 * 1024;

/// Frames without content that may be in flight when the local endpoint resets their stream.
const EARNED_BY_RESET: u32 = 100;

/// A discarded frame of at least this number of bytes is free: receiving it costs its sender more
/// than discarding it costs the receiver.
const FREE_DISCARD: u32 = 256;

/// Time that refills an empty budget.
const REFILL: Duration = Duration::from_secs(10);

/// Short literals of a field block that are free: lengths, timeouts and ids of a request.
const FREE_SHORT_LITERALS: usize = 16;

/// Field lines of a field block that are free, and the bytes that pay for one more. Browsers send
/// about fifteen fields, and one line for each cookie.
const FREE_LINES: usize = 64;
const BYTES_PER_LINE: usize = 16;

/// Returns the number of field lines that cost more than the bytes of their field block pay for:
/// `lines` lines in `bytes` bytes, with `short_literals` short literals among them. A line costs
/// some 50 ns, whether it has one byte or a hundred, and a short literal is evicted before it is
/// worth its entry of the table.
pub(crate) fn surplus_lines(lines: usize, short_literals: usize, bytes: usize) -> usize {
    let surplus = lines.saturating_sub(FREE_LINES + bytes / BYTES_PER_LINE);
    surplus.max(short_literals.saturating_sub(FREE_SHORT_LITERALS))
}

impl FloodLimiter {
    pub(crate) fn new(role: Role, limits: &Limits, clock: fn() -> Instant) -> Self {
        let now = clock();
        Self {
            role,
            // A peer may acknowledge many message frames at once, after it has processed them.
            idle_frames: Budget::new(limits.idle_frames, u32::MAX, now),
            resets: Budget::new(limits.resets, limits.resets, now),
            stream_errors: Budget::new(limits.stream_errors, limits.stream_errors, now),
            field_lines: None,
            in_flight: 0,
            is_draining: false,
            clock,
        }
    }

    /// Accounts for a frame of the peer. `has_sent_goaway`: a GOAWAY has asked the peer not to open
    /// streams any more. HEADERS and DATA are accounted for once the state of their stream is
    /// known, by [`FloodLimiter::record_data`], [`FloodLimiter::record_message`] and
    /// [`FloodLimiter::record_discarded_frame`].
    pub(crate) fn record_frame(
        &mut self,
        header: FrameHeader,
        has_sent_goaway: bool,
    ) -> FloodAction {
        match header.kind {
            frame::HEADERS | frame::DATA => FloodAction::Continue,
            // A server responds to requests with its resets.
            frame::RST_STREAM if self.role == Role::Client => FloodAction::Continue,
            frame::RST_STREAM => self.record_reset(has_sent_goaway),
            frame::SETTINGS if !header.is_ack() => self.spend_idle_frames(SETTINGS_COST),
            // GOAWAY may change every stream, too.
            frame::GOAWAY => self.spend_idle_frames(SETTINGS_COST),
            frame::PING if !header.is_ack() => self.spend_idle_frames(PING_COST),
            // Limited for each field block.
            frame::CONTINUATION => FloodAction::Continue,
            _ => self.spend_idle_frames(1),
        }
    }

    /// Accounts for a DATA frame on a stream that accepts it.
    pub(crate) fn record_data(&mut self, length: u32, ends_stream: bool) -> FloodAction {
        match length {
            // At most one for each stream.
            0 if ends_stream => FloodAction::Continue,
            0 => self.spend_idle_frames(1),
            _ => {
                self.record_message();
                FloodAction::Continue
            }
        }
    }

    /// Accounts for a received frame that is part of a message.
    pub(crate) fn record_message(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// Accounts for a frame of a message that was discarded because its stream is closed. `length`
    /// is 0 for a frame that is not DATA.
    pub(crate) fn record_discarded_frame(&mut self, length: u32) -> FloodAction {
        let rest = self.in_flight.checked_sub(length);
        match (length, rest) {
            (1.., Some(rest)) => {
                self.in_flight = rest;
                FloodAction::Continue
            }
            (FREE_DISCARD.., None) => FloodAction::Continue,
            _ => self.spend_idle_frames(1),
        }
    }

    /// Accounts for a sent RST_STREAM. The peer may still send `window` bytes, until the frame
    /// reaches it, in any number of frames.
    pub(crate) fn record_sent_reset(&mut self, window: u64) {
        self.idle_frames.earn(EARNED_BY_RESET);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        self.in_flight = self.in_flight.saturating_add(window);
    }

    /// Accounts for a sent frame that is part of a message.
    pub(crate) fn record_sent_message(&mut self) {
        self.idle_frames.earn(EARNED);
    }

    /// Accounts for a sent frame that the peer acknowledges.
    pub(crate) fn record_sent_acknowledged_frame(&mut self) {
        self.idle_frames.earn(1);
    }

    /// Accounts for a stream that the peer has opened.
    pub(crate) fn record_opened_stream(&mut self) {
        self.resets.earn(1);
    }

    /// Accounts for a stream error of the peer.
    pub(crate) fn record_stream_error(&mut self) -> FloodAction {
        self.spend_stream_errors(match self.role {
            Role::Server => STREAM_ERROR_COST,
            Role::Client => 1,
        })
    }

    /// Accounts for a stream beyond the limit of concurrent streams.
    pub(crate) fn record_refused_stream(&mut self) -> FloodAction {
        self.spend_stream_errors(1)
    }

    /// Accounts for a field section with `excess` bytes beyond what its field block accounts for.
    pub(crate) fn record_expansion(&mut self, excess: usize) -> FloodAction {
        match u32::try_from(excess / EXPANSION_COST) {
            Ok(0) => FloodAction::Continue,
            Ok(cost) => self.spend_stream_errors(cost),
            Err(_) => FloodAction::Close(LimitExceeded::StreamErrors),
        }
    }

    /// Accounts for field lines that cost more than their bytes; see [`surplus_lines`]. `limit` is
    /// [`Limits::field_lines`].
    pub(crate) fn record_field_lines(&mut self, surplus: usize, limit: u32) -> FloodAction {
        let clock = self.clock;
        let budget = self
            .field_lines
            .get_or_insert_with(|| Box::new(Budget::new(limit, limit, clock())));
        let cost = u32::try_from(surplus).unwrap_or(u32::MAX);
        let left = budget.spend_down(cost, clock);
        self.action_for(left, LimitExceeded::FieldLines)
    }

    fn spend_stream_errors(&mut self, cost: u32) -> FloodAction {
        let left = self.stream_errors.spend_down(cost, self.clock);
        self.action_for(left, LimitExceeded::StreamErrors)
    }

    fn action_for(&mut self, left: BudgetLeft, exceeded: LimitExceeded) -> FloodAction {
        match left {
            BudgetLeft::More => FloodAction::Continue,
            BudgetLeft::Half => self.drain(exceeded),
            BudgetLeft::Nothing => FloodAction::Close(exceeded),
        }
    }

    fn spend_idle_frames(&mut self, cost: u32) -> FloodAction {
        if self.idle_frames.spend(cost, self.clock) {
            FloodAction::Continue
        } else {
            FloodAction::Close(LimitExceeded::IdleFrames)
        }
    }

    /// Many honest requests are cancelled together when a server is overloaded. They lose nothing
    /// when the connection is shut down gracefully; a peer that continues to reset streams after
    /// that is hostile.
    fn record_reset(&mut self, has_sent_goaway: bool) -> FloodAction {
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
        if std::mem::replace(&mut self.is_draining, true) {
            FloodAction::Continue
        } else {
            FloodAction::Drain(exceeded)
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

    /// Reads the clock only when the balance does not suffice.
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

    /// Spends points, even if the balance does not suffice.
    fn spend_down(&mut self, cost: u32, clock: fn() -> Instant) -> BudgetLeft {
        self.refill(clock);
        self.balance = self.balance.saturating_sub(cost);
        if self.balance == 0 {
            BudgetLeft::Nothing
        } else if self.balance <= self.refill_to / 2 {
            BudgetLeft::Half
        } else {
            BudgetLeft::More
        }
    }

    /// Adds the points that have accrued since the last refill; a fraction is left to accrue.
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
