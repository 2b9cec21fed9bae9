//! Termination signals. The first one starts the drain; the daemon decides about a second one.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
#[cfg(feature = "simulation")]
use tokio::sync::oneshot;

/// Listens for SIGTERM (the kubelet) and SIGINT (a terminal). Create it before the daemon reports
/// that it has started, so that an early signal does not trigger the default action.
#[derive(Debug)]
pub struct Termination(Source);

#[derive(Debug)]
enum Source {
    Signals {
        term: Signal,
        interrupt: Signal,
    },
    #[cfg(feature = "simulation")]
    Simulated(Option<oneshot::Receiver<()>>),
}

impl Termination {
    pub fn listen() -> io::Result<Self> {
        Ok(Self(Source::Signals {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        }))
    }

    /// The signals of a simulated process, which gets SIGTERM when something is sent.
    #[cfg(feature = "simulation")]
    pub fn simulated(term: oneshot::Receiver<()>) -> Self {
        Self(Source::Simulated(Some(term)))
    }

    /// Waits for the next signal and returns its name.
    pub async fn received(&mut self) -> &'static str {
        match &mut self.0 {
            Source::Signals { term, interrupt } => tokio::select! {
                biased;
                _ = term.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            },
            #[cfg(feature = "simulation")]
            Source::Simulated(term) => {
                if let Some(sent) = term {
                    let is_sent = sent.await.is_ok();
                    *term = None;
                    if is_sent {
                        return "SIGTERM";
                    }
                }
                std::future::pending().await
            }
        }
    }
}
