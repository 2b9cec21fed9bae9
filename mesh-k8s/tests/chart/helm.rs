//! The program `helm`, and what it renders, as objects.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::generated::root;

/// Whether there is a `helm`. Says why a test is skipped when there is none.
pub(crate) fn is_there(test: &str) -> bool {
    let found = Command::new("helm").arg("version").output().is_ok();
    if !found {
        println!("skipped: {test}: the program helm is not on the PATH");
    }
    found
}

/// The control plane's objects with these values, or what Helm says against them.
pub(crate) fn control_plane(values: &str) -> Result<Vec<Value>, String> {
    render("linkerd-control-plane", values)
}

pub(crate) fn crds() -> Vec<Value> {
    render("linkerd-crds", "{}").unwrap()
}

fn render(chart: &str, values: &str) -> Result<Vec<Value>, String> {
    let mut helm = Command::new("helm")
        .args(["template", chart, "--namespace", "linkerd", "--values", "-"])
        .arg(root().join("helm").join(chart))
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
    let text = String::from_utf8(output.stdout).unwrap();
    let documents = text
        .split("\n---\n")
        .map(|document| serde_norway::from_str(document).unwrap());
    Ok(documents
        .filter(|document: &Value| !document.is_null())
        .collect())
}

pub(crate) fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}
