//! Counts what the servers of both protocols reject.

use super::Protocol;
use crate::telemetry::labels::Direction;
use crate::telemetry::refused::RefusedFamily;

/// Counts the rejected connections and requests of one listener's clients.
#[derive(Clone, Debug)]
pub(super) struct RefusalCounter {
    direction: Direction,
    family: RefusedFamily,
}

impl RefusalCounter {
    pub(super) fn new(direction: Direction, family: RefusedFamily) -> Self {
        Self { direction, family }
    }

    pub(super) fn count(&self, protocol: Protocol, reason: &'static str) {
        self.family.http(self.direction, protocol.as_str(), reason);
    }
}
