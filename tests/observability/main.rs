//! House rules of the dashboards and alerts in helm/linkerd-viz, checked without Node, Grafana and
//! Prometheus. `tests/it/observability` runs their queries.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alerts;
mod dashboards;
mod metrics;
mod promql;
mod tree;

use tree::{Finding, Tree};

#[test]
fn dashboards_keep_the_rules() {
    assert_none(&dashboards::dashboards(&Tree::read()));
}

#[test]
fn alerts_are_complete() {
    assert_none(&alerts::alerts(&Tree::read()));
}

fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings
        .iter()
        .map(|Finding { file, line, advice }| format!("{file}:{line}: {advice}"))
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}
