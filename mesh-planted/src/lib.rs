//! Bugs that a simulation plants into the code of the proxy, to show that it finds them.
//!
//! A place that can have a bug asks [`Bug::is_planted`]. Without the feature `simulation` the
//! answer is a constant, and the compiler removes the bug. docs/simulation.md explains how to plant
//! one.

mod bugs;
#[cfg(feature = "simulation")]
mod switch;

pub use self::bugs::{Bug, UnknownBug};
#[cfg(feature = "simulation")]
pub use self::switch::{Planted, plant, planted, rearm};

#[cfg(not(feature = "simulation"))]
impl Bug {
    /// Whether the bug is planted on this thread. Never, without the feature `simulation`.
    #[inline(always)]
    pub const fn is_planted(self) -> bool {
        false
    }

    /// Whether the bug is planted on this thread and strikes for the first time in this world.
    /// Never, without the feature `simulation`.
    #[inline(always)]
    pub const fn strikes_once(self) -> bool {
        false
    }
}
