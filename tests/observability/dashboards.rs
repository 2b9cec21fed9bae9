//! House rules about Grafana's dashboards: the rules of Grafana's dashboard linter, and that panels
//! neither overlap nor query metrics that no program exports. The sources in helm/dashboards
//! generate the files; Prometheus parses the queries in `tests/it/observability`.

use serde_json::Value;

use super::metrics::Metrics;
use super::promql::{Selector, selectors};
use super::tree::{File, Finding, Tree};

const DIRECTORY: &str = "helm/linkerd-viz/dashboards/";
const DATA_SOURCE: &str = "${datasource}";
const COLUMNS: u64 = 24;
/// The range of rates, which Grafana chooses for the resolution of a graph.
const INTERVAL: &str = "$__rate_interval";

/// Dashboards about requests sum over all proxies of a namespace or a Service. There are thousands
/// of proxies: no choice of an instance.
const WITHOUT_INSTANCE: [&str; 14] = [
    "linkerd-authority",
    "linkerd-cronjob",
    "linkerd-daemonset",
    "linkerd-deployment",
    "linkerd-job",
    "linkerd-multicluster",
    "linkerd-namespace",
    "linkerd-replicaset",
    "linkerd-replicationcontroller",
    "linkerd-route",
    "linkerd-service",
    "linkerd-statefulset",
    "linkerd-top-line",
    "mesh-policy",
];

/// In Linkerd's links to this dashboard, the variable `job` is the Job of Kubernetes.
const JOB_IS_A_WORKLOAD: &str = "linkerd-job";

/// Reports the errors in each dashboard.
pub(crate) fn dashboards(tree: &Tree) -> Vec<Finding> {
    let metrics = Metrics::of(tree);
    let files = tree.files.iter();
    files
        .filter(|file| file.path.starts_with(DIRECTORY))
        .flat_map(|file| {
            let problems = problems(file, &metrics);
            problems.into_iter().map(|problem| file.finding(1, problem))
        })
        .collect()
}

fn problems(file: &File, metrics: &Metrics<'_>) -> Vec<String> {
    let Ok(dashboard) = serde_json::from_str::<Value>(&file.text) else {
        return vec!["this is not JSON".to_owned()];
    };
    let uid = dashboard["uid"].as_str().unwrap_or_default();
    let mut problems = identity(file, &dashboard);
    problems.extend(variables(&dashboard, uid));
    let panels = list(&dashboard["panels"]);
    problems.extend(layout(panels));
    let required = Required::of(uid);
    for panel in panels {
        let title = panel["title"].as_str().unwrap_or_default();
        let found = described(panel).into_iter();
        let found = found.chain(queries(panel, &required, metrics));
        problems.extend(found.map(|problem| format!("panel `{title}`: {problem}")));
    }
    problems
}

