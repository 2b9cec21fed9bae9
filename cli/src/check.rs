//! The check framework: what was seen, judged by categories of checks, each with one outcome, a
//! hint and a section of docs/operations/checks.md.
//!
//! [`gather`] asks cluster or node once, concurrently, and makes [`Facts`]. Every check is a pure
//! function of them, so that each fault can be planted in a test as data. Some checks end their
//! category or the run when they fail. Warnings leave the exit code alone.
//!
//! One fault makes many rows fail. Each check names the checks whose failure explains its own
//! ([`Check::explained_by`]), and [`trace`] follows these to the root cause, so that a reader has
//! one thing to repair.

pub(crate) mod certificate;
pub(crate) mod explain;
pub(crate) mod facts;
pub(crate) mod gather;

mod agents;
mod causes;
mod control_plane;
mod data_plane;
mod identity;
mod kubernetes;
mod machine;
mod policy;
mod repair;
mod repairs;
mod setup;
mod trace;
mod versions;
mod webhook;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;

pub(crate) use self::facts::{Facts, Mode, Place};
use crate::output::{count, style::Mark};

/// Where every hint points.
pub(crate) const GUIDE: &str = "docs/operations/checks.md";

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In order; the text says what was seen where that is worth knowing.
    Ok(String),
    /// Works, but an operator should look.
    Warn(Vec<Line>),
    Fail(Vec<Line>),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    text: String,
    /// What puts it right, with every name filled in, where the check knows better than its advice.
    fix: Option<String>,
    /// The check knows that no other failure explains this one.
    own: bool,
}

/// The outcome, or why it could not be looked at.
pub(crate) type Verdict = Result<Outcome, String>;

pub(crate) struct Check {
    /// The section of the guide, and the check's name in JSON. Linkerd's where Linkerd has the
    /// check.
    pub(crate) anchor: &'static str,
    pub(crate) description: &'static str,
    /// The first thing to do, with the command; `{ns}` is the control plane's namespace,
    /// `{upgrade}` the command that upgrades.
    pub(crate) advice: &'static str,
    /// The checks whose failure explains this one's, those first that explain it best.
    pub(crate) explained_by: &'static [&'static [&'static str]],
    /// What is not worth looking at any more when it fails, because it would only repeat the
    /// failure.
    pub(crate) ends: Ends,
    /// Where it has something to look at.
    pub(crate) on: On,
    pub(crate) look: fn(&Facts) -> Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Nothing,
    Category,
    Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Anywhere,
    Cluster,
    Machine,
}

pub(crate) struct Category {
    /// As Linkerd calls it where Linkerd has it.
    pub(crate) name: &'static str,
    /// Whether there is anything to look at, given what was asked for.
    pub(crate) applies: fn(&Facts) -> bool,
    pub(crate) checks: &'static [Check],
}

/// Every check there is, in the order it is shown.
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
];

/// A category that was looked at, as JSON shows it.
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
    /// `success`, `warning` or `error`, as Linkerd's JSON has them.
    pub(crate) result: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) detail: Vec<String>,
    /// The section of the guide.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) hint: String,
    /// Empty for a consequence: the root cause has the advice.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) advice: String,
    /// The check that found the root cause, where this is a consequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<&'static str>,
    /// The advice, one command or sentence each.
    #[serde(skip)]
    pub(crate) fixes: Vec<String>,
    /// No other failure explains it.
    #[serde(skip)]
    own: bool,
    #[serde(skip)]
    pub(crate) mark: Mark,
}

/// Judges the facts, category by category, until one fails that ends the run.
pub(crate) fn judge(facts: &Facts) -> Vec<CategoryReport> {
    let mut reports = Vec::new();
    // What keeps several checks from looking is said by the first of them: one thing is wrong, not
    // ten.
    let mut unseen = BTreeSet::new();
    for category in CATEGORIES {
        if !(category.applies)(facts) {
            continue;
        }
        let mut report = CategoryReport {
            category_name: category.name,
            checks: Vec::new(),
        };
        let mut ends = Ends::Nothing;
        for check in category.checks.iter().filter(|check| check.on.is(facts)) {
            let verdict = (check.look)(facts);
            if let Err(reason) = &verdict
                && !unseen.insert(reason.clone())
            {
                continue;
            }
            let looked = Report::new(check, verdict, facts);
            if looked.mark == Mark::Fail {
                ends = check.ends;
            }
            report.checks.push(looked);
            if ends != Ends::Nothing {
                break;
            }
        }
        if !report.checks.is_empty() {
            reports.push(report);
        }
        if ends == Ends::Run {
            break;
        }
    }
    trace::causes(&mut reports);
    reports
}

