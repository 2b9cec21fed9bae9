//! Passing a reset on: the connection is closed with RST once the peer has acknowledged all bytes
//! sent before.
//!
//! SO_LINGER with a time of zero makes the kernel send RST on close, and discards its send queue:
//! without waiting, the peer would lose bytes that it receives without a proxy. The kernel does not
//! tell when the queue becomes empty, so TCP_INFO is read by a timer whose period doubles from 1 ms
//! to 50 ms: about a hundred system calls at most, within [`RESET_TIME`].

use std::time::Duration;

use tokio::time::sleep;

/// How long a reset waits for the acknowledgement of earlier bytes. A peer that reads nothing for
/// so long loses them.
pub(crate) const RESET_TIME: Duration = Duration::from_secs(5);

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Waits until `is_acknowledged`, which is asked often at first and then rarely.
pub(crate) async fn until_acknowledged(is_acknowledged: impl Fn() -> bool) {
    let mut pause = FIRST_PAUSE;
    while !is_acknowledged() {
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
