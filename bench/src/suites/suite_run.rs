//! One run of a suite.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::topology::{Position, Topology};

/// A run of a suite in one position.
pub(super) struct Run<'r> {
    pub(super) topology: &'r Topology<'r>,
    pub(super) position: Position,
    /// The suite's application.
    pub(super) target: SocketAddr,
    /// Prefix of the names of processes.
    pub(super) name: String,
    /// The file or the directory of the suite's report.
    pub(super) report: PathBuf,
}
