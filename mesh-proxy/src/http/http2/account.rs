//! What the other side of an HTTP/2 connection has spent and earned. Pure: heads of frames go in, verdicts come out.
//!
//! A frame that carries nothing (settings, pings, priorities, window updates, empty ones) costs some hundred nanoseconds and often an answer, and may be sent
//! for ever at 9 bytes each. Honest sides send few of them for each frame that carries something, so messages *earn* such frames; what nothing explains
//! is taken from a budget that time refills. Resets have a budget of their own: streams earn them.

use std::time::Duration;

use tokio::time::Instant;

use super::frames::Head;
use crate::config::Http2Limits;

/// The account of one connection.
#[derive(Debug)]
pub(super) struct Account {
    role: Role,
    idle_frames: Budget,
    resets: Budget,
    /// The highest stream that the other side has opened.
    last_stream: u32,
    /// Empty data that did not end its stream, in the connection's life.
    empty_data: u32,
    /// Streams that we have reset, in the connection's life.
    our_resets: u32,
    max_our_resets: u32,
    /// The other side is to be told not to open streams any more.
    retired: bool,
    /// It has been told.
    told: bool,
}

/// What we are on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Role {
    Server,
    Client,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// No more streams; those that are open may end.
    Retire(Violation),
    Cut(Violation),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::http) enum Violation {
    #[error("more frames that carry nothing than MESH_PROXY_HTTP2_MAX_IDLE_FRAMES allows")]
    IdleFrames,
    #[error("more streams were reset than MESH_PROXY_HTTP2_MAX_RESETS allows")]
    Resets,
    #[error("many data frames were empty")]
    EmptyData,
    #[error("many streams had to be reset")]
    Mistakes,
    #[error("a header block did not arrive within MESH_PROXY_HTTP_HEAD_TIMEOUT")]
    HeadTime,
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

/// Settings are answered, and may make the library look at every stream.
const SETTINGS_COST: u32 = 10;

/// Pings are answered.
const PING_COST: u32 = 2;

/// A stream earns one, so that half of all streams may be reset for ever.
const RESET_COST: u32 = 2;

/// h2 ends a connection with the 101st empty data frame of its life. A mesh's connections live for days and carry what applications send, so before that happens
/// to an honest one it is replaced in peace.
const RETIRED_BY_EMPTY_DATA: u32 = 50;

/// How long a budget takes to be refilled by time alone.
const REFILL: Duration = Duration::from_secs(10);

impl Account {
    pub(super) fn new(role: Role, limits: &Http2Limits) -> Self {
        let now = Instant::now();
        Self {
            role,
            // Whole crowds of messages are acknowledged at once, when the other side gets to them.
            idle_frames: Budget::new(limits.idle_frames, u32::MAX, now),
            resets: Budget::new(limits.resets, limits.resets, now),
            last_stream: 0,
            empty_data: 0,
            our_resets: 0,
            // h2 ends the connection at the limit itself, however long it took to get there.
            max_our_resets: limits.mistakes / 2,
            retired: false,
            told: false,
        }
    }

    pub(super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// The other side has sent a frame.
    pub(super) fn received(&mut self, head: &Head) -> Verdict {
        match head.kind {
            Head::HEADERS => {
                if head.stream > self.last_stream {
                    self.last_stream = head.stream;
                    self.resets.earn(1);
                }
                self.idle_frames.earn(EARNED);
                Verdict::GoOn
            }
            Head::DATA if head.length > 0 => {
                self.idle_frames.earn(EARNED);
                Verdict::GoOn
            }
            Head::DATA if head.ends_stream() => Verdict::GoOn,
            Head::DATA => {
                self.empty_data += 1;
                match self.idle(1) {
                    Verdict::GoOn if self.empty_data >= RETIRED_BY_EMPTY_DATA => {
                        self.retire(Violation::EmptyData)
                    }
                    verdict => verdict,
                }
            }
            // A server that resets streams answers requests of ours.
            Head::RST_STREAM if self.role == Role::Client => Verdict::GoOn,
            Head::RST_STREAM => self.reset(),
            Head::SETTINGS if !head.is_ack() => self.idle(SETTINGS_COST),
            Head::PING if !head.is_ack() => self.idle(PING_COST),
            // The library counts continuations.
            Head::CONTINUATION if head.length > 0 => Verdict::GoOn,
            _ => self.idle(1),
        }
    }

    /// We have sent a frame.
    pub(super) fn sent(&mut self, head: &Head) -> Verdict {
        match head.kind {
            Head::HEADERS => self.idle_frames.earn(EARNED),
            Head::DATA if head.length > 0 => self.idle_frames.earn(EARNED),
            Head::GOAWAY => self.told = true,
            // Answered by the other side, or acknowledged.
            Head::SETTINGS | Head::PING if !head.is_ack() => self.idle_frames.earn(1),
            Head::RST_STREAM => {
                self.our_resets += 1;
                if self.our_resets >= self.max_our_resets {
                    return self.retire(Violation::Mistakes);
                }
            }
            _ => {}
        }
        Verdict::GoOn
    }

    fn idle(&mut self, cost: u32) -> Verdict {
        match self.idle_frames.spend(cost, Instant::now) {
            true => Verdict::GoOn,
            false => Verdict::Cut(Violation::IdleFrames),
        }
    }

    /// Whole crowds of honest requests are cancelled at times, when a server is overloaded. They lose nothing when the connection is replaced in peace; who goes
    /// on after that is not honest.
    fn reset(&mut self) -> Verdict {
        if self.resets.spend(RESET_COST, Instant::now) {
            return Verdict::GoOn;
        }
        if self.told {
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

impl Violation {
    /// Value of the `reason` label.
    pub(in crate::http) fn label(self) -> &'static str {
        match self {
            Self::IdleFrames => "idle_frames",
            Self::Resets => "resets",
            Self::EmptyData => "empty_data",
            Self::Mistakes => "mistakes",
            Self::HeadTime => "head_time",
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
    fn spend(&mut self, cost: u32, now: impl FnOnce() -> Instant) -> bool {
        if self.left < cost {
            let now = now();
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
