//! Detects idle accepted connections, for the servers of both protocols.

use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;

/// Completes when `activity` has not changed for `period`, at the latest after twice that; never
/// without a period. `activity` counts events on the connection. There is one timer per connection;
/// it is polled only while the connection waits, and no request touches it.
pub(super) async fn wait_until_idle(period: Option<Duration>, activity: impl Fn() -> u32) {
    let Some(period) = period else {
        return pending().await;
    };
    loop {
        let before = activity();
        sleep(period).await;
        if activity() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::{Instant, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn completes_after_a_period_without_activity() {
        let activity = Cell::new(0);
        let start = Instant::now();
        let idle = wait_until_idle(Some(Duration::from_secs(60)), || activity.get());
        let busy = async {
            advance(Duration::from_secs(59)).await;
            activity.set(1);
        };
        tokio::join!(idle, busy);
        assert_eq!(start.elapsed().as_secs(), 120);
    }
}
