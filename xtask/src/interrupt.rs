//! Ctrl-C and SIGTERM: running programs are stopped and their state is removed before xtask exits.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Context;

/// Whether the user has interrupted xtask. Child processes receive the terminal's signal as well
/// and exit; the current step then fails, and its caller checks this flag for the reason.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn watch() -> anyhow::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&interrupted);
        ctrlc::set_handler(move || flag.store(true, Relaxed)).context("handle Ctrl-C")?;
        Ok(Self(interrupted))
    }

    pub fn wanted(&self) -> bool {
        self.0.load(Relaxed)
    }
}
