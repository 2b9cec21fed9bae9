//! Termination signals. The first one starts the drain; the daemon decides about a second one.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM (the kubelet) and SIGINT (a terminal). Create it before the daemon reports
/// that it has started, so that an early signal does not trigger the default action.
#[derive(Debug)]
pub struct Termination {
    term: Signal,
    interrupt: Signal,
}

impl Termination {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
