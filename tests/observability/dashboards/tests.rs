//! A dashboard that keeps all rules, and one change for each rule.

use serde_json::json;

use super::*;

const PATH: &str = "helm/linkerd-viz/dashboards/mesh-test.json";

fn dashboard() -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let selection = |name: &str| {
        json!({
            "type": "query", "name": name, "label": name, "datasource": source, "refresh": 2,
            "multi": true, "includeAll": true, "allValue": ".+",
        })
    };
    json!({
        "uid": "mesh-test", "title": "Test", "description": "A test.", "refresh": "30s", "editable": false,
        "templating": {"list": [
            {"type": "datasource", "name": "datasource", "label": "Data Source", "query": "prometheus"},
            selection("job"), selection("instance"),
        ]},
        "panels": [
            {"id": 1, "type": "row", "title": "Row", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}},
            {
                "id": 2, "type": "stat", "title": "Opened", "description": "Opened connections.",
                "datasource": source, "fieldConfig": {"defaults": {"unit": "ops"}},
                "gridPos": {"x": 0, "y": 1, "w": 12, "h": 4},
                "targets": [{"expr": r#"sum(rate(tcp_open_total{job=~"$job", instance=~"$instance"}[$__rate_interval]))"#}],
            },
        ],
    })
}

fn found(dashboard: &Value) -> Vec<String> {
    let text = dashboard.to_string();
    let tree = Tree::of(&[(PATH, &text), ("mesh-proxy/src/a.rs", "\"tcp_open_total\"")]);
    let findings = dashboards(&tree).into_iter();
    findings.map(|finding| finding.advice).collect()
}

#[test]
fn dashboard_that_keeps_the_rules_is_accepted() {
    assert_eq!(found(&dashboard()), Vec::<String>::new());
}

#[test]
fn each_broken_rule_is_reported() {
    let query = "/panels/1/targets/0/expr";
    for (pointer, value, advice) in [
        ("/uid", json!("other"), "not the name of its file"),
        ("/id", json!(7), "belongs to one Grafana"),
        ("/editable", json!(true), "read-only"),
        ("/description", json!(""), "no description"),
        (
            "/templating/list/0/name",
            json!("DS"),
            "one variable `datasource`",
        ),
        (
            "/templating/list/1/multi",
            json!(false),
            "`job` is a variable",
        ),
        (
            "/templating/list/2/allValue",
            json!(".*"),
            "`instance` is a variable",
        ),
        (
            "/templating/list/1/datasource/uid",
            json!("prom"),
            "`job`: its data source",
        ),
        ("/templating/list/1/refresh", json!(1), "reload it"),
        ("/panels/1/title", json!(""), "no title"),
        ("/panels/1/description", json!(""), "say in its description"),
        ("/panels/1/fieldConfig/defaults/unit", json!(""), "no unit"),
        ("/panels/1/datasource/uid", json!("prom"), "its data source"),
        ("/panels/1/targets", json!([]), "no query"),
        ("/panels/1/gridPos/w", json!(25), "outside of the grid"),
        ("/panels/1/gridPos/y", json!(0), "overlap"),
        ("/panels/1/id", json!(1), "the same id"),
        (query, json!("1"), "selects no metric"),
        (
            query,
            json!(r#"rate(tcp_open_total{instance=~"$instance"}[$__rate_interval])"#),
            "no matcher job",
        ),
        (
            query,
            json!(r#"rate(tcp_open_total{job=~"$job"}[$__rate_interval])"#),
            "no matcher instance",
        ),
        (
            query,
            json!(r#"rate(tcp_open_total{job=~"$job", instance=~"$instance"}[5m])"#),
            "the range of",
        ),
        (
            query,
            json!(r#"sum(tcp_open_total{job=~"$job", instance=~"$instance"})"#),
            "show its rate",
        ),
        (
            query,
            json!(r#"tcp_openings{job=~"$job", instance=~"$instance"}"#),
            "no program exports",
        ),
    ] {
        let mut changed = dashboard();
        if pointer == "/id" {
            changed["id"] = value;
        } else {
            *changed.pointer_mut(pointer).unwrap() = value;
        }
        let found = found(&changed);
        assert!(
            found.len() == 1 && found[0].contains(advice),
            "{pointer}: {found:?}"
        );
    }
}

#[test]
fn dashboards_about_requests_need_no_instance() {
    let mut changed = dashboard();
    changed["uid"] = json!("mesh-policy");
    changed["templating"]["list"].as_array_mut().unwrap().pop();
    changed["panels"][1]["targets"][0]["expr"] =
        json!(r#"sum(rate(tcp_open_total{job=~"$job"}[$__rate_interval]))"#);
    let text = changed.to_string();
    let tree = Tree::of(&[
        ("helm/linkerd-viz/dashboards/mesh-policy.json", &text),
        ("mesh-proxy/src/a.rs", "\"tcp_open_total\""),
    ]);
    assert_eq!(dashboards(&tree), []);
}
