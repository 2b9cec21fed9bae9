//! `meshctl check` against a real API server: `MESH_TEST_CLUSTER` names the context of one.
//!
//! No mesh needs to be installed. The control plane that is looked at is one of this test: a
//! namespace of its own that is filled object by object, so that each check is seen to fail and to
//! pass. Everything is deleted with the namespace.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot be set up fails where it stands, and one that cannot run says why"
)]

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

const CONTEXT: &str = "MESH_TEST_CLUSTER";

fn context(test: &str) -> Option<String> {
    let context = std::env::var(CONTEXT).ok().filter(|name| !name.is_empty());
    if context.is_none() {
        println!("skipped: {test}: there is no cluster; {CONTEXT} names the context of one");
    }
    context
}

/// The outcome of each check by its name, and the exit code.
fn check(context: &str, args: &[&str]) -> (BTreeMap<String, String>, Value, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_meshctl"))
        .args(["--context", context, "check", "-o", "json"])
        .args(args)
        .env_remove("MESHCTL_LOCAL")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    let mut outcomes = BTreeMap::new();
    for category in answer["categories"].as_array().unwrap() {
        for check in category["checks"].as_array().unwrap() {
            let text = |key: &str| check[key].as_str().unwrap().to_owned();
            outcomes.insert(text("name"), text("result"));
        }
    }
    (outcomes, answer, output.status.code().unwrap())
}

#[test]
fn a_cluster_before_installing() {
    let Some(context) = context("a cluster before installing") else {
        return;
    };
    let (outcomes, answer, code) = check(&context, &["--pre", "-L", "no-such-namespace"]);
    assert_eq!(code, 0, "{answer:#}");
    for name in ["k8s-api", "k8s-version", "pre-ns", "pre-k8s", "pre-nodes"] {
        assert_eq!(outcomes[name], "success", "{answer:#}");
    }
    let (outcomes, answer, code) = check(&context, &["-L", "no-such-namespace"]);
    assert_eq!(code, 1, "{answer:#}");
    let first = ["l5d-existence-crd", "l5d-existence-ns"];
    assert!(
        first
            .iter()
            .any(|name| outcomes.get(*name).is_some_and(|result| result == "error")),
        "{answer:#}"
    );
}

#[test]
fn somebody_without_rights() {
    let Some(context) = context("somebody without rights") else {
        return;
    };
    let (outcomes, answer, code) = check(&context, &["--pre", "--as", "nobody"]);
    assert_eq!(code, 1, "{answer:#}");
    assert_eq!(outcomes["k8s-api"], "success", "{answer:#}");
    assert_eq!(outcomes["pre-k8s-cluster-k8s"], "error", "{answer:#}");
    assert_eq!(outcomes["pre-k8s"], "error", "{answer:#}");
}

/// A namespace that is gone when dropped.
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
        let mut child = self
            .kubectl(&["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
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
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(child.wait().unwrap().success(), "{text}");
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(["--context", &self.context]).args(args);
        command
    }

    #[track_caller]
    fn finds(&self, name: &str, result: &str, says: &str) {
        let (outcomes, answer, _) = check(&self.context, &["-L", &self.name]);
        assert_eq!(
            outcomes.get(name).map(String::as_str),
            Some(result),
            "{name}: {answer:#}"
        );
        assert!(answer.to_string().contains(says), "{says}: {answer:#}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let name = self.name.clone();
        let _ended = self
            .kubectl(&["delete", "namespace", &name, "--wait=false"])
            .stdout(Stdio::null())
            .status();
    }
}

#[test]
fn a_control_plane_that_is_built_piece_by_piece() {
    const TEST: &str = "a control plane that is built piece by piece";
    let Some(context) = context(TEST) else {
        return;
    };
    if Command::new("kubectl").arg("version").output().is_err() {
        println!("skipped: {TEST}: kubectl is needed");
        return;
    }
    let (outcomes, ..) = check(&context, &["--crds"]);
    if outcomes["l5d-existence-crd"] != "success" {
        println!("skipped: {TEST}: the cluster has no custom resources of the mesh");
        return;
    }
    let namespace = Namespace::new(&context);
    namespace.finds("l5d-existence-ns", "success", "");
    namespace.finds("l5d-existence-linkerd-config", "error", "has no ConfigMap");
    namespace.apply("kind: ConfigMap\nmetadata: {name: linkerd-config, namespace: NS}\ndata: {values: 'clusterDomain: [a]'}\n");
    namespace.finds("l5d-existence-linkerd-config", "error", "clusterDomain");
    namespace.apply("kind: ConfigMap\nmetadata: {name: linkerd-config, namespace: NS}\ndata: {values: 'meshAgent: {enabled: false}'}\n");
    namespace.finds("l5d-existence-linkerd-config", "success", "");

    namespace.finds(
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
    namespace.finds("l5d-existence-sa", "success", "");

    namespace.finds(
        "control-plane-deployments",
        "error",
        "Deployment linkerd-identity is missing",
    );
    namespace.finds(
        "l5d-api-control-ready",
        "error",
        "there is no pod of identity",
    );
    namespace.apply(
        "kind: Deployment\nmetadata: {name: linkerd-identity, namespace: NS}\nspec:\n  replicas: 0\n  selector: {matchLabels: {a: b}}\n  template:\n    \
         metadata: {labels: {a: b}}\n    spec: {containers: [{name: identity, image: 'mesh/none:0'}]}\n",
    );
    namespace.finds(
        "control-plane-deployments",
        "error",
        "linkerd-identity is scaled to 0",
    );
}