/// The matchers that each selector of a dashboard has.
struct Required(Vec<&'static str>);

impl Required {
    fn of(uid: &str) -> Self {
        let job = if uid == JOB_IS_A_WORKLOAD {
            r#"job=~"$scrape_job""#
        } else {
            r#"job=~"$job""#
        };
        let mut matchers = vec![job];
        if !WITHOUT_INSTANCE.contains(&uid) {
            matchers.push(r#"instance=~"$instance""#);
        }
        Self(matchers)
    }
}

fn identity(file: &File, dashboard: &Value) -> Vec<String> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let uid = dashboard["uid"].as_str().unwrap_or_default();
    let mut problems = Vec::new();
    if Some(uid) != name.strip_suffix(".json") {
        problems.push(format!("its uid is `{uid}`, not the name of its file"));
    }
    if !dashboard["id"].is_null() {
        problems.push("an id belongs to one Grafana; leave it out".to_owned());
    }
    if dashboard["editable"] != false {
        problems.push("changes in Grafana would be lost; make it read-only".to_owned());
    }
    let is_empty = |key: &&str| dashboard[*key].as_str().is_none_or(str::is_empty);
    let empty = ["title", "description", "refresh"].into_iter();
    problems.extend(empty.filter(is_empty).map(|key| format!("it has no {key}")));
    problems
}

fn variables(dashboard: &Value, uid: &str) -> Vec<String> {
    let variables = list(&dashboard["templating"]["list"]);
    let mut problems = Vec::new();
    let sources = variables.iter().filter(|v| v["type"] == "datasource");
    let is_source = |v: &&Value| {
        v["name"] == "datasource" && v["label"] == "Data Source" && v["query"] == "prometheus"
    };
    if sources.clone().count() != 1 || !sources.clone().all(|v| is_source(&v)) {
        problems.push("it has one variable `datasource`, `Data Source`, of Prometheus".to_owned());
    }
    let job = if uid == JOB_IS_A_WORKLOAD {
        "scrape_job"
    } else {
        "job"
    };
    let mut selections = vec![(job, "job")];
    if !WITHOUT_INSTANCE.contains(&uid) {
        selections.push(("instance", "instance"));
    }
    for (name, label) in selections {
        let found = variables.iter().find(|v| v["name"] == name);
        let is_selection = |v: &Value| {
            v["label"] == label
                && v["multi"] == true
                && v["includeAll"] == true
                && v["allValue"] == ".+"
        };
        if !found.is_some_and(is_selection) {
            problems.push(format!(
                "`{name}` is a variable labelled `{label}`, several of which can be selected, and all with `.+`"
            ));
        }
    }
    for variable in variables.iter().filter(|v| v["type"] == "query") {
        let name = variable["name"].as_str().unwrap_or_default();
        if variable["datasource"]["uid"] != DATA_SOURCE {
            problems.push(format!(
                "variable `{name}`: its data source is `{DATA_SOURCE}`"
            ));
        }
        if variable["refresh"] != 2 {
            problems.push(format!("variable `{name}`: reload it with the time range"));
        }
    }
    problems
}

/// Panels have numbers of their own, stay within the columns and do not overlap.
fn layout(panels: &[Value]) -> Vec<String> {
    let mut problems = Vec::new();
    for (index, panel) in panels.iter().enumerate() {
        let [x, y, w, h] = place(panel);
        if w == 0 || h == 0 || x + w > COLUMNS {
            problems.push(format!("panel `{}` is outside of the grid", panel["title"]));
        }
        for other in &panels[..index] {
            let [other_x, other_y, other_w, other_h] = place(other);
            let overlaps = x < other_x + other_w
                && other_x < x + w
                && y < other_y + other_h
                && other_y < y + h;
            if overlaps || panel["id"] == other["id"] {
                problems.push(format!(
                    "panels `{}` and `{}` overlap or have the same id",
                    other["title"], panel["title"]
                ));
            }
        }
    }
    problems
}

fn place(panel: &Value) -> [u64; 4] {
    ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or_default())
}

fn described(panel: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    if text(&panel["title"]).is_empty() {
        problems.push("it has no title".to_owned());
    }
    if panel["type"] == "row" {
        return problems;
    }
    if text(&panel["description"]).is_empty() {
        problems.push("say in its description what it shows".to_owned());
    }
    if panel["type"] == "text" {
        return problems;
    }
    if text(&panel["fieldConfig"]["defaults"]["unit"]).is_empty() {
        problems.push("it has no unit".to_owned());
    }
    if panel["datasource"]["uid"] != DATA_SOURCE {
        problems.push(format!("its data source is `{DATA_SOURCE}`"));
    }
    if list(&panel["targets"]).is_empty() {
        problems.push("it has no query".to_owned());
    }
    problems
}

fn queries(panel: &Value, required: &Required, metrics: &Metrics<'_>) -> Vec<String> {
    let mut problems = Vec::new();
    for target in list(&panel["targets"]) {
        let expression = target["expr"].as_str().unwrap_or_default();
        let selectors = selectors(expression);
        if selectors.is_empty() {
            problems.push(format!("`{expression}` selects no metric"));
        }
        for selector in selectors {
            problems.extend(selection(&selector, required, metrics));
        }
    }
    problems
}

fn selection(selector: &Selector<'_>, required: &Required, metrics: &Metrics<'_>) -> Vec<String> {
    let name = selector.name;
    let mut problems = Vec::new();
    let missing = required.0.iter();
    let missing = missing.filter(|matcher| !selector.matchers.contains(**matcher));
    problems.extend(missing.map(|matcher| format!("`{name}` has no matcher {matcher}")));
    if selector.range.is_some_and(|range| range != INTERVAL) {
        problems.push(format!("the range of `{name}` is `{INTERVAL}`"));
    }
    if name.ends_with("_total") && selector.range.is_none() {
        problems.push(format!("`{name}` is a counter: show its rate"));
    }
    if !metrics.are_exported(name) {
        problems.push(format!("no program exports `{name}`"));
    }
    problems
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

mod tests;
