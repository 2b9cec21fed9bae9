//! `meshctl` without a reachable cluster: selection of the target, exit codes, and the commands
//! that need no cluster.

#![expect(clippy::unwrap_used, reason = "failed set-up fails the test")]

use std::process::{Command, Output};

use mesh_test_support::command::{feed, text};

/// A kubeconfig of an unreachable cluster: port 1 of the loopback interface refuses connections.
const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: absent
clusters: [{name: absent, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: absent, context: {cluster: absent, user: me}}, {name: other, context: {cluster: absent, user: me}}]
users: [{name: me, user: {}}]
";

fn meshctl(args: &[&str], input: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshctl"));
    command
        .args(args)
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE");
    feed(&mut command, input)
}

#[track_caller]
fn check(args: &[&str], code: i32, message: &str) {
    let output = meshctl(args, "");
    let output_text = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {output_text}");
    assert!(output_text.contains(message), "{args:?}: {output_text}");
}

#[test]
fn exit_codes_distinguish_failures() {
    check(&["stat"], 69, "the API server is unreachable");
    check(&["status"], 69, "context absent");
    check(&["check"], 1, "k8s-api");
    check(&["version"], 0, "Server version: unavailable");
    check(&["version", "--client"], 0, "Client version:");
    check(
        &["--context", "gone", "stat"],
        65,
        "available contexts: absent, other",
    );
    check(
        &["--kubeconfig", "/no/such/file", "stat"],
        65,
        "/no/such/file",
    );
    check(
        &["identity", "--context", "other", "x"],
        69,
        "is unreachable",
    );
    check(&["check", "--pre", "--proxy"], 64, "cannot be used with");
    check(
        &["--local", "a", "--context", "b", "stat"],
        64,
        "cannot be used with",
    );
    check(&["inject", "/no/such/file"], 65, "/no/such/file");
    check(
        &["machine", "list", "--socket", "/no/such/socket"],
        69,
        "cannot connect to the node agent at /no/such/socket",
    );
    check(
        &["machine", "enrol", "a", "--annotation", "x"],
        64,
        "KEY=VALUE",
    );
    check(
        &["diagnostics", "policy", "deploy/x", "80"],
        65,
        "invalid resource",
    );
}

