//! Shows the progress of a long step: its title, elapsed time and last line of output. On a
//! terminal one line is redrawn; elsewhere (CI logs) a line is printed periodically. `command`
//! updates it.

use std::env;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Redrawing more often than a reader can follow only costs time.
const REDRAW: Duration = Duration::from_millis(100);
/// In a log: often enough to see that the step lives, seldom enough to leave the log readable.
const REPORT: Duration = Duration::from_secs(30);
const CLEAR_LINE: &str = "\r\x1b[2K";
/// Whether a step redraws its line. Of steps at the same time only one does; the others print
/// theirs periodically.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);
/// Shorter than the narrowest usual terminal, since a wrapped line cannot be redrawn.
const WIDTH: usize = 79;

pub struct Progress {
    title: String,
    started: Instant,
    last_line: String,
    last_shown: Instant,
    terminal: bool,
    draws: bool,
}

impl Progress {
    pub fn new(title: &str) -> Self {
        let now = Instant::now();
        let dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
        let terminal = std::io::stderr().is_terminal() && !dumb;
        Self {
            title: title.to_owned(),
            started: now,
            last_line: String::new(),
            last_shown: now,
            terminal,
            draws: terminal && !IS_DRAWN.swap(true, Ordering::Relaxed),
        }
    }

    /// Records the last line of the step's output.
    pub fn line(&mut self, line: &str) {
        let line = line.trim();
        if !line.is_empty() {
            line.clone_into(&mut self.last_line);
        }
    }

    /// Shows the state when it is time to; called whenever something happened, and at least every
    /// `REDRAW`.
    pub fn tick(&mut self) {
        let period = if self.draws { REDRAW } else { REPORT };
        if self.last_shown.elapsed() < period {
            return;
        }
        self.last_shown = Instant::now();
        let text = state(&self.title, self.started.elapsed(), &self.last_line);
        let clear = if self.terminal { CLEAR_LINE } else { "" };
        let end = if self.draws { "" } else { "\n" };
        eprint!("{clear}{text}{end}");
        flush();
    }

    /// Clears the line and returns the duration of the step.
    pub fn finish(self) -> Duration {
        self.started.elapsed()
    }

    /// How long a caller may wait for the next line before it must call `tick`.
    pub(crate) const fn patience() -> Duration {
        REDRAW
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.draws {
            IS_DRAWN.store(false, Ordering::Relaxed);
            eprint!("{CLEAR_LINE}");
            flush();
        }
    }
}

fn flush() {
    // A closed terminal must not stop the work.
    std::io::stderr().flush().ok();
}

fn state(title: &str, elapsed: Duration, last_line: &str) -> String {
    let text = format!("    {title}: {} s  {last_line}", elapsed.as_secs());
    text.chars()
        .filter(|c| !c.is_control())
        .take(WIDTH)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_fits_on_one_line() {
        let text = state("clippy", Duration::from_secs(61), &"Checking ".repeat(20));
        assert!(text.starts_with("    clippy: 61 s  Checking"));
        assert_eq!(text.chars().count(), WIDTH);
    }

    #[test]
    fn control_characters_are_removed_from_progress() {
        assert_eq!(state("apt", Duration::ZERO, "a\r\x1bb"), "    apt: 0 s  ab");
    }
}
