//! The results of checks, which workers write as JSON.

use serde::{Deserialize, Serialize};

/// The direction of connections that requires a check to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Outbound,
    Inbound,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Passed,
    Failed(String),
    /// The kernel lacks the feature, so there are no connections that could bypass redirection.
    Unsupported(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    pub name: String,
    pub direction: Direction,
    pub outcome: Outcome,
}
