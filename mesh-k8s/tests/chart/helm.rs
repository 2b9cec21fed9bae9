//! Runs `helm` and parses the rendered objects.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::generated::root;

/// Returns whether `helm` is on the PATH, and prints that a test is skipped if not.
pub(crate) fn is_available(test: &str) -> bool {
    let found = Command::new("helm").arg("version").output().is_ok();
    if !found {
        println!("skipped: {test}: the program helm is not on the PATH");
    }
    found
}

/// Returns the objects of the control plane with these values, or Helm's error.
pub(crate) fn control_plane(values: &str) -> Result<Vec<Value>, String> {
    render("linkerd-control-plane", "linkerd", values)
}

/// Returns the objects of the viz extension with these values, or Helm's error.
pub(crate) fn viz(values: &str) -> Result<Vec<Value>, String> {
    render("linkerd-viz", "linkerd-viz", values)
}

/// Returns the objects of the multicluster extension with these values, or Helm's error.
pub(crate) fn multicluster(values: &str) -> Result<Vec<Value>, String> {
    render("linkerd-multicluster", "linkerd-multicluster", values)
}

/// Returns the objects of the service mirror of the Link `target`, or of the one that the values
/// name, or Helm's error.
pub(crate) fn multicluster_link(values: &str) -> Result<Vec<Value>, String> {
    let mut values: Value = serde_norway::from_str(values).unwrap();
    let name = &mut values["targetClusterName"];
    if name.is_null() {
        *name = "target".into();
    }
    let values = values.to_string();
    render("linkerd-multicluster-link", "linkerd-multicluster", &values)
}

/// Returns the notes of an installation with these values. Helm only prints notes when it installs
/// to a cluster, so they are rendered as an object.
pub(crate) fn notes(chart: &str, namespace: &str, values: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let from = root().join("helm").join(chart);
    let chart = directory.path().join("chart");
    copy(&from, &chart);
    fs::rename(chart.join("templates/NOTES.txt"), chart.join("notes.txt")).unwrap();
    let template = "kind: Notes\ntext: {{ tpl (.Files.Get \"notes.txt\") . | toJson }}\n";
    fs::write(chart.join("templates/notes.yaml"), template).unwrap();
    let objects = render_from(&chart, namespace, values).unwrap();
    let notes = objects.iter().find(|object| object["kind"] == "Notes");
    notes.unwrap()["text"].as_str().unwrap().to_owned()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

pub(crate) fn crds() -> Vec<Value> {
    crds_with("{}")
}

/// Returns the definitions with these values.
pub(crate) fn crds_with(values: &str) -> Vec<Value> {
    render("linkerd-crds", "linkerd", values).unwrap()
}

fn render(chart: &str, namespace: &str, values: &str) -> Result<Vec<Value>, String> {
    render_from(&root().join("helm").join(chart), namespace, values)
}

fn render_from(chart: &Path, namespace: &str, values: &str) -> Result<Vec<Value>, String> {
    let mut helm = Command::new("helm");
    helm.arg("template")
        .arg(chart.file_name().unwrap())
        .arg(chart)
        .args(["--namespace", namespace, "--values", "-"]);
    let text = run(&mut helm, values)?;
    let documents = text
        .split("\n---\n")
        .map(|document| serde_norway::from_str(document).unwrap());
    Ok(documents
        .filter(|document: &Value| !document.is_null())
        .collect())
}

/// Runs Helm with the values on its standard input and returns its output or its error.
fn run(helm: &mut Command, values: &str) -> Result<String, String> {
    let mut helm = helm
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = helm.stdin.take().unwrap();
    stdin.write_all(values.as_bytes()).unwrap();
    drop(stdin);
    let output = helm.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    Ok(String::from_utf8(output.stdout).unwrap())
}

/// Returns the specification of the pods of a workload; null for other objects.
pub(crate) fn pod_spec(object: &Value) -> &Value {
    match object["kind"].as_str() {
        Some("Pod") => &object["spec"],
        Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
        _ => &object["spec"]["template"]["spec"],
    }
}

pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Returns the DaemonSet of the agents, if there is one. It leaves out the DaemonSet of charts that
/// had the agents in another namespace.
pub(crate) fn agents(objects: &[Value]) -> Option<&Value> {
    objects.iter().find(|object| {
        object["kind"] == "DaemonSet"
            && object["metadata"]["labels"]["mesh-agent/moved-to"].is_null()
    })
}
