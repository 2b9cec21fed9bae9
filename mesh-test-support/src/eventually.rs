//! Waits for what another process or task brings about and does not announce.

use std::thread;
use std::time::{Duration, Instant};

/// A state that is not reached within this time is never reached.
pub const TIMEOUT: Duration = Duration::from_mins(3);

/// Between two attempts.
const INTERVAL: Duration = Duration::from_millis(20);

/// Attempts until there is a value.
///
/// # Panics
///
/// There is none within [`TIMEOUT`].
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        thread::park_timeout(INTERVAL);
    }
}

/// The same for attempts that wait themselves, on a runtime whose clock is not paused.
///
/// # Panics
///
/// There is no value within [`TIMEOUT`].
pub async fn eventually_async<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    match tokio::time::timeout(TIMEOUT, attempts).await {
        Ok(value) => value,
        Err(_elapsed) => panic!("{what}: not within {TIMEOUT:?}"),
    }
}
