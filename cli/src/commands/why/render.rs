//! Renders a report as text: the verdict, then the steps from the client to the application.

use super::report::{Outcome, Report, Step, VerdictOutcome, show_milliseconds};
use crate::output::style::{self, Mark};
use crate::output::{printable, printable_lines};

pub(super) fn text(question: &str, report: &Report) -> String {
    let style = match report.verdict.outcome {
        VerdictOutcome::Admitted => style::OK,
        VerdictOutcome::Bypassed => style::WARN,
        VerdictOutcome::Refused | VerdictOutcome::Failed => style::FAIL,
    };
    let verdict = printable(&report.verdict.text);
    let mut text = format!("{}\n{style}{verdict}{style:#}\n\n", printable(question));
    for (index, step) in report.steps.iter().enumerate() {
        text += &row(index + 1, step);
    }
    text
}

/// Width of the longest name of a step.
const NAME_WIDTH: usize = 9;

/// Details begin below the summary.
const INDENT: &str = "                ";

fn row(number: usize, step: &Step) -> String {
    let took = step.milliseconds.map_or(String::new(), |value| {
        format!("  ({})", show_milliseconds(value))
    });
    let mut text = format!(
        "{number} {} {:NAME_WIDTH$}   {}{took}\n",
        mark(step.outcome),
        step.name,
        printable(&step.summary)
    );
    for detail in &step.details {
        text += &format!("{INDENT}{}\n", printable(detail));
    }
    for hint in &step.hints {
        text += &format!("{INDENT}try:{}\n", hint_lines(hint));
    }
    text
}

/// A hint of several lines is copied into a shell, so that it is not indented.
fn hint_lines(hint: &str) -> String {
    let lines = printable_lines(hint);
    match hint.lines().count() {
        1 => format!(" {lines}"),
        _ => format!("\n{lines}\n"),
    }
}

fn mark(outcome: Outcome) -> String {
    match outcome {
        Outcome::Ok => Mark::Ok.show(),
        Outcome::Notice => Mark::Warn.show(),
        Outcome::Refused => Mark::Fail.show(),
        Outcome::Unknown => style::sign(style::WARN, "?", "?   "),
        Outcome::NotReached => style::sign(anstyle::Style::new(), "-", "-   "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn verdict_is_first_and_steps_are_numbered() {
        let step = |name, outcome, milliseconds| Step {
            name,
            outcome,
            summary: format!("{name} decided"),
            details: vec!["a detail\u{1b}[2J".to_owned()],
            hints: vec!["one line".to_owned(), "cat <<EOF\n  a: b\nEOF".to_owned()],
            milliseconds,
        };
        let report = Report {
            verdict: Verdict {
                outcome: VerdictOutcome::Refused,
                text: "refused by Server shop/web".to_owned(),
                status: Some(403),
                milliseconds: Some(3.0),
            },
            steps: vec![
                step("kernel", Outcome::Ok, Some(0.25)),
                step("discovery", Outcome::NotReached, None),
            ],
        };
        let text = plain(&text("shop/client -> web:80", &report));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            ["shop/client -> web:80", "refused by Server shop/web", ""]
        );
        assert!(lines[3].starts_with("1 ") && lines[3].ends_with("kernel decided  (0.25 ms)"));
        // The terminal obeys no control sequence of a peer.
        assert_eq!(lines[4], format!("{INDENT}a detail\\u{{1b}}[2J"));
        assert_eq!(lines[5], format!("{INDENT}try: one line"));
        assert_eq!(lines[7..10], ["cat <<EOF", "  a: b", "EOF"]);
        assert!(text.contains("\n2 ") && text.contains("discovery decided\n"));
    }
}
