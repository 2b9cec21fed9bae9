//! Which failures follow from which: every consequence is led back to its root cause.

use std::collections::BTreeMap;

use super::{CATEGORIES, CategoryReport, Check, Mark};

/// Notes the root cause of every row that is a consequence.
pub(super) fn causes(reports: &mut [CategoryReport]) {
    let looked: BTreeMap<&'static str, (Mark, bool)> = reports
        .iter()
        .flat_map(|category| &category.checks)
        .map(|report| (report.name, (report.mark, report.own)))
        .collect();
    for report in reports
        .iter_mut()
        .flat_map(|category| &mut category.checks)
        .filter(|report| report.mark != Mark::Ok)
    {
        report.cause = root(report.name, &looked);
        if report.cause.is_some() {
            report.advice.clear();
            report.fixes.clear();
        }
    }
}

/// The first failure at the end of the way back; absent where the failure is itself a root cause.
/// Tests hold that no way leads in a circle.
fn root(name: &'static str, looked: &BTreeMap<&'static str, (Mark, bool)>) -> Option<&'static str> {
    let mut at = name;
    while let Some((mark, false)) = looked.get(at) {
        let explained_by = check(at).map_or(&[][..], |check| check.explained_by);
        // What only warns leaves things working, so it explains no failure.
        let explains = |cause: &&&str| match looked.get(**cause) {
            Some((Mark::Fail, _)) => true,
            Some((Mark::Warn, _)) => *mark == Mark::Warn,
            Some((Mark::Ok, _)) | None => false,
        };
        match explained_by.iter().copied().flatten().find(explains) {
            Some(cause) => at = cause,
            None => break,
        }
    }
    (at != name).then_some(at)
}

/// A check may stand in two categories; it is the same.
pub(super) fn check(name: &str) -> Option<&'static Check> {
    let mut all = CATEGORIES.iter().flat_map(|category| category.checks);
    all.find(|check| check.anchor == name)
}
