//! How many connections are accepted.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::memory::Memory;
use crate::telemetry::labels::Direction;
use crate::telemetry::refused::RefusedFamily;

/// The limit of concurrent connections of one direction, for the whole process: three quarters of
/// the file descriptors, or `MESH_PROXY_INBOUND_MAX_CONNECTIONS` and its outbound counterpart. None
/// is accepted while the process uses more than nine tenths of its memory limit.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit {
    direction: Direction,
    permits: Arc<Semaphore>,
}

/// Returns the default limit of connections per direction: three quarters of the file descriptors.
/// The rest is for connections to applications and endpoints (HTTP needs few), and to the control
/// plane. Without a limit, clients of one direction could use all descriptors.
pub(super) fn default_connections(descriptors: usize) -> usize {
    (descriptors / 4 * 3).max(1)
}

impl ConnectionLimit {
    pub(super) fn new(direction: Direction, permits: Semaphore) -> Self {
        Self {
            direction,
            permits: Arc::new(permits),
        }
    }

    #[cfg(feature = "simulation")]
    pub(super) fn available(&self) -> usize {
        self.permits.available_permits()
    }

    /// Returns a permit for one more connection. Counts a connection that exceeds a limit. If
    /// memory is short, `relieve` frees some.
    pub(crate) fn try_acquire(
        &self,
        memory: &Memory,
        refused: &RefusedFamily,
        relieve: impl FnOnce(),
    ) -> Option<OwnedSemaphorePermit> {
        let reason = match self.permits.clone().try_acquire_owned() {
            Ok(_permit) if memory.is_exceeded() => {
                relieve();
                "memory"
            }
            Ok(permit) => return Some(permit),
            Err(_none_left) => "connections",
        };
        refused.connection(self.direction, reason);
        tracing::debug!(
            direction = self.direction.as_str(),
            reason,
            "Closed connection above the limit"
        );
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_direction_cannot_use_all_descriptors() {
        assert_eq!(default_connections(4096), 3072);
    }
}
