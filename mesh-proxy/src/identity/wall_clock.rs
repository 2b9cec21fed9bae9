//! Waiting by the wall clock, which certificates expire by.

use std::time::{Duration, SystemTime};

/// The longest time between two readings of the clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Waits until `due`: in short intervals, because the monotonic clock stops while the machine is
/// suspended.
pub(super) async fn sleep_until(due: SystemTime) {
    loop {
        let left = due.duration_since(SystemTime::now()).unwrap_or_default();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
    }
}
