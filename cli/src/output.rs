//! Everything that is printed. Data goes to standard output; progress, hints and errors go to
//! standard error.

pub(crate) mod manifests;
pub(crate) mod progress;
pub(crate) mod style;
pub(crate) mod table;

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

/// The first two fields of every JSON answer, as Kubernetes has them; a change of meaning changes
/// the version.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versioned<'a, T> {
    api_version: &'static str,
    kind: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

const API_VERSION: &str = "meshctl/v1";

/// Text that is complete as it is.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

pub(crate) fn line(line: &str) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

pub(crate) fn json<T: Serialize>(kind: &str, body: &T) -> anyhow::Result<()> {
    let answer = Versioned {
        api_version: API_VERSION,
        kind,
        body,
    };
    line(&serde_json::to_string_pretty(&answer)?)
}

/// Replaces what a watching command showed before.
pub(crate) fn redraw(screen: &str) -> anyhow::Result<()> {
    // Home, the new lines each with the rest of the old one erased, and everything below erased.
    let lines: String = screen
        .lines()
        .map(|line| format!("{line}\x1b[K\n"))
        .collect();
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H{lines}\x1b[J")?;
    out.flush()?;
    Ok(())
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

pub(crate) fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}

/// A sentence beside the answer.
pub(crate) fn note(note: &str) {
    // Standard error is closed: there is nobody to tell.
    let _unread = writeln!(anstream::stderr(), "{note}");
}

pub(crate) fn error(error: &anyhow::Error) {
    let style = style::FAIL;
    let _unread = writeln!(anstream::stderr(), "{style}error:{style:#} {error:#}");
}

/// A reader that has seen enough (`meshctl … | head`) is no failure.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
