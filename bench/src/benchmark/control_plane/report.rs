//! The results of `cargo xtask bench control`: printed, and as Markdown and JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};
use xtask::command::captured_stdout;

use crate::benchmark::machine::{self, Noise};
use crate::testbed::Cpus;

/// The results of a run so far.
pub(super) struct Report {
    machine: Vec<(&'static str, String)>,
    quick: bool,
    rows: Vec<Row>,
    tables: Vec<Table>,
}

/// A table of something at several sizes.
pub(super) struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// The numbers of the rows, in the order of the columns.
    pub(super) numbers: Vec<Vec<f64>>,
}

pub(super) struct Row {
    pub(super) title: String,
    pub(super) figures: Vec<Figure>,
    pub(super) noise: Noise,
}

/// A number of our controllers, and the same of Istio's.
pub(super) struct Figure {
    name: &'static str,
    unit: Unit,
    ours: f64,
    istio: Option<f64>,
    goals: Vec<Goal>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unit {
    Seconds,
    Bytes,
    PerSecond,
    Ratio,
    /// A part of one core.
    Share,
}

/// The limit on a number.
#[derive(Clone, Copy)]
enum Goal {
    Limit(f64),
    /// This many times Istio's.
    AtMostOfIstio(f64),
    AtLeastOfIstio(f64),
}

impl Report {
    pub(super) fn new(root: &Path, quick: bool, controller: &Path, cpus: Cpus) -> Self {
        let mut machine = machine::description(cpus);
        let mut describe = Command::new("git");
        describe
            .args(["describe", "--always", "--dirty", "--abbrev=12"])
            .current_dir(root);
        let version = captured_stdout(Command::new(controller).arg("--version"));
        let known = [
            ("ours", version),
            ("commit", captured_stdout(&mut describe)),
        ];
        machine.extend(
            known
                .into_iter()
                .filter_map(|(name, text)| Some((name, text?.trim().to_owned()))),
        );
        Self {
            machine,
            quick,
            rows: Vec::new(),
            tables: Vec::new(),
        }
    }

    /// Adds the version of a program.
    pub(super) fn add_version(&mut self, name: &'static str, version: &str) {
        self.machine.push((name, version.to_owned()));
    }

    /// Prints a row and keeps it.
    pub(super) fn add(&mut self, row: Row) {
        println!("\n== {}{}", row.title, row.remark());
        for figure in &row.figures {
            println!("{}", figure.line());
        }
        self.rows.push(row);
    }

    pub(super) fn add_table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Writes all files into a directory: NAME.md, NAME.json and, with a plot, NAME.svg.
    pub(super) fn write(
        &self,
        directory: &Path,
        name: &str,
        plot: Option<&str>,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let json = serde_json::to_string_pretty(&self.json()).context("write JSON")?;
        let mut files = vec![("md", self.markdown()), ("json", json + "\n")];
        files.extend(plot.map(|plot| ("svg", plot.to_owned())));
        for (extension, text) in files {
            let path = directory.join(format!("{name}.{extension}"));
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# What the controllers cost\n\n");
        if self.quick {
            text += "**Not publishable.** --quick: too few watches and changes.\n\n";
        }
        text += "Written by `cargo xtask bench control`. Numbers are medians; [README.md](README.md#what-the-controllers-cost)\n\
                 says how they are measured. A row that is marked as noisy was measured while other programs used the machine.\n";
        for row in &self.rows {
            text += &format!(
                "\n## {}{}\n\n| | ours | Istio | ratio | goal |\n|---|---|---|---|---|\n",
                row.title,
                row.remark()
            );
            for figure in &row.figures {
                let [ours, istio, ratio] = figure.columns();
                let goals = figure.verdicts().join(", ");
                // Writing to a string does not fail.
                let _written = writeln!(
                    text,
                    "| {} | {ours} | {istio} | {ratio} | {goals} |",
                    figure.name
                );
            }
        }
        for table in &self.tables {
            text += &table.markdown();
        }
        text += "\n## Machine and versions\n\n| | |\n|---|---|\n";
        for (name, value) in &self.machine {
            let _written = writeln!(text, "| {name} | {value} |");
        }
        text
    }

    fn json(&self) -> Value {
        let figure = |figure: &Figure| {
            json!({
                "name": figure.name,
                "ours": figure.ours,
                "istio": figure.istio,
                "goals": figure.verdicts(),
            })
        };
        let row = |row: &Row| {
            json!({
                "title": row.title,
                "figures": row.figures.iter().map(figure).collect::<Vec<_>>(),
                "steal": row.noise.steal,
                "others": row.noise.others,
            })
        };
        let machine = self.machine.iter();
        json!({
            "units": "seconds, bytes, per second",
            "quick": self.quick,
            "machine": machine.map(|(name, text)| json!([name, text])).collect::<Vec<_>>(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
        })
    }
}

impl Table {
    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        let rule = "|---".repeat(self.columns.len());
        format!(
            "\n## {}\n\n{}{rule}|\n{rows}",
            self.title,
            line(&self.columns)
        )
    }

    fn json(&self) -> Value {
        json!({"title": self.title, "columns": self.columns, "numbers": self.numbers})
    }
}

impl Row {
    fn remark(&self) -> &'static str {
        if self.noise.is_quiet() {
            ""
        } else {
            " (noisy)"
        }
    }
}

impl Figure {
    pub(super) fn new(name: &'static str, unit: Unit, ours: f64, istio: Option<f64>) -> Self {
        Self {
            name,
            unit,
            ours,
            istio,
            goals: Vec::new(),
        }
    }

