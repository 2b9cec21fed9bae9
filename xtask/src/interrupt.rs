//! Ctrl-C and SIGTERM: what runs is ended and removed before xtask ends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use anyhow::Context;

/// Whether the user wants to stop. The programs that xtask started get the signal of a terminal too
/// and end; the step at hand then fails, and whoever is told of that looks here for the reason.
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
