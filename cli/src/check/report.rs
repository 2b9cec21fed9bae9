//! The rows of the report.

use serde::Serialize;

use super::fix;
use super::framework::{Check, CheckResult, Finding, Outcome};
use crate::facts::Facts;
use crate::output::style::Mark;

/// The document that every hint refers to.
pub(crate) const GUIDE: &str = "docs/operations/checks.md";

/// The results of a category, with the fields of Linkerd's JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CategoryReport {
    pub(crate) category_name: &'static str,
    pub(crate) checks: Vec<Report>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// `success`, `warning` or `error`, as in Linkerd's JSON output, or `skipped`.
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) detail: Vec<String>,
    /// The section of the guide.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) hint: String,
    /// Empty for a consequence, because its root cause has the advice.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) advice: String,
    /// The check that found the root cause of this row, or whose failure had this row skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<&'static str>,
    /// The parts of the advice, one command or sentence each.
    #[serde(skip)]
    pub(crate) fixes: Vec<String>,
    /// No failure of another check explains this row.
    #[serde(skip)]
    pub(super) is_root_cause: bool,
    #[serde(skip)]
    pub(crate) mark: Mark,
}

/// Returns the rows of all categories.
pub(crate) fn rows(reports: &[CategoryReport]) -> impl Iterator<Item = &Report> {
    reports.iter().flat_map(|category| &category.checks)
}

pub(crate) fn success(reports: &[CategoryReport]) -> bool {
    rows(reports).all(|report| report.mark != Mark::Fail)
}

/// Joins the lines of a daemon's response, because a row of the report has one line.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("; ")
}

impl Report {
    pub(super) fn new(check: &Check, result: CheckResult, facts: &Facts) -> Self {
        let outcome = result.unwrap_or_else(Outcome::fail);
        let (mark, result, findings) = match outcome {
            Outcome::Ok(detail) if detail.is_empty() => (Mark::Ok, "success", Vec::new()),
            Outcome::Ok(detail) => (Mark::Ok, "success", vec![Finding::from(detail)]),
            Outcome::Warn(findings) => (Mark::Warn, "warning", findings),
            Outcome::Fail(findings) => (Mark::Fail, "error", findings),
        };
        let fixes = match mark {
            Mark::Ok => Vec::new(),
            _ => fixes(check, &findings, facts),
        };
        Self {
            name: check.id,
            description: check.description,
            result,
            is_root_cause: findings.iter().any(|finding| finding.is_root_cause),
            detail: match mark {
                Mark::Ok => findings.into_iter().map(|finding| finding.text).collect(),
                _ => findings
                    .iter()
                    .map(|finding| one_line(&finding.text))
                    .collect(),
            },
            hint: match mark {
                Mark::Ok => String::new(),
                _ => format!("{GUIDE}#{}", check.id),
            },
            advice: fixes.join("; "),
            cause: None,
            fixes,
            mark,
        }
    }

    /// Creates the row of a check that could not run, because of what `cause` reports.
    pub(super) fn skipped(check: &Check, cause: &'static str, reason: String) -> Self {
        Self {
            name: check.id,
            description: check.description,
            result: "skipped",
            detail: vec![reason],
            hint: String::new(),
            advice: String::new(),
            cause: Some(cause),
            fixes: Vec::new(),
            is_root_cause: false,
            mark: Mark::Skip,
        }
    }
}

#[cfg(test)]
impl Report {
    /// Creates a report for tests of the output.
    pub(crate) fn for_test(
        (name, description): (&'static str, &'static str),
        mark: Mark,
        detail: Vec<String>,
        advice: &str,
    ) -> Self {
        Self {
            name,
            description,
            result: "error",
            detail,
            hint: format!("{GUIDE}#{name}"),
            advice: advice.to_owned(),
            cause: None,
            fixes: vec![advice.to_owned()],
            is_root_cause: false,
            mark,
        }
    }
}

/// Maximum number of different repairs in a row; more would be of the same kind.
const MAX_FIXES: usize = 3;

/// Returns the distinct repairs of the findings, or the advice of the check if they have none.
fn fixes(check: &Check, findings: &[Finding], facts: &Facts) -> Vec<String> {
    let mut fixes: Vec<String> = Vec::new();
    for fix in findings.iter().filter_map(|finding| finding.fix.as_ref()) {
        let fix = fix::substitute(fix, facts);
        if fixes.len() < MAX_FIXES && !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() {
        fixes.push(fix::substitute(check.advice, facts));
    }
    fixes
}
