//! `meshctl check` against a real API server: `MESH_TEST_CLUSTER` names its kubeconfig context. No
//! mesh needs to be installed. The test creates a control plane object by object in a namespace of
//! its own, so that each check first fails and then passes, and deletes the namespace at the end.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "failed set-up fails the test; a skipped test prints the reason"
)]

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use mesh_test_support::command::{are_installed, feed, output_text};
use serde_json::Value;

const CONTEXT: &str = "MESH_TEST_CLUSTER";

fn context(test: &str) -> Option<String> {
    let context = std::env::var(CONTEXT).ok().filter(|name| !name.is_empty());
    if context.is_none() {
        println!("skipped: {test}: no cluster; {CONTEXT} names its kubeconfig context");
    }
    context
}

/// Runs `meshctl check` and returns the result of each check by its name, the JSON output and the
/// exit code.
fn check(context: &str, args: &[&str]) -> (BTreeMap<String, String>, Value, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_meshctl"))
        .args(["--context", context, "check", "-o", "json"])
        .args(args)
        .env_remove("MESHCTL_LOCAL")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let mut outcomes = BTreeMap::new();
    for category in report["categories"].as_array().unwrap() {
        for check in category["checks"].as_array().unwrap() {
            let text = |key: &str| check[key].as_str().unwrap().to_owned();
            outcomes.insert(text("name"), text("result"));
        }
    }
    (outcomes, report, output.status.code().unwrap())
}

#[test]
fn check_without_control_plane() {
    let Some(context) = context("check without control plane") else {
        return;
    };
    let (outcomes, report, code) = check(&context, &["--pre", "-L", "no-such-namespace"]);
    assert_eq!(code, 0, "{report:#}");
    for name in ["k8s-api", "k8s-version", "pre-ns", "pre-k8s", "pre-nodes"] {
        assert_eq!(outcomes[name], "success", "{report:#}");
    }
    let (outcomes, report, code) = check(&context, &["-L", "no-such-namespace"]);
    assert_eq!(code, 1, "{report:#}");
    let first = ["l5d-existence-crd", "l5d-existence-ns"];
    assert!(
        first
            .iter()
            .any(|name| outcomes.get(*name).is_some_and(|result| result == "error")),
        "{report:#}"
    );
}

#[test]
fn check_as_user_without_permissions() {
    let Some(context) = context("check as user without permissions") else {
        return;
    };
    let (outcomes, report, code) = check(&context, &["--pre", "--as", "unprivileged"]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(outcomes["k8s-api"], "success", "{report:#}");
    assert_eq!(outcomes["pre-k8s-cluster-k8s"], "error", "{report:#}");
    assert_eq!(outcomes["pre-k8s"], "error", "{report:#}");
}

/// A namespace that is deleted when dropped.
struct Namespace {
    context: String,
    name: String,
}

impl Namespace {
    fn new(context: &str) -> Self {
        let namespace = Self {
            context: context.to_owned(),
            name: format!("meshctl-test-{}", std::process::id()),
        };
        namespace.apply("kind: Namespace\nmetadata: {name: NS}\n");
        namespace
    }

    fn apply(&self, manifest: &str) {
        let text: String = manifest
            .replace("NS", &self.name)
            .split("---\n")
            .map(|document| {
                let api = if document.contains("kind: Deployment") {
                    "apps/v1"
                } else {
                    "v1"
                };
                format!("apiVersion: {api}\n{document}---\n")
            })
            .collect();
        let output = feed(&mut self.kubectl(&["apply", "-f", "-"]), &text);
        assert!(output.status.success(), "{text}\n{}", output_text(&output));
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["--context", &self.context]).args(args);
        command
    }

    #[track_caller]
    fn check(&self, name: &str, result: &str, message: &str) {
        let (outcomes, report, _) = check(&self.context, &["-L", &self.name]);
        assert_eq!(
            outcomes.get(name).map(String::as_str),
            Some(result),
            "{name}: {report:#}"
        );
        assert!(
            report.to_string().contains(message),
            "{message}: {report:#}"
        );
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let name = self.name.clone();
        let _status = self
            .kubectl(&["delete", "namespace", &name, "--wait=false"])
            .stdout(Stdio::null())
            .status();
    }
}

#[test]
fn checks_pass_as_control_plane_objects_are_created() {
    const TEST: &str = "checks pass as control plane objects are created";
    let Some(context) = context(TEST) else {
        return;
    };
    if !are_installed(&["kubectl"]) {
        return;
    }
    let (outcomes, ..) = check(&context, &["--crds"]);
    if outcomes["l5d-existence-crd"] != "success" {
        println!("skipped: {TEST}: the mesh's custom resource definitions are not installed");
        return;
    }
    let namespace = Namespace::new(&context);
    namespace.check("l5d-existence-ns", "success", "");
    namespace.check("l5d-existence-linkerd-config", "error", "has no ConfigMap");
    namespace.apply("kind: ConfigMap\nmetadata: {name: linkerd-config, namespace: NS}\ndata: {values: 'clusterDomain: [a]'}\n");
    namespace.check("l5d-existence-linkerd-config", "error", "clusterDomain");
    namespace.apply("kind: ConfigMap\nmetadata: {name: linkerd-config, namespace: NS}\ndata: {values: 'meshAgent: {enabled: false}'}\n");
    namespace.check("l5d-existence-linkerd-config", "success", "");

    namespace.check(
        "l5d-existence-sa",
        "error",
        "ServiceAccount linkerd-identity is missing",
    );
    let accounts: Vec<String> = ["identity", "destination", "proxy-injector"]
        .iter()
        .map(|name| {
            format!("kind: ServiceAccount\nmetadata: {{name: linkerd-{name}, namespace: NS}}\n")
        })
        .collect();
    namespace.apply(&accounts.join("---\n"));
    namespace.check("l5d-existence-sa", "success", "");

    namespace.check(
        "control-plane-deployments",
        "error",
        "Deployment linkerd-identity is missing",
    );
    namespace.check("l5d-api-control-ready", "error", "identity has no pod");
    namespace.apply(
        "kind: Deployment\nmetadata: {name: linkerd-identity, namespace: NS}\nspec:\n  replicas: 0\n  selector: {matchLabels: {a: b}}\n  template:\n    \
         metadata: {labels: {a: b}}\n    spec: {containers: [{name: identity, image: 'mesh/none:0'}]}\n",
    );
    namespace.check(
        "control-plane-deployments",
        "error",
        "linkerd-identity is scaled to 0",
    );
}
