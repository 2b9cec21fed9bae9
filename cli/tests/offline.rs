//! What `meshctl` does without a cluster: which one it takes, how it fails, and what works all the
//! same.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot be set up fails where it stands"
)]

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

/// A kubeconfig of a cluster that nobody runs: port 1 of the loopback refuses.
const NOBODY: &str = "\
apiVersion: v1
kind: Config
current-context: nobody
clusters: [{name: nobody, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: nobody, context: {cluster: nobody, user: me}}, {name: other, context: {cluster: nobody, user: me}}]
users: [{name: me, user: {}}]
";

fn meshctl(args: &[&str], input: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    std::fs::write(&kubeconfig, NOBODY).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_meshctl"))
        .args(args)
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who does not read its input has closed it.
    let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn ends(args: &[&str], code: i32, says: &str) {
    let output = meshctl(args, "");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(said.contains(says), "{args:?}: {said}");
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    ends(&["stat"], 69, "the API server does not answer");
    ends(&["status"], 69, "context nobody");
    ends(&["check"], 1, "k8s-api");
    ends(&["version"], 0, "Server version: unavailable");
    ends(&["version", "--client"], 0, "Client version:");
    ends(
        &["--context", "gone", "stat"],
        65,
        "there are: nobody, other",
    );
    ends(
        &["--kubeconfig", "/no/such/file", "stat"],
        65,
        "/no/such/file",
    );
    ends(
        &["identity", "--context", "other", "x"],
        69,
        "does not answer",
    );
    ends(&["check", "--pre", "--proxy"], 64, "cannot be used with");
    ends(
        &["--local", "a", "--context", "b", "stat"],
        64,
        "cannot be used with",
    );
    ends(&["inject", "/no/such/file"], 65, "/no/such/file");
    ends(&["diagnostics", "policy", "deploy/x", "80"], 65, "none of");
}

const SHOP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: app, image: 'app:1'}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web, namespace: shop}
";

#[test]
fn inject_asks_the_clusters_injector() {
    let output = meshctl(&["inject", "--opaque-ports", "3306", "-"], SHOP);
    let (manifest, report) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(
        manifest.contains("linkerd.io/inject: enabled"),
        "{manifest}"
    );
    assert!(
        manifest.contains("config.linkerd.io/opaque-ports: '3306'"),
        "{manifest}"
    );
    assert!(report.contains("deployment shop/web annotated"), "{report}");
    assert!(report.contains("1 other object as before"), "{report}");

    // Twice is once.
    let again = meshctl(&["inject", "--opaque-ports", "3306", "-"], &manifest);
    assert_eq!(text(&again.stdout), manifest);
}

#[test]
fn uninject_gives_back_what_inject_took() {
    let manual = meshctl(&["inject", "--manual", "--ignore-cluster", "-"], SHOP);
    let injected = text(&manual.stdout);
    assert!(injected.contains("name: linkerd-proxy"), "{injected}");
    assert!(text(&manual.stderr).contains("deployment shop/web injected"));
    let output = meshctl(&["uninject", "-"], &injected);
    let manifest = text(&output.stdout);
    assert!(!manifest.contains("linkerd-proxy"), "{manifest}");
    assert!(text(&output.stderr).contains("deployment shop/web uninjected"));
}

#[test]
fn completion_needs_nobody() {
    for shell in ["bash", "zsh", "fish"] {
        let output = meshctl(&["completion", shell], "");
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("sysdump"), "{shell}");
    }
}
