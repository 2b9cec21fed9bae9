//! All printing. Data goes to standard output; progress, hints and errors go to standard error.

pub(crate) mod browser;
pub(crate) mod figures;
pub(crate) mod manifests;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod style;
pub(crate) mod table;

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

/// The output format of a command's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

/// A JSON document with the type fields of a Kubernetes object. An incompatible change of a
/// document changes [`API_VERSION`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Versioned<'a, T> {
    api_version: &'static str,
    kind: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

const API_VERSION: &str = "meshctl/v1";

/// Prints text as it is, without adding a line break.
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
    let document = Versioned {
        api_version: API_VERSION,
        kind,
        body,
    };
    line(&serde_json::to_string_pretty(&document)?)
}

/// Prints JSON in a format of Linkerd, which has no type fields.
pub(crate) fn linkerd_json<T: Serialize>(body: &T) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(body)?)
}

/// Replaces the previous screen of a command that runs with `--watch`.
pub(crate) fn redraw(screen: &str) -> anyhow::Result<()> {
    // Move the cursor home, overwrite each line and erase its rest, then erase everything below.
    let lines: String = screen
        .lines()
        .map(|line| format!("{line}\x1b[K\n"))
        .collect();
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H{lines}\x1b[J")?;
    out.flush()?;
    Ok(())
}

/// Escapes control characters, which a peer may have chosen and a terminal would obey.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Escapes control characters in each line.
pub(crate) fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(printable).collect();
    lines.join("\n")
}

/// Formats a count with its noun: `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

pub(crate) fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
}

/// Prints a note for the user to standard error.
pub(crate) fn note(note: &str) {
    // A write to a closed standard error fails; there is no other place to report that.
    let _ignored = writeln!(anstream::stderr(), "{note}");
}

pub(crate) fn error(error: &anyhow::Error) {
    let style = style::FAIL;
    let _ignored = writeln!(anstream::stderr(), "{style}error:{style:#} {error:#}");
}

/// Returns whether the reader closed the pipe early (`meshctl … | head`), which is not a failure.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
