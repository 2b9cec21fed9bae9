//! What a benchmark measures: systems and rounds, and one workload of them.

use super::SystemUnderTest;
use super::workload::Workload;
use crate::testbed::Testbed;

/// The systems, rounds and durations of a run.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) suts: Vec<SystemUnderTest>,
    pub(super) rounds: usize,
    pub(super) seconds: u32,
    pub(super) quick: bool,
    pub(super) with_noisy: bool,
}

/// The measurement of a workload.
#[derive(Clone, Copy)]
pub(super) struct Run<'r> {
    pub(super) testbed: &'r Testbed,
    pub(super) plan: &'r Plan,
    pub(super) workload: &'static Workload,
}