pub(crate) fn success(reports: &[CategoryReport]) -> bool {
    reports
        .iter()
        .flat_map(|category| &category.checks)
        .all(|report| report.mark != Mark::Fail)
}

/// What a daemon answered may have several lines; a row of the report has one.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("; ")
}

impl On {
    fn is(self, facts: &Facts) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Cluster => facts.place == Place::Cluster,
            Self::Machine => facts.place != Place::Cluster,
        }
    }
}

impl Report {
    fn new(check: &Check, verdict: Verdict, facts: &Facts) -> Self {
        let outcome = verdict.unwrap_or_else(Outcome::fail);
        let (mark, result, lines) = match outcome {
            Outcome::Ok(detail) if detail.is_empty() => (Mark::Ok, "success", Vec::new()),
            Outcome::Ok(detail) => (Mark::Ok, "success", vec![Line::from(detail)]),
            Outcome::Warn(lines) => (Mark::Warn, "warning", lines),
            Outcome::Fail(lines) => (Mark::Fail, "error", lines),
        };
        let fixes = match mark {
            Mark::Ok => Vec::new(),
            _ => fixes(check, &lines, facts),
        };
        Self {
            name: check.anchor,
            description: check.description,
            result,
            own: lines.iter().any(|line| line.own),
            detail: match mark {
                Mark::Ok => lines.into_iter().map(|line| line.text).collect(),
                _ => lines.iter().map(|line| one_line(&line.text)).collect(),
            },
            hint: match mark {
                Mark::Ok => String::new(),
                _ => format!("{GUIDE}#{}", check.anchor),
            },
            advice: fixes.join("; "),
            cause: None,
            fixes,
            mark,
        }
    }
}

#[cfg(test)]
impl Report {
    /// For tests of what is shown.
    pub(crate) fn of_test(
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
            own: false,
            mark,
        }
    }
}

/// So many different repairs are enough for a row; where there are more, they are of one kind.
const FIXES: usize = 3;

/// What each line says of its own repair, each once; the check's advice where none does.
fn fixes(check: &Check, lines: &[Line], facts: &Facts) -> Vec<String> {
    let mut fixes: Vec<String> = Vec::new();
    for fix in lines.iter().filter_map(|line| line.fix.as_ref()) {
        let fix = repair::fill(fix, facts);
        if fixes.len() < FIXES && !fixes.contains(&fix) {
            fixes.push(fix);
        }
    }
    if fixes.is_empty() {
        fixes.push(repair::fill(check.advice, facts));
    }
    fixes
}

impl Line {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            fix: None,
            own: false,
        }
    }

    /// With the command that puts it right.
    pub(crate) fn fixed_by(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }

    /// Whatever else fails, this is a fault of its own.
    pub(crate) fn own(self) -> Self {
        Self { own: true, ..self }
    }
}

impl<T: Into<String>> From<T> for Line {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl Outcome {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self::Ok(text.into())
    }

    pub(crate) fn warn(line: impl Into<Line>) -> Self {
        Self::Warn(vec![line.into()])
    }

    pub(crate) fn fail(line: impl Into<Line>) -> Self {
        Self::Fail(vec![line.into()])
    }

    /// A failure when anything is wrong.
    pub(crate) fn fail_if<L: Into<Line>>(wrong: Vec<L>, ok: impl Into<String>) -> Self {
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Fail(wrong.into_iter().map(Into::into).collect())
        }
    }

    /// A warning when anything is wrong.
    pub(crate) fn warn_if<L: Into<Line>>(wrong: Vec<L>, ok: impl Into<String>) -> Self {
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Warn(wrong.into_iter().map(Into::into).collect())
        }
    }
}
