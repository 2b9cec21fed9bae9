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
}

pub(super) struct Row {
    pub(super) title: String,
    pub(super) figures: Vec<Figure>,
    pub(super) noise: Noise,
}

pub(super) struct Figure {
    name: &'static str,
    unit: Unit,
    value: f64,
    limit: Option<f64>,
}

#[derive(Clone, Copy)]
pub(super) enum Unit {
    Seconds,
    Bytes,
    Ratio,
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
        }
    }

    /// Prints a row and keeps it.
    pub(super) fn add(&mut self, row: Row) {
        println!("\n== {}{}", row.title, row.remark());
        for figure in &row.figures {
            let (value, goal) = (figure.shown(figure.value), figure.goal());
            println!("{:<32} {value:>12}  {goal}", figure.name);
        }
        self.rows.push(row);
    }

    /// Writes all files into a directory.
    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let json = serde_json::to_string_pretty(&self.json()).context("write JSON")?;
        for (name, text) in [
            ("control.md", self.markdown()),
            ("control.json", json + "\n"),
        ] {
            let path = directory.join(name);
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
        text += "Written by `cargo xtask bench control`. Times of changes are medians.\n";
        for row in &self.rows {
            text += &format!(
                "\n## {}{}\n\n| | | goal |\n|---|---|---|\n",
                row.title,
                row.remark()
            );
            for figure in &row.figures {
                let (value, goal) = (figure.shown(figure.value), figure.goal());
                // Writing to a string does not fail.
                let _written = writeln!(text, "| {} | {value} | {goal} |", figure.name);
            }
        }
        text += "\n## Machine and versions\n\n| | |\n|---|---|\n";
        for (name, value) in &self.machine {
            let _written = writeln!(text, "| {name} | {value} |");
        }
        text
    }

    fn json(&self) -> Value {
        let figure = |figure: &Figure| json!({"name": figure.name, "value": figure.value, "limit": figure.limit});
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
            "units": "seconds, bytes",
            "quick": self.quick,
            "machine": machine.map(|(name, text)| json!([name, text])).collect::<Vec<_>>(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
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
    pub(super) fn new(name: &'static str, unit: Unit, value: f64) -> Self {
        Self {
            name,
            unit,
            value,
            limit: None,
        }
    }

    pub(super) fn at_most(self, limit: f64) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    fn shown(&self, value: f64) -> String {
        match self.unit {
            Unit::Seconds => format!("{:.2} ms", value * 1e3),
            Unit::Bytes if value.abs() < 1024.0 * 1024.0 => format!("{:.1} KiB", value / 1024.0),
            Unit::Bytes => format!("{:.1} MiB", value / (1024.0 * 1024.0)),
            Unit::Ratio => format!("{value:.2}"),
        }
    }

    fn goal(&self) -> String {
        match self.limit {
            None => String::new(),
            Some(limit) if self.value <= limit => format!("≤ {}: met", self.shown(limit)),
            Some(limit) => format!("≤ {}: **missed**", self.shown(limit)),
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
                Figure::new("time", Unit::Seconds, value).at_most(5.0),
                Figure::new("memory", Unit::Bytes, 1536.0),
            ],
            noise: Noise { steal, others: 0.0 },
        };
        let report = Report {
            machine: vec![("CPU", "one".to_owned())],
            quick: false,
            rows: vec![row(5.0, 0.0), row(5.1, 0.5)],
        };
        let text = report.markdown();
        for expected in [
            "| time | 5000.00 ms | ≤ 5000.00 ms: met |",
            "| time | 5100.00 ms | ≤ 5000.00 ms: **missed** |",
            "| memory | 1.5 KiB |  |",
            "## storm (noisy)",
            "| CPU | one |",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        assert!(!text.contains("Not publishable"));
        assert_eq!(report.json()["rows"][1]["figures"][0]["limit"], 5.0);
    }
}
