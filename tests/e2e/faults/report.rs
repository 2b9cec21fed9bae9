//! The report of `meshctl check` or of a check of an extension.

use std::fmt;

use mesh_test_support::cluster::Cluster;
use mesh_test_support::command::Words as _;
use serde_json::Value;

use super::Fault;

pub(crate) struct Report {
    rows: Vec<Row>,
}

pub(crate) struct Row {
    name: String,
    result: String,
    detail: String,
    /// The row that is its cause.
    cause: String,
    /// The first advice.
    pub(crate) advice: String,
}

impl Report {
    /// Runs a check, such as `check --proxy`.
    pub(crate) fn fetch(cluster: &Cluster, check: &str) -> Self {
        let mut command = cluster.program("meshctl");
        let output = command.args(check.words()).args(["-o", "json"]).output();
        let output = output.expect("meshctl runs");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            panic!("meshctl {check} -o json: {error}: {stderr}")
        });
        let categories = answer["categories"].as_array().into_iter().flatten();
        let checks = categories.flat_map(|category| category["checks"].as_array());
        Self {
            rows: checks.flatten().map(Row::new).collect(),
        }
    }

    /// Excludes the row of repairs, which reports repairs of the last day.
    pub(crate) fn not_in_order(&self) -> Vec<&Row> {
        let rows = self.rows.iter();
        rows.filter(|row| row.result != "success" && row.name != "repairs")
            .collect()
    }

    /// Returns the failed row that contains these words.
    pub(crate) fn row_with_detail(&self, check: &str, words: &str) -> Result<&Row, String> {
        let mut rows = self.rows.iter().filter(|row| row.result != "success");
        let row = rows.find(|row| row.name == check && row.detail.contains(words));
        row.ok_or_else(|| format!("{check} does not say {words:?}\n{self}"))
    }

    /// Returns the fault's row if it failed and no unrelated row failed.
    pub(super) fn matching_row(&self, fault: &Fault) -> Result<&Row, String> {
        let repairs = self
            .rows
            .iter()
            .filter(|row| row.name == fault.check && row.result != "success");
        let mut wrong = self.not_in_order();
        wrong.extend(repairs);
        let belongs = |name: &str| name == fault.check || fault.related.contains(&name);
        let unrelated = wrong
            .iter()
            .find(|row| !belongs(&row.name) && !belongs(&row.cause));
        if let Some(row) = unrelated {
            return Err(format!("{} is unrelated\n{self}", row.name));
        }
        let named = wrong.into_iter().find(|row| row.name == fault.check);
        named
            .filter(|row| row.detail.contains(fault.detail))
            .ok_or_else(|| format!("{} does not say {:?}\n{self}", fault.check, fault.detail))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in self.not_in_order() {
            writeln!(f, "{} {}: {}", row.result, row.name, row.detail)?;
        }
        Ok(())
    }
}

impl Row {
    fn new(check: &Value) -> Self {
        let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
        let lines = check["detail"].as_array().into_iter().flatten();
        let lines: Vec<&str> = lines.filter_map(Value::as_str).collect();
        Self {
            name: text("name"),
            result: text("result"),
            detail: lines.join("\n"),
            cause: text("cause"),
            advice: text("advice"),
        }
    }
}
