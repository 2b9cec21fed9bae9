//! The whole terminal, for commands with a full-screen view. The terminal is restored when the
//! screen is dropped, and before the message of a panic is printed.

use crossterm::event::EventStream;
use ratatui::{DefaultTerminal, Frame};

use crate::exit::Failure;

pub(crate) struct Screen {
    terminal: DefaultTerminal,
    /// Keys, and changes of the size.
    pub(crate) input: EventStream,
}

impl Screen {
    /// `instead` is the command for output that is not a terminal.
    pub(crate) fn open(instead: &str) -> anyhow::Result<Self> {
        if !super::is_terminal() {
            let problem = format!("standard output is not a terminal: use {instead}");
            return Err(Failure::Input(problem).into());
        }
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self {
                terminal,
                input: EventStream::new(),
            }),
            Err(error) => {
                // A part of it may have succeeded.
                ratatui::restore();
                Err(error.into())
            }
        }
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        self.terminal.draw(draw)?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
