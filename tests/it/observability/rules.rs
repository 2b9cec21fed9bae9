//! When alerts fire, and that every query is PromQL.

use std::path::PathBuf;

use mesh_test_support::command::{are_installed, command, run};

use super::panels::{queries, root};
use crate::harness::prometheus::Prometheus;

const RULES: [&str; 2] = [
    "helm/linkerd-viz/rules/recording.yaml",
    "helm/linkerd-viz/rules/alerts.yaml",
];

fn test_files() -> Vec<PathBuf> {
    let directory = root().join("tests/it/observability");
    let entries = std::fs::read_dir(directory).expect("the directory of this file");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.to_string_lossy().ends_with(".test.yaml"))
        .collect();
    files.sort();
    files
}

#[test]
fn each_alert_fires_for_its_fault_only() {
    if !are_installed(&["promtool"]) {
        return;
    }
    let files = test_files();
    let paths: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
    let rules = RULES.map(|rules| root().join(rules));
    let rules = rules.iter().filter_map(|path| path.to_str());
    run(["promtool", "check", "rules"]
        .into_iter()
        .chain(rules)
        .collect::<Vec<_>>());
    run([&["promtool", "test", "rules"], paths.as_slice()].concat());

    let tests: String = files
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a test"))
        .collect();
    let alerts = std::fs::read_to_string(root().join(RULES[1])).expect("the alerts");
    let names = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let untested: Vec<&str> = names
        .filter(|name| !tests.contains(&format!("alertname=\"{name}\"")))
        .collect();
    assert!(untested.is_empty(), "no test expects {untested:?}");
}

#[test]
fn prometheus_parses_each_query_of_the_dashboards() {
    if !are_installed(&["prometheus", "curl"]) {
        return;
    }
    let prometheus = Prometheus::start("scrape_configs: []\n");
    let queries = queries(&[]);
    assert!(queries.len() > 200, "only {} queries", queries.len());
    let mut refused = Vec::new();
    for query in queries {
        if let Err(error) = prometheus.query(&query.expression) {
            let (dashboard, panel) = (query.dashboard, query.panel);
            refused.push(format!(
                "{dashboard}, {panel}: {error}: {}",
                query.expression
            ));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Runs where the packages of npm can be installed: Node is not needed to build the mesh.
#[test]
fn dashboards_are_what_the_sources_generate() {
    if !are_installed(&["node", "npm"]) {
        return;
    }
    let sources = root().join("helm/dashboards");
    let npm = |arguments: &[&str]| {
        let mut line = command([&["npm"], arguments].concat());
        line.current_dir(&sources).output().expect("npm runs")
    };
    if !sources.join("node_modules").exists() {
        let installed = npm(&["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        if !installed.status.success() {
            println!("skipped: the packages of helm/dashboards cannot be installed");
            return;
        }
    }
    let checked = npm(&["run", "check"]);
    let shown = mesh_test_support::command::output_text(&checked);
    assert!(checked.status.success(), "{shown}");
}
