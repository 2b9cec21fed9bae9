//! Checks of the mesh: each has one outcome, a hint and a section of docs/operations/checks.md.
//! Every check is a pure function of [`Facts`], so that tests can inject each fault as data.
//! [`framework`] defines categories and checks, each category is a file,
//! [`register`] lists them, and [`evaluate`] returns the rows of their results.
//!
//! The failure of some checks skips the rest of their category or of the run. Warnings do not
//! change the exit code. One fault may fail many rows. Each check names the checks whose failure
//! explains its own; [`root_cause`] follows these to the root cause, so that a reader has one thing
//! to repair.

pub(crate) mod explain;

mod admission;
mod agents;
mod analysis;
mod causes;
mod control_plane;
mod data_plane;
mod expiry;
mod extension_proxies;
mod fix;
mod framework;
mod identity;
mod images;
mod kubernetes;
mod machine;
mod multicluster;
mod network_policies;
mod policy;
mod register;
mod repairs;
mod report;
mod root_cause;
mod selected;
mod serving_certificate;
mod setup;
mod system;
mod units;
mod versions;
mod viz;
mod webhook;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::framework::OnFailure;
use self::register::CATEGORIES;
use self::report::one_line;
use crate::facts::Facts;
use crate::output::style::Mark;

pub(crate) use self::report::{CategoryReport, Report, rows, success};

/// Evaluates the facts, category by category. Checks that cannot run are skipped, with the reason:
/// an earlier check reported the fact that they lack, or ended the category or the run.
pub(crate) fn evaluate(facts: &Facts) -> Vec<CategoryReport> {
    let mut reports = Vec::new();
    // The check that reported each missing fact.
    let mut reported: BTreeMap<String, &'static str> = BTreeMap::new();
    let mut aborted_by: Option<&'static str> = None;
    for category in CATEGORIES {
        if !(category.applies)(facts) {
            continue;
        }
        let mut checks = Vec::new();
        let mut ended_by = aborted_by;
        let applicable = category.checks.iter();
        for check in applicable.filter(|check| check.applies_to.matches(facts)) {
            if let Some(failed) = ended_by {
                checks.push(Report::skipped(check, failed, format!("{failed} failed")));
                continue;
            }
            let result = (check.run)(facts);
            if let Err(reason) = &result {
                if let Some(reporter) = reported.get(reason) {
                    checks.push(Report::skipped(check, reporter, one_line(reason)));
                    continue;
                }
                reported.insert(reason.clone(), check.id);
            }
            let row = Report::new(check, result, facts);
            if row.mark == Mark::Fail && check.on_failure != OnFailure::Continue {
                ended_by = Some(check.id);
                if check.on_failure == OnFailure::Abort {
                    aborted_by = ended_by;
                }
            }
            checks.push(row);
        }
        if !checks.is_empty() {
            reports.push(CategoryReport {
                category_name: category.name,
                checks,
            });
        }
    }
    root_cause::assign(&mut reports);
    reports
}