#[test]
fn viz_commands_say_what_is_missing() {
    check(
        &["viz", "stat", "deploy"],
        69,
        "cannot find the namespace of the viz extension (--viz-namespace names it)",
    );
    check(
        &["viz", "stat", "gadget"],
        65,
        "invalid resource \"gadget\"",
    );
    check(&["viz", "stat", "deploy", "-t", "5s"], 64, "at least 15 s");
    check(&["viz", "edges", "deploy/web"], 65, "write deploy instead");
    check(
        &["viz", "tap", "deploy", "-n", "shop"],
        65,
        "as in deploy/NAME",
    );
    check(&["viz", "tap", "deploy/web"], 69, "cannot tap");
    check(
        &["viz", "stat-inbound", "svc/web"],
        65,
        "services have no proxies",
    );
    check(
        &[
            "viz",
            "stat-outbound",
            "deploy",
            "--prometheus-url",
            "https://a",
        ],
        65,
        "expected the scheme http",
    );
    check(
        &["viz", "--api-addr", "127.0.0.1:1", "tap", "deploy/web"],
        65,
        "--api-addr has no effect on `meshctl viz tap`",
    );
    check(
        &["viz", "--api-addr", "127.0.0.1:1", "stat", "deploy"],
        69,
        "cannot connect to the metrics API at 127.0.0.1:1",
    );
    check(&["viz", "top", "--help"], 0, "s and S select the column");
    check(&["viz", "stat", "--help"], 0, "meshctl viz stat ns --watch");
    check(
        &["viz", "allow-scrapes", "-n", "shop"],
        0,
        "kind: AuthorizationPolicy",
    );
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
fn inject_adds_annotations_for_the_injector() {
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
    assert!(report.contains("1 other object unchanged"), "{report}");

    // A second run changes nothing.
    let again = meshctl(&["inject", "--opaque-ports", "3306", "-"], &manifest);
    assert_eq!(text(&again.stdout), manifest);
}

#[test]
fn uninject_removes_injected_proxy() {
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
fn completion_works_without_a_cluster() {
    for shell in ["bash", "zsh", "fish"] {
        let output = meshctl(&["completion", shell], "");
        assert_eq!(output.status.code(), Some(0));
        let script = text(&output.stdout);
        assert!(script.contains("sysdump"), "{shell}");
        assert!(script.contains("allow-scrapes"), "{shell}");
    }
}

#[test]
fn profile_is_printed_without_a_cluster() {
    let profile = ["profile", "--ignore-cluster", "-n", "shop"];
    let with = |more: &[&'static str]| [&profile[..], more].concat();
    let name = "name: web.shop.svc.cluster.local";
    check(&with(&["--template", "web"]), 0, name);
    let json = with(&["--template", "web", "-o", "json"]);
    check(&json, 0, "\"pathRegex\": \"/orders\"");
    check(&with(&["web"]), 64, "--template");
    check(
        &with(&["--template", "--proto", "-", "web"]),
        64,
        "cannot be used with",
    );
    check(
        &with(&["--template", "Web"]),
        65,
        "\"Web\" is not the name of a Service",
    );
    check(
        &with(&["--open-api", "/no/such/file", "web"]),
        65,
        "read /no/such/file",
    );
    let proto = "syntax = \"proto3\"; message M {} service S { rpc Do (M) returns (M); }";
    let output = meshctl(&with(&["--proto", "-", "web"]), proto);
    assert!(text(&output.stdout).contains("pathRegex: /S/Do\n"));
    let output = meshctl(&with(&["--open-api", "-", "web"]), "openapi: 3.0.0");
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(text(&output.stderr), "error: -: paths: has no operations\n");
}

/// The mesh's own objects must not be among the findings about users' objects.
#[test]
fn analysis_of_the_charts_finds_nothing() {
    if Command::new("helm").arg("version").output().is_err() {
        println!("skipped: the program helm is not on the PATH");
        return;
    }
    let charts = concat!(env!("CARGO_MANIFEST_DIR"), "/../helm");
    let rendered = |chart: &str, namespace: &str, values: &[&str]| {
        let mut helm = Command::new("helm");
        helm.args(["template", chart, &format!("{charts}/{chart}")])
            .args(["--namespace", namespace])
            .args(values.iter().flat_map(|value| ["--set", value]));
        let output = helm.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout) + "\n---\n"
    };
    let definitions = rendered("linkerd-crds", "linkerd", &[]);
    let mesh = [
        &[][..],
        &["cniEnabled=true", "meshAgent.enabled=false"],
        &["proxy.nativeSidecar=true", "enablePodDisruptionBudget=true"],
    ];
    let viz = [
        &[][..],
        &["prometheus.enabled=false", "prometheusUrl=http://a"],
        &[
            "dashboard.access.identities={*}",
            "dashboard.access.networks={10.0.0.0/8}",
        ],
    ];
    for (mesh, viz) in mesh.into_iter().zip(viz) {
        let objects = definitions.clone()
            + &rendered("linkerd-control-plane", "linkerd", mesh)
            + &rendered("linkerd-viz", "linkerd-viz", viz);
        let output = meshctl(&["analyze", "-"], &objects);
        let found = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{viz:?}: {found}");
        assert!(found.contains("no findings"), "{found}");
    }
    // Without its users, an authentication of the chart is a finding.
    let alone = rendered("linkerd-viz", "linkerd-viz", &[])
        .split("\n---\n")
        .filter(|object| !object.contains("kind: AuthorizationPolicy"))
        .collect::<Vec<_>>()
        .join("\n---\n");
    let output = meshctl(&["analyze", "-"], &alone);
    assert!(
        text(&output.stdout).contains("kubelet"),
        "{}",
        text(&output.stdout)
    );
}
