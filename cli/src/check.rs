//! The check framework: categories of checks evaluate facts about the mesh. Each check has one
//! outcome, a hint and a section of docs/operations/checks.md. [`gather`] queries the cluster or
//! node once, concurrently, and returns [`Facts`]. Every check is a pure function of them, so that
//! tests can inject each fault as data. The failure of some checks skips the rest of their category
//! or of the run. Warnings do not change the exit code. One fault may fail many rows. Each check
//! names the checks whose failure explains its own ([`Check::explained_by`]); [`root_cause`]
//! follows these to the root cause, so that a reader has one thing to repair.

pub(crate) mod certificate;
pub(crate) mod explain;
pub(crate) mod facts;
pub(crate) mod gather;

mod admission;
mod agents;
mod analysis;
mod causes;
mod control_plane;
mod data_plane;
mod fix;
mod identity;
mod images;
mod kubernetes;
mod machine;
mod network_policies;
mod policy;
mod repairs;
mod root_cause;
mod selected;
mod serving_certificate;
mod setup;
mod system;
mod versions;
mod viz;
mod webhook;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::output::count;
use crate::output::style::Mark;

pub(crate) use self::facts::{Environment, Facts, Mode};

/// The document that every hint refers to.
pub(crate) const GUIDE: &str = "docs/operations/checks.md";

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No problem; the text may have details, such as a version.
    Ok(String),
    /// The mesh works, but an operator should look into it.
    Warn(Vec<Finding>),
    Fail(Vec<Finding>),
}

/// One problem that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    text: String,
    /// A repair for this problem with all names filled in; replaces the advice of the check.
    fix: Option<String>,
    /// No failure of another check explains this problem.
    is_root_cause: bool,
}

/// The outcome of a check, or why its facts are unknown.
pub(crate) type CheckResult = Result<Outcome, String>;

pub(crate) struct Check {
    /// The section of the guide and the name in JSON. Checks of Linkerd keep their IDs.
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    /// The first step of a repair, with the command. `{ns}` is replaced by the control plane's
    /// namespace, `{viz}` by the viz extension's, `{upgrade}` by the upgrade command.
    pub(crate) advice: &'static str,
    /// The checks whose failure explains the failure of this one; the best explanation comes first.
    pub(crate) explained_by: &'static [&'static [&'static str]],
    /// Which checks are skipped after a failure, because they would only repeat it.
    pub(crate) on_failure: OnFailure,
    /// The environments that the check applies to.
    pub(crate) applies_to: AppliesTo,
    pub(crate) run: fn(&Facts) -> CheckResult,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnFailure {
    Continue,
    SkipCategory,
    Abort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppliesTo {
    Everywhere,
    Cluster,
    Machine,
}

pub(crate) struct Category {
    /// Categories of Linkerd keep their names.
    pub(crate) name: &'static str,
    /// Whether the category applies to the environment and the mode.
    pub(crate) applies: fn(&Facts) -> bool,
    pub(crate) checks: &'static [Check],
}

/// All checks, in the order of the output.
pub(crate) const CATEGORIES: &[Category] = &[
    machine::CATEGORY,
    kubernetes::API,
    kubernetes::VERSION,
    kubernetes::GATEWAY_API,
    setup::CATEGORY,
    kubernetes::CRD,
    control_plane::EXISTENCE,
    control_plane::CONFIG,
    identity::CATEGORY,
    webhook::CATEGORY,
    agents::CATEGORY,
    repairs::CATEGORY,
    control_plane::PROXY,
    versions::CATEGORY,
    data_plane::CATEGORY,
    policy::CATEGORY,
    control_plane::HA,
    viz::EXTENSION,
    viz::DATA_PLANE,
];

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
    is_root_cause: bool,
    #[serde(skip)]
    pub(crate) mark: Mark,
}

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

/// Returns the rows of all categories.
pub(crate) fn rows(reports: &[CategoryReport]) -> impl Iterator<Item = &Report> {
    reports.iter().flat_map(|category| &category.checks)
}

pub(crate) fn success(reports: &[CategoryReport]) -> bool {
    rows(reports).all(|report| report.mark != Mark::Fail)
}

/// Joins the lines of a daemon's response, because a row of the report has one line.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("; ")
}

impl Check {
    /// Creates a check of a cluster. No other check explains its failure, and the next ones run
    /// after it.
    pub(crate) const fn new(
        id: &'static str,
        description: &'static str,
        advice: &'static str,
        run: fn(&Facts) -> CheckResult,
    ) -> Self {
        Self {
            id,
            description,
            advice,
            explained_by: &[],
            on_failure: OnFailure::Continue,
            applies_to: AppliesTo::Cluster,
            run,
        }
    }

    const fn explained_by(self, explained_by: &'static [&'static [&'static str]]) -> Self {
        Self {
            explained_by,
            ..self
        }
    }

    const fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    const fn applies_to(self, applies_to: AppliesTo) -> Self {
        Self { applies_to, ..self }
    }
}

impl AppliesTo {
    fn matches(self, facts: &Facts) -> bool {
        match self {
            Self::Everywhere => true,
            Self::Cluster => facts.environment == Environment::Cluster,
            Self::Machine => facts.environment != Environment::Cluster,
        }
    }
}

impl Report {
    fn new(check: &Check, result: CheckResult, facts: &Facts) -> Self {
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
    fn skipped(check: &Check, cause: &'static str, reason: String) -> Self {
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

impl Finding {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            fix: None,
            is_root_cause: false,
        }
    }

    /// Adds the command that repairs the problem.
    pub(crate) fn with_fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }

    /// Marks the problem as a root cause, whatever other checks report.
    pub(crate) fn into_root_cause(self) -> Self {
        Self {
            is_root_cause: true,
            ..self
        }
    }
}

impl<T: Into<String>> From<T> for Finding {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl Outcome {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self::Ok(text.into())
    }

    pub(crate) fn warn(line: impl Into<Finding>) -> Self {
        Self::Warn(vec![line.into()])
    }

    pub(crate) fn fail(line: impl Into<Finding>) -> Self {
        Self::Fail(vec![line.into()])
    }

    /// Returns a failure if there are any findings.
    pub(crate) fn fail_if(
        wrong: impl IntoIterator<Item: Into<Finding>>,
        ok: impl Into<String>,
    ) -> Self {
        let wrong: Vec<Finding> = wrong.into_iter().map(Into::into).collect();
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Fail(wrong)
        }
    }

    /// Returns a warning if there are any findings.
    pub(crate) fn warn_if(
        wrong: impl IntoIterator<Item: Into<Finding>>,
        ok: impl Into<String>,
    ) -> Self {
        Self::fail_if(wrong, ok).into_warning()
    }

    /// Turns a failure into a warning.
    pub(crate) fn into_warning(self) -> Self {
        match self {
            Self::Fail(findings) => Self::Warn(findings),
            other => other,
        }
    }
}
