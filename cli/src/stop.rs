//! The signals that end a command which runs until it is interrupted.

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Stop([Signal; 3]);

impl Stop {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    pub(crate) async fn requested(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
