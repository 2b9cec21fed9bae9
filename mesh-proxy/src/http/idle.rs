//! Ends accepted connections on which nothing happens. Called by the servers of both protocols.

use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;

/// Ready when nothing has `happened` for `period`, at the latest after twice that; never when there
/// is no period. `happened` counts what keeps the connection in use. One timer for the life of a
/// connection: it is looked at only while the connection waits, and no request touches it.
pub(super) async fn idle(period: Option<Duration>, happened: impl Fn() -> u32) {
    let Some(period) = period else {
        return pending().await;
    };
    loop {
        let seen = happened();
        sleep(period).await;
        if happened() == seen {
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
    async fn rings_after_a_period_in_which_nothing_happened() {
        let happened = Cell::new(0);
        let start = Instant::now();
        let waits = idle(Some(Duration::from_secs(60)), || happened.get());
        let works = async {
            advance(Duration::from_secs(59)).await;
            happened.set(1);
        };
        tokio::join!(waits, works);
        assert_eq!(start.elapsed().as_secs(), 120);
    }
}
