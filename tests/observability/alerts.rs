//! House rules about alerts: an operator gets advice, and the metrics exist.
//! `tests/it/observability` checks when they fire.

use super::metrics::Metrics;
use super::promql::selectors;
use super::tree::{File, Finding, Tree};

const DIRECTORY: &str = "helm/linkerd-viz/rules/";
const RUNBOOKS: &str = "docs/operations/runbooks/";
const LIST: &str = "docs/operations/dashboards.md";
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];

/// Reports alerts without a part that an operator needs, runbooks without an alert, and metrics
/// that no program exports.
pub(crate) fn alerts(tree: &Tree) -> Vec<Finding> {
    let metrics = Metrics::of(tree);
    let files = tree.files.iter();
    let files = files.filter(|file| file.path.starts_with(DIRECTORY));
    let mut findings = Vec::new();
    let mut names = Vec::new();
    for file in files {
        for (line, expression) in expressions(&file.text) {
            let unknown = selectors(&expression).into_iter();
            let unknown = unknown.filter(|selector| !metrics.are_exported(selector.name));
            findings.extend(unknown.map(|selector| {
                let advice = format!("no program exports `{}`", selector.name);
                file.finding(line, advice)
            }));
        }
        for alert in Alert::all(file) {
            let missing = alert.missing(tree).into_iter();
            findings.extend(missing.map(|advice| file.finding(alert.line, advice)));
            names.push(alert.name);
        }
    }
    let runbooks = tree.files.iter();
    let runbooks = runbooks.filter_map(|file| {
        let name = file.path.strip_prefix(RUNBOOKS)?.strip_suffix(".md")?;
        (!names.contains(&name)).then(|| file.finding(1, "no alert leads here"))
    });
    findings.extend(runbooks);
    findings
}

/// An alert of a rule file; the files have one key on each line.
struct Alert<'a> {
    name: &'a str,
    line: usize,
    lines: Vec<&'a str>,
}

impl<'a> Alert<'a> {
    fn all(file: &'a File) -> Vec<Self> {
        let mut alerts: Vec<Self> = Vec::new();
        for (index, line) in file.text.lines().enumerate() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("- alert: ") {
                alerts.push(Self {
                    name,
                    line: index + 1,
                    lines: Vec::new(),
                });
            } else if let Some(alert) = alerts.last_mut() {
                alert.lines.push(line);
            }
        }
        alerts
    }

    fn missing(&self, tree: &Tree) -> Vec<String> {
        let Self { name, .. } = self;
        let mut missing = Vec::new();
        if !self
            .value("severity")
            .is_some_and(|severity| SEVERITIES.contains(&severity))
        {
            missing.push(format!("{name}: a severity, {}", SEVERITIES.join(", ")));
        }
        for key in ["summary", "description"] {
            if self.value(key).is_none_or(str::is_empty) {
                missing.push(format!("{name}: a {key}"));
            }
        }
        let runbook = format!("{RUNBOOKS}{name}.md");
        if self.value("runbook_url") != Some(&runbook) || tree.file(&runbook).is_none() {
            missing.push(format!("{name}: a page {runbook} and its runbook_url"));
        }
        let entry = format!("runbooks/{name}.md");
        if !tree
            .file(LIST)
            .is_some_and(|file| file.text.contains(&entry))
        {
            missing.push(format!("{name}: an entry in {LIST}"));
        }
        missing
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        let mut lines = self.lines.iter();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
    }
}

/// The expressions of a rule file, each with the line of its key.
fn expressions(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(value) = line.trim_start().strip_prefix("expr: ") else {
            continue;
        };
        let expression = if value == "|" {
            let block = lines[index + 1..].iter();
            let block = block.take_while(|next| indent(next) > indent(line));
            block.copied().collect::<Vec<_>>().join("\n")
        } else {
            value.to_owned()
        };
        found.push((index + 1, expression));
    }
    found
}

mod tests {
    use super::*;

    const COMPLETE: &str = "
      - alert: Bad
        expr: |
          rate(bad_things_total[5m])
          > 0
        labels:
          severity: warning
        annotations:
          summary: It is bad
          description: It will get worse
          runbook_url: docs/operations/runbooks/Bad.md
";

    fn tree(rules: &str) -> Tree {
        Tree::of(&[
            ("helm/linkerd-viz/rules/alerts.yaml", rules),
            ("docs/operations/runbooks/Bad.md", "# Bad\n"),
            (LIST, "[Bad](runbooks/Bad.md)\n"),
            ("mesh-proxy/src/a.rs", "\"bad_things_total\""),
        ])
    }

    #[test]
    fn complete_alert_is_accepted() {
        assert_eq!(alerts(&tree(COMPLETE)), []);
    }

    #[test]
    fn each_missing_part_is_reported() {
        for (part, replacement) in [
            ("severity: warning", "severity: awful"),
            ("summary: It is bad", ""),
            ("description: It will get worse", ""),
            ("runbooks/Bad.md", "runbooks/Other.md"),
            ("bad_things_total", "other_things_total"),
        ] {
            let found = alerts(&tree(&COMPLETE.replace(part, replacement)));
            assert_eq!(found.len(), 1, "{part}: {found:?}");
        }
        let renamed = COMPLETE.replace("alert: Bad", "alert: Worse");
        let advice: Vec<String> = alerts(&tree(&renamed))
            .into_iter()
            .map(|finding| finding.advice)
            .collect();
        assert_eq!(
            advice,
            [
                "Worse: a page docs/operations/runbooks/Worse.md and its runbook_url",
                "Worse: an entry in docs/operations/dashboards.md",
                "no alert leads here",
            ]
        );
    }
}
