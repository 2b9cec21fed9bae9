//! Colours and marks. Neither shows an outcome alone.

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    Auto,
    Always,
    Never,
}

pub(crate) const OK: Style = AnsiColor::Green.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const FAIL: Style = AnsiColor::Red.on_default();

pub(crate) fn set_color_choice(color: Color) {
    let choice = match color {
        Color::Auto => anstream::ColorChoice::Auto,
        Color::Always => anstream::ColorChoice::Always,
        Color::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// The outcome of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Ok,
    Warn,
    Fail,
    /// The check did not run.
    Skip,
}

impl Mark {
    /// Returns whether the check found something to repair.
    pub(crate) fn is_problem(self) -> bool {
        matches!(self, Self::Warn | Self::Fail)
    }

    /// Returns Linkerd's mark, or a word where the locale is not UTF-8.
    pub(crate) fn show(self) -> String {
        match self {
            Self::Ok => sign(OK, "√", "ok  "),
            Self::Warn => sign(WARN, "‼", "warn"),
            Self::Fail => sign(FAIL, "×", "fail"),
            Self::Skip => sign(Style::new(), "–", "skip"),
        }
    }
}

/// Returns a sign, or a word of the same width as the others where the locale is not UTF-8.
pub(crate) fn sign(style: Style, sign: &str, word: &str) -> String {
    format!(
        "{style}{}{style:#}",
        if is_utf8_locale() { sign } else { word }
    )
}

/// Follows the C library: the first of these variables that is set and not empty decides.
fn is_utf8_locale() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}
