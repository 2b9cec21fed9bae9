//! The queries of the dashboards, with values in the place of variables.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// One query of a panel, or of a variable.
pub(super) struct Query {
    pub(super) dashboard: String,
    pub(super) panel: String,
    pub(super) expression: String,
}

/// The values of variables; a variable that is not listed is `NAME`.
pub(super) type Variables<'a> = &'a [(&'a str, &'a str)];

/// The range of rates, in the place of Grafana's own choice.
const INTERVAL: (&str, &str) = ("__rate_interval", "1m");

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package is below the root")
        .to_owned()
}

/// Returns all queries of all dashboards.
pub(super) fn queries(variables: Variables<'_>) -> Vec<Query> {
    let directory = root().join("helm/linkerd-viz/dashboards");
    let entries = std::fs::read_dir(directory).expect("the dashboards");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
        .iter()
        .flat_map(|path| queries_of(path, variables))
        .collect()
}

fn queries_of(path: &Path, variables: Variables<'_>) -> Vec<Query> {
    let text = std::fs::read_to_string(path).expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let declared = list(&dashboard["templating"]["list"]);
    let mut names: Vec<String> = declared.iter().map(|v| text(&v["name"])).collect();
    names.push(INTERVAL.0.to_owned());
    // A name may begin with another one.
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    let filled = |expression: &str| {
        let mut expression = expression.to_owned();
        for name in &names {
            let mut known = variables.iter().chain([&INTERVAL]);
            let value = known.find(|(known, _)| known == name);
            let value = value.map_or("NAME", |(_, value)| value);
            expression = expression.replace(&format!("${name}"), value);
        }
        expression
    };
    let query = |panel: &Value, expression: &str| Query {
        dashboard: text(&dashboard["uid"]),
        panel: text(panel),
        expression: filled(expression),
    };
    let mut found = Vec::new();
    for panel in list(&dashboard["panels"]) {
        let targets = list(&panel["targets"]).into_iter();
        found.extend(targets.map(|target| query(&panel["title"], &text(&target["expr"]))));
    }
    for variable in declared.iter().filter(|v| v["type"] == "query") {
        let values = text(&variable["query"]);
        let selector = values
            .strip_prefix("label_values(")
            .and_then(|rest| rest.rsplit_once(", "))
            .unwrap_or_else(|| panic!("{values} does not list the values of a label"));
        found.push(query(&variable["name"], selector.0));
    }
    found
}
