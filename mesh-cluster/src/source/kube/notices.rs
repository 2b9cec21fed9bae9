//! Notices to the watches of all kinds, which wake in the order of waiting. A simulated world
//! repeats this order; the one of [`tokio::sync::watch`] is random (docs/adr/0210).

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Sends notices.
#[derive(Clone, Debug)]
pub(super) struct Sender(broadcast::Sender<()>);

/// Receives notices. Several notices between two waits count once.
#[derive(Debug)]
pub(super) struct Notices(broadcast::Receiver<()>);

/// The sender has been dropped.
#[derive(Debug)]
pub(super) struct Closed;

impl Sender {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(1))
    }

    pub(super) fn subscribe(&self) -> Notices {
        Notices(self.0.subscribe())
    }

    pub(super) fn notify(&self) {
        // Without a receiver, there is no watch of objects.
        let _receivers = self.0.send(());
    }
}

impl Notices {
    /// Waits for a notice that has not been received.
    pub(super) async fn next(&mut self) -> Result<(), Closed> {
        loop {
            match self.0.recv().await {
                Ok(()) => return Ok(()),
                // The last of several is still to be received.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(Closed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn several_notices_count_once() {
        let sender = Sender::new();
        let mut notices = sender.subscribe();
        assert!(notices.next().now_or_never().is_none());
        for _ in 0..3 {
            sender.notify();
        }
        assert!(matches!(notices.next().now_or_never(), Some(Ok(()))));
        assert!(notices.next().now_or_never().is_none());
        drop(sender);
        assert!(matches!(notices.next().now_or_never(), Some(Err(Closed))));
    }
}
