//! One line on a terminal's standard error that says what is going on, and goes away again.
//!
//! Shown only after a while, and only on a terminal: a log gets a line when the text changes.

use std::{io::Write as _, time::Duration};

use tokio::time::{Instant, MissedTickBehavior};

/// Quicker work needs no excuse.
const PATIENCE: Duration = Duration::from_millis(300);
/// Quick enough to look alive.
const TICK: Duration = Duration::from_millis(120);
const SPINNER: [char; 4] = ['|', '/', '-', '\\'];

pub(crate) struct Progress {
    text: String,
    terminal: bool,
    start: Instant,
    turn: usize,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            terminal: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            start: Instant::now(),
            turn: 0,
            shown: false,
        }
    }

    pub(crate) fn say(&mut self, text: &str) {
        if self.text == text {
            return;
        }
        self.text = text.to_owned();
        if !self.terminal {
            super::note(text);
        }
    }

    /// Does the work and turns meanwhile.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut ticks = tokio::time::interval(TICK);
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
        if !self.terminal || self.start.elapsed() < PATIENCE {
            return;
        }
        self.turn = (self.turn + 1) % SPINNER.len();
        let width = terminal_width().saturating_sub(3);
        let text: String = self.text.chars().take(width).collect();
        self.write(&format!("\r{} {text}\x1b[K", SPINNER[self.turn]));
        self.shown = true;
    }

    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        let mut stderr = std::io::stderr().lock();
        // Whoever closed it does not look.
        let _unread = stderr
            .write_all(text.as_bytes())
            .and_then(|()| stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What shells export, or what terminals have at least.
fn terminal_width() -> usize {
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(80)
}
