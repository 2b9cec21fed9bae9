//! `meshctl multicluster check` with played API servers of two linked clusters. A fault of a link
//! is planted into healthy ones, and a row names the object and the repair.

mod api;
mod faults;
mod world;

use std::net::SocketAddr;
use std::process::Output;

use mesh_test_support::command::{built, output_text, text};
use mesh_test_support::kube_api::write_kubeconfig;
use serde_json::Value;
use tokio::process::Command;

use self::faults::{FAULTS, Fault};
use self::world::World;

/// Runs `meshctl multicluster check` on the cluster at an address.
async fn check(server: SocketAddr, format: &str) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    write_kubeconfig(&kubeconfig, server);
    let mut command = Command::new(built("meshctl"));
    command
        .args(["multicluster", "check", "-o", format])
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE");
    command.output().await.expect("meshctl runs")
}

/// Returns the rows of a report in JSON.
fn rows(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_str(&text(&output.stdout))
        .unwrap_or_else(|error| panic!("{error}\n{}", output_text(output)));
    let categories = report["categories"].as_array().expect("categories").iter();
    let rows = categories.flat_map(|it| it["checks"].as_array().into_iter().flatten());
    rows.cloned().collect()
}

/// Returns why a report does not name a fault as it should; `None` if it does.
async fn unnamed(fault: &Fault) -> Option<String> {
    let mut world = World::healthy().await;
    (fault.plant)(&mut world);
    let server = if fault.is_unreachable {
        world.serve_own().await
    } else {
        world.serve().await
    };
    let output = check(server, "json").await;
    let rows = rows(&output);
    let row = rows.iter().find(|row| row["name"] == fault.row);
    let Some(row) = row else {
        return Some(format!("{}: no such row", fault.row));
    };
    let detail = row["detail"].to_string();
    let advice = row["advice"].as_str().unwrap_or_default();
    let is_named = row["result"] == fault.result
        && row["cause"].is_null()
        && row["hint"] == format!("docs/operations/checks.md#{}", fault.row)
        && fault.names.iter().all(|name| detail.contains(name))
        && advice.contains(fault.advice);
    let is_failure = output.status.code() == Some(1);
    let expects_failure = rows.iter().any(|row| row["result"] == "error");
    (!is_named || is_failure != expects_failure).then(|| {
        format!(
            "{}: {:?} {}: {row:#}",
            fault.row, fault.names, output.status
        )
    })
}

#[tokio::test]
async fn check_names_each_planted_fault_with_its_object_and_repair() {
    let mut unnamed_faults = Vec::new();
    for fault in FAULTS {
        unnamed_faults.extend(unnamed(fault).await);
    }
    assert!(unnamed_faults.is_empty(), "{}", unnamed_faults.join("\n\n"));
}

#[tokio::test]
async fn healthy_link_has_no_problem() {
    let server = World::healthy().await.serve().await;
    let output = check(server, "json").await;
    let rows = rows(&output);
    let wrong = rows.iter().filter(|row| row["result"] != "success");
    let wrong: Vec<&str> = wrong.filter_map(|row| row["name"].as_str()).collect();
    // The scripted API servers serve no definitions; no row of links depends on them.
    let without_definitions = ["gateway-api-crd", "l5d-existence-crd"];
    assert_eq!(wrong, without_definitions, "{}", output_text(&output));
    assert_eq!(output.status.code(), Some(1), "missing definitions fail");
}

/// Proxies of the two accept each other, so that nothing has failed.
#[tokio::test]
async fn link_to_a_cluster_with_anchors_of_its_own_has_only_a_warning() {
    let mut world = World::healthy().await;
    world.exchange_bundles();
    let output = check(world.serve().await, "json").await;
    let rows = rows(&output);
    let is_of_links = |row: &&Value| {
        let name = row["name"].as_str().unwrap_or_default();
        name.contains("multicluster") && row["result"] != "success"
    };
    let wrong: Vec<(&Value, &Value)> = rows
        .iter()
        .filter(is_of_links)
        .map(|row| (&row["name"], &row["result"]))
        .collect();
    let warning = ("l5d-multicluster-clusters-share-anchors", "warning");
    let expect = [(&Value::from(warning.0), &Value::from(warning.1))];
    assert_eq!(wrong, expect, "{}", output_text(&output));
}

/// The table has what the JSON has.
#[tokio::test]
async fn table_prints_object_repair_and_where_to_read_on() {
    let fault = FAULTS
        .iter()
        .find(|it| it.row == "multicluster-probe-ports");
    let fault = fault.expect("there is one");
    let mut world = World::healthy().await;
    (fault.plant)(&mut world);
    let output = check(world.serve().await, "table").await;
    let printed = text(&output.stdout);
    let parts = [fault.names, &[fault.advice, "multicluster-probe-ports"]].concat();
    for part in parts {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
}
