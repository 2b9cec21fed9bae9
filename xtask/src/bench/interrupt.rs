//! Ctrl-C: what runs is ended and removed before xtask ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, bail};

/// Set by Ctrl-C and SIGTERM. The programs of the benchmark get the signal too and end; what waits for them then looks here for the reason.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn watch() -> anyhow::Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Relaxed)).context("handle Ctrl-C")
}

/// An error once the user wants to stop.
pub(crate) fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
