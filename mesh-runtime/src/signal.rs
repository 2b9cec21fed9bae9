//! The signals that ask a daemon to stop. The first one starts the drain; what a second one means
//! is the daemon's decision (it can simply wait again).

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for SIGTERM (the kubelet) and SIGINT (a terminal). Create it before the daemon announces
/// itself, so that a signal that arrives early is not lost to the default action.
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

    /// The name of the next signal that arrives.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
