//! A progress line on standard error, which is erased when the work is done. A terminal shows it
//! after [`SHOW_DELAY`]. Where standard error is not a terminal, each change of the text is printed
//! as a line.

use std::io::Write as _;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

/// Work that takes less time shows no progress line.
const SHOW_DELAY: Duration = Duration::from_millis(300);
/// Time between two frames of the spinner.
const REDRAW_INTERVAL: Duration = Duration::from_millis(120);
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

pub(crate) struct Progress {
    text: String,
    terminal: bool,
    start: Instant,
    frame: usize,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            terminal: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            start: Instant::now(),
            frame: 0,
            shown: false,
        }
    }

    pub(crate) fn set_text(&mut self, text: &str) {
        if self.text == text {
            return;
        }
        self.text = text.to_owned();
        if !self.terminal {
            super::note(text);
        }
    }

    /// Runs `work` and redraws the line until it is done.
    pub(crate) async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut ticks = tokio::time::interval(REDRAW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = ticks.tick() => self.draw(),
            }
        }
    }

    fn draw(&mut self) {
        if !self.terminal || self.start.elapsed() < SHOW_DELAY {
            return;
        }
        self.frame = (self.frame + 1) % SPINNER.len();
        let width = terminal_width().saturating_sub(3);
        let text: String = self.text.chars().take(width).collect();
        self.write(&format!("\r{} {text}\x1b[K", SPINNER[self.frame]));
        self.shown = true;
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        // Progress is not needed where standard error is closed.
        let _ignored = stderr
            .write_all(text.as_bytes())
            .and_then(|()| stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the width that the shell exports, or the usual minimum of a terminal.
fn terminal_width() -> usize {
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(80)
}
