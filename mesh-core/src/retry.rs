//! The settings of retries that only specify conditions, by an annotation or by a request header.

use std::time::Duration;

use crate::resilience::Backoff;

/// The number of retries, as in Linkerd.
pub const DEFAULT_LIMIT: u16 = 1;

/// Requests with bodies up to this size are retried, as in Linkerd.
pub const DEFAULT_REQUEST_BYTES: usize = 64 * 1024;

/// The back-off between attempts, as in Linkerd.
pub const DEFAULT_BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(25),
    max: Duration::from_millis(250),
    jitter: 1.0,
};
