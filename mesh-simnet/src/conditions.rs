//! [`Conditions`]: how a network treats its connections.

use std::ops::RangeInclusive;

use rand::rngs::SmallRng;
use rand::{Rng, RngExt as _};

/// How a network treats its connections. Every choice within them comes from the network's seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// How bytes are divided.
    pub pieces: Pieces,
    /// Milliseconds until a handshake, or the first piece after a pause, arrives.
    pub delay: RangeInclusive<u64>,
    /// Bytes that a socket accepts beyond the ones that have arrived at the peer.
    pub send_capacity: usize,
    /// Bytes that a socket holds for its application.
    pub receive_capacity: usize,
}

/// How bytes are divided on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// As large as the receiver's buffer permits.
    Whole,
    /// One byte up to this many.
    UpTo(usize),
    /// Any of the above for each piece anew, and single bytes.
    Mixed,
}

impl Conditions {
    /// Everything arrives in one piece and at once.
    pub const IDEAL: Self = Self {
        pieces: Pieces::Whole,
        delay: 0..=0,
        send_capacity: 1 << 20,
        receive_capacity: 1 << 20,
    };

    /// Draws conditions. Half of them are harmless in all but one respect, so that a failure tells
    /// which one it needs.
    pub fn draw(random: &mut impl Rng) -> Self {
        let mut drawn = Self::IDEAL;
        let all = random.random_range(0..2) == 0;
        let one = random.random_range(0..3);
        if all || one == 0 {
            drawn.pieces = match random.random_range(0..4) {
                0 => Pieces::UpTo(1),
                1 => Pieces::UpTo(64),
                2 => Pieces::UpTo(4096),
                _ => Pieces::Mixed,
            };
        }
        if all || one == 1 {
            drawn.delay = match random.random_range(0..3) {
                0 => 0..=1,
                1 => 0..=20,
                _ => 5..=200,
            };
        }
        if all || one == 2 {
            drawn.send_capacity = 1 << random.random_range(8..20);
            drawn.receive_capacity = 1 << random.random_range(8..20);
        }
        drawn
    }

    /// The size of the next piece, at most `available`, which is not zero.
    pub(crate) fn piece(&self, available: usize, random: &mut SmallRng) -> usize {
        let largest = match self.pieces {
            Pieces::Whole => return available,
            Pieces::UpTo(largest) => largest,
            Pieces::Mixed => match random.random_range(0..4) {
                0 => return available,
                1 => return 1,
                2 => 64,
                _ => 4096,
            },
        };
        random.random_range(1..=available.min(largest))
    }

    /// Milliseconds between two pieces. Mostly none, so that a connection of small pieces is not
    /// slower than the time limits on it.
    pub(crate) fn gap(&self, random: &mut SmallRng) -> u64 {
        u64::from(*self.delay.end() > 0 && random.random_range(0..32) == 0)
    }

    pub(crate) fn delay(&self, random: &mut SmallRng) -> u64 {
        random.random_range(self.delay.clone())
    }
}
