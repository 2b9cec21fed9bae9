//! The time limit that a retry policy sets for each attempt but the last. Set by `attempts`, and
//! applied by `outbound::http::backend`, which knows when an attempt begins.

use std::time::Duration;

use mesh_core::resilience::Timeouts;
use tokio::time::Instant;

use crate::http::body::{ExchangeTimeouts, Repeat, ReplayBody};
use crate::http::client::SendError;

/// The time limit of one attempt.
pub(crate) struct AttemptLimit {
    limit: Duration,
    body: ReplayBody,
}

impl AttemptLimit {
    pub(crate) fn new(limit: Duration, body: ReplayBody) -> Self {
        Self { limit, body }
    }

    /// Returns the time limit of an attempt that begins now. It counts from the end of the request,
    /// which the observer of its body records.
    pub(crate) fn start(&self) -> ExchangeTimeouts {
        let timeouts = Timeouts {
            response: Some(self.limit),
            ..Timeouts::default()
        };
        ExchangeTimeouts::started(timeouts, Instant::now())
    }

    /// Sends an attempt unless the limit expires. It does not apply to a request that cannot be
    /// sent again, because no other attempt would follow.
    pub(crate) async fn apply<T>(
        &self,
        timeouts: &ExchangeTimeouts,
        sending: impl Future<Output = Result<T, SendError>>,
    ) -> Result<T, SendError> {
        tokio::pin!(sending);
        let expired = tokio::select! {
            biased;
            sent = &mut sending => return sent,
            expired = timeouts.expired() => expired,
        };
        if self.body.repeat() == Repeat::Possible {
            Err(SendError::TimedOut(expired))
        } else {
            sending.await
        }
    }
}
