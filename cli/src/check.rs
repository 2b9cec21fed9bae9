//! The check framework: what was seen, judged by categories of checks, each with one outcome, a hint and a section of docs/operations/checks.md.
//!
//! [`gather`] asks cluster or node once, concurrently, and makes [`Facts`]. Every check is a pure function of them, so that each fault can be planted in a
//! test as data. Some checks end their category or the run when they fail. Warnings leave the exit code alone.

pub(crate) mod certificate;
pub(crate) mod facts;
pub(crate) mod gather;

mod agents;
mod control_plane;
mod data_plane;
mod identity;
mod kubernetes;
mod machine;
mod policy;
mod setup;
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

/// What one check found. Each line of a warning or failure names one thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In order; the text says what was seen where that is worth knowing.
    Ok(String),
    /// Works, but somebody should look.
    Warn(Vec<String>),
    Fail(Vec<String>),
}

/// The outcome, or why it could not be looked at.
pub(crate) type Verdict = Result<Outcome, String>;

pub(crate) struct Check {
    /// The section of the guide, and the check's name in JSON. Linkerd's where Linkerd has the check.
    pub(crate) anchor: &'static str,
    pub(crate) description: &'static str,
    /// The first thing to do, with the command; `{ns}` is the control plane's namespace.
    pub(crate) advice: &'static str,
    /// What is not worth looking at any more when it fails, because it would only repeat the failure.
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
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) advice: String,
    #[serde(skip)]
    pub(crate) mark: Mark,
}

/// Judges the facts, category by category, until one fails that ends the run.
pub(crate) fn judge(facts: &Facts) -> Vec<CategoryReport> {
    let mut reports = Vec::new();
    // What keeps several checks from looking is said by the first of them: one thing is wrong, not ten.
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
    reports
}

pub(crate) fn success(reports: &[CategoryReport]) -> bool {
    reports
        .iter()
        .flat_map(|category| &category.checks)
        .all(|report| report.mark != Mark::Fail)
}

/// What a daemon answered may have several lines; a row of the report has one.
fn one_line_each(detail: Vec<String>) -> Vec<String> {
    let one_line = |text: String| -> String {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.join("; ")
    };
    detail.into_iter().map(one_line).collect()
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
        let outcome = verdict.unwrap_or_else(|unseen| Outcome::Fail(vec![unseen]));
        let (mark, result, detail) = match outcome {
            Outcome::Ok(detail) if detail.is_empty() => (Mark::Ok, "success", Vec::new()),
            Outcome::Ok(detail) => (Mark::Ok, "success", vec![detail]),
            Outcome::Warn(detail) => (Mark::Warn, "warning", one_line_each(detail)),
            Outcome::Fail(detail) => (Mark::Fail, "error", one_line_each(detail)),
        };
        let (hint, advice) = match mark {
            Mark::Ok => (String::new(), String::new()),
            _ => (
                format!("{GUIDE}#{}", check.anchor),
                check.advice.replace("{ns}", &facts.control_namespace),
            ),
        };
        Self {
            name: check.anchor,
            description: check.description,
            result,
            detail,
            hint,
            advice,
            mark,
        }
    }
}

impl Outcome {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Self::Ok(text.into())
    }

    pub(crate) fn warn(text: impl Into<String>) -> Self {
        Self::Warn(vec![text.into()])
    }

    pub(crate) fn fail(text: impl Into<String>) -> Self {
        Self::Fail(vec![text.into()])
    }

    /// A failure when anything is wrong.
    pub(crate) fn fail_if(wrong: Vec<String>, ok: impl Into<String>) -> Self {
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Fail(wrong)
        }
    }

    /// A warning when anything is wrong.
    pub(crate) fn warn_if(wrong: Vec<String>, ok: impl Into<String>) -> Self {
        if wrong.is_empty() {
            Self::Ok(ok.into())
        } else {
            Self::Warn(wrong)
        }
    }
}
