//! The check framework: categories of checks, each with one outcome, a hint and an anchor in docs/operations/checks.md.
//!
//! Categories run in order and print as they end. A fatal check that fails ends the run: what follows would only repeat it. Warnings leave the exit code
//! alone.

pub(crate) mod certificates;
pub(crate) mod control_plane;
pub(crate) mod data_plane;
pub(crate) mod machine;
pub(crate) mod node_agent;

use std::{future::Future, pin::Pin};

use serde::Serialize;

use crate::{node::Node, output::style::Mark};

/// Where every hint points.
pub(crate) const GUIDE: &str = "docs/operations/checks.md";

/// What one check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// In order; the text says what was seen where that is worth knowing.
    Ok(String),
    /// Works, but somebody should look.
    Warn(String),
    Fail(String),
}

/// What checks look at. The node is absent where no local node runs: the machine can be checked all the same.
pub(crate) struct Subject {
    pub(crate) node: Option<Node>,
}

pub(crate) type Look<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

pub(crate) struct Check {
    /// The anchor, and the check's name in JSON.
    pub(crate) anchor: &'static str,
    pub(crate) description: &'static str,
    /// Whether nothing after it makes sense when it fails.
    pub(crate) fatal: bool,
    pub(crate) look: for<'a> fn(&'a Subject) -> Look<'a>,
}

pub(crate) struct Category {
    pub(crate) name: &'static str,
    pub(crate) checks: &'static [Check],
    /// Whether it is about a running node, and says nothing without one.
    pub(crate) needs_node: bool,
}

/// Every check there is, in the order it is shown.
pub(crate) const CATEGORIES: &[Category] = &[
    machine::CATEGORY,
    node_agent::CATEGORY,
    control_plane::CATEGORY,
    certificates::CATEGORY,
    data_plane::CATEGORY,
];

/// A category that was run, as JSON shows it.
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
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) hint: String,
    #[serde(skip)]
    pub(crate) mark: Mark,
}

/// Runs one category; the second value says whether to go on.
pub(crate) async fn run(category: &Category, subject: &Subject) -> (CategoryReport, bool) {
    let mut checks = Vec::new();
    for check in category.checks {
        let report = Report::new(check, (check.look)(subject).await);
        let stop = check.fatal && report.mark == Mark::Fail;
        checks.push(report);
        if stop {
            return (
                CategoryReport {
                    category_name: category.name,
                    checks,
                },
                false,
            );
        }
    }
    (
        CategoryReport {
            category_name: category.name,
            checks,
        },
        true,
    )
}

impl Report {
    fn new(check: &Check, outcome: Outcome) -> Self {
        let (mark, result, detail) = match outcome {
            Outcome::Ok(detail) => (Mark::Ok, "success", detail),
            Outcome::Warn(detail) => (Mark::Warn, "warning", detail),
            Outcome::Fail(detail) => (Mark::Fail, "error", detail),
        };
        let hint = if mark == Mark::Ok {
            String::new()
        } else {
            format!("{GUIDE}#{}", check.anchor)
        };
        Self {
            name: check.anchor,
            description: check.description,
            result,
            detail,
            hint,
            mark,
        }
    }
}

impl Outcome {
    /// The outcome of a look that can go wrong by itself.
    pub(crate) fn of(result: anyhow::Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self::Fail(format!("{error:#}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every check has a section of its own in the guide, and every section belongs to a check.
    #[test]
    fn guide_and_checks_agree() {
        let guide = std::fs::read_to_string(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/operations/checks.md"
        ))
        .unwrap();
        let mut sections: Vec<&str> = guide
            .lines()
            .filter_map(|line| line.strip_prefix("### "))
            .collect();
        let mut anchors: Vec<&str> = CATEGORIES
            .iter()
            .flat_map(|category| category.checks)
            .map(|check| check.anchor)
            .collect();
        sections.sort_unstable();
        anchors.sort_unstable();
        assert_eq!(sections, anchors);
    }
}