    pub(super) fn at_most(self, limit: f64) -> Self {
        self.with(Goal::Limit(limit))
    }

    /// Limits it to a multiple of Istio's number.
    pub(super) fn at_most_istio(self, times: f64) -> Self {
        self.with(Goal::AtMostOfIstio(times))
    }

    pub(super) fn at_least_istio(self, times: f64) -> Self {
        self.with(Goal::AtLeastOfIstio(times))
    }

    fn with(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// Returns it in one line, with its verdicts.
    pub(super) fn line(&self) -> String {
        let [ours, istio, ratio] = self.columns();
        let goals = self.verdicts().join(", ");
        format!(
            "{:<32} {ours:>12} {istio:>12} {ratio:>7}  {goals}",
            self.name
        )
    }

    fn ratio(&self) -> Option<f64> {
        self.istio.map(|istio| self.ours / istio)
    }

    /// Returns our number, Istio's, and the ratio.
    fn columns(&self) -> [String; 3] {
        let optional = |text: Option<String>| text.unwrap_or_default();
        [
            self.unit.shown(self.ours),
            optional(self.istio.map(|istio| self.unit.shown(istio))),
            optional(self.ratio().map(|ratio| Unit::Ratio.shown(ratio))),
        ]
    }

    /// Returns each goal with whether it is met. Those relative to Istio need its number.
    fn verdicts(&self) -> Vec<String> {
        let verdict = |goal: &Goal| {
            let (is_met, goal) = match *goal {
                Goal::Limit(limit) => (self.ours <= limit, format!("≤ {}", self.unit.shown(limit))),
                Goal::AtMostOfIstio(times) => {
                    (self.ratio()? <= times, format!("≤ {times} × Istio"))
                }
                Goal::AtLeastOfIstio(times) => {
                    (self.ratio()? >= times, format!("≥ {times} × Istio"))
                }
            };
            let verdict = if is_met { "met" } else { "**missed**" };
            Some(format!("{goal}: {verdict}"))
        };
        self.goals.iter().filter_map(verdict).collect()
    }
}

impl Unit {
    pub(super) fn shown(self, value: f64) -> String {
        match self {
            Self::Seconds => format!("{:.2} ms", value * 1e3),
            Self::Bytes if value.abs() < 1024.0 * 1024.0 => format!("{:.1} KiB", value / 1024.0),
            Self::Bytes => format!("{:.1} MiB", value / (1024.0 * 1024.0)),
            Self::PerSecond => format!("{value:.0}/s"),
            Self::Ratio => format!("{value:.2}"),
            Self::Share => format!("{:.3} %", value * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_each_goal_with_its_verdict() {
        let row = |value, steal| Row {
            title: "storm".to_owned(),
            figures: vec![
                Figure::new("time", Unit::Seconds, value, Some(10.0))
                    .at_most(5.0)
                    .at_most_istio(0.5),
                Figure::new("memory", Unit::Bytes, 1536.0, None).at_most_istio(0.25),
                Figure::new("rate", Unit::PerSecond, 50.0, Some(10.0)).at_least_istio(5.0),
            ],
            noise: Noise { steal, others: 0.0 },
        };
        let report = Report {
            machine: vec![("CPU", "one".to_owned())],
            quick: false,
            rows: vec![row(5.0, 0.0), row(5.1, 0.5)],
            tables: vec![Table {
                title: "policy".to_owned(),
                columns: vec!["pods".to_owned(), "memory".to_owned()],
                rows: vec![vec!["1000".to_owned(), "1.5 KiB".to_owned()]],
                numbers: vec![vec![1000.0, 1536.0]],
            }],
        };
        let text = report.markdown();
        for expected in [
            "| time | 5000.00 ms | 10000.00 ms | 0.50 | ≤ 5000.00 ms: met, ≤ 0.5 × Istio: met |",
            "| time | 5100.00 ms | 10000.00 ms | 0.51 | ≤ 5000.00 ms: **missed**, ≤ 0.5 × Istio: **missed** |",
            "| memory | 1.5 KiB |  |  |  |",
            "| rate | 50/s | 10/s | 5.00 | ≥ 5 × Istio: met |",
            "## storm (noisy)",
            "| CPU | one |",
            "## policy\n\n| pods | memory |\n|---|---|\n| 1000 | 1.5 KiB |",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("Not publishable"));
        assert_eq!(report.json()["rows"][1]["figures"][0]["istio"], 10.0);
        assert_eq!(report.json()["tables"][0]["numbers"][0][1], 1536.0);
    }
}
