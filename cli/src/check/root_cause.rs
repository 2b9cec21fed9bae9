//! Traces failures that are consequences of others back to their root causes.

use std::collections::BTreeMap;

use super::framework::Check;
use super::register;
use super::report::{CategoryReport, rows};
use crate::output::style::Mark;

/// Records the root cause of every row that is a consequence.
pub(super) fn assign(reports: &mut [CategoryReport]) {
    let outcomes: BTreeMap<&'static str, (Mark, bool)> = rows(reports)
        .map(|report| (report.name, (report.mark, report.is_root_cause)))
        .collect();
    let rows = reports.iter_mut().flat_map(|report| &mut report.checks);
    for report in rows.filter(|report| report.mark.is_problem()) {
        report.cause = root_cause(report.name, &outcomes);
        if report.cause.is_some() {
            report.advice.clear();
            report.fixes.clear();
        }
    }
}

/// Returns the root cause of a failure, or `None` if the failure is a root cause itself. A test
/// verifies that the explanations have no cycle.
fn root_cause(
    name: &'static str,
    outcomes: &BTreeMap<&'static str, (Mark, bool)>,
) -> Option<&'static str> {
    let mut current = name;
    while let Some((mark, false)) = outcomes.get(current) {
        let explained_by = check(current).map_or(&[][..], |check| check.explained_by);
        // The mesh still works after a warning, which therefore explains no failure.
        let explains = |cause: &&&str| match outcomes.get(**cause) {
            Some((Mark::Fail, _)) => true,
            Some((Mark::Warn, _)) => *mark == Mark::Warn,
            Some((Mark::Ok | Mark::Skip, _)) | None => false,
        };
        match explained_by.iter().copied().flatten().find(explains) {
            Some(cause) => current = cause,
            None => break,
        }
    }
    (current != name).then_some(current)
}

/// Returns the check with the ID `name`.
pub(super) fn check(name: &str) -> Option<&'static Check> {
    register::checks().find(|check| check.id == name)
}
