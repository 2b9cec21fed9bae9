//! Everything that has happened in a run: what the oracle judges.

use std::time::Duration;

use mesh_cluster::webhook::AdmissionDecision;

use crate::api::{Claim, Received, Write};
use crate::client::{Observation, State, Target};
use crate::history::Change;

/// Everything that has happened.
#[derive(Debug, Default)]
pub struct Record {
    pub changes: Vec<Change>,
    pub requests: Vec<Received>,
    pub claims: Vec<Claim>,
    pub writes: Vec<Write>,
    pub restorations: Vec<Duration>,
    pub clients: Vec<Seen>,
    /// Pairs of a client and one of a fresh controller, at the end.
    pub ends: Vec<(Target, usize, Option<State>, Option<State>)>,
    pub reviews: Vec<(usize, Option<Reviewed>, Option<Reviewed>)>,
    pub exits: Vec<String>,
    /// When each process was started.
    pub starts: Vec<(usize, Duration)>,
    /// The processes that should be ready at the end and are not.
    pub unready: Vec<usize>,
    /// When the writer of a fresh controller took over, at the end.
    pub taken_over: Duration,
    pub network: u64,
}

/// What a client has seen.
#[derive(Debug)]
pub struct Seen {
    pub target: Target,
    pub process: usize,
    pub observed: Vec<Observation>,
}

/// The decision about an object, or an internal error.
pub type Reviewed = Result<AdmissionDecision, String>;
