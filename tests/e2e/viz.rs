//! The viz extension: statistics from its Prometheus, connections, requests as they pass and the
//! explanation of one, and who may watch them.

mod faults;

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use mesh_test_support::cluster::installation::Installation;
use mesh_test_support::cluster::{Cluster, contains};
use mesh_test_support::command::{Words as _, succeed};
use mesh_test_support::eventually::eventually;
use serde_json::Value;

use crate::shop::{self, Shop};
use crate::snapshot::ClusterSnapshot;

const NAMESPACE: &str = "linkerd-viz";
const CHART: &str = "linkerd-viz";

/// The permission to tap, which the chart creates.
const TAP_ROLE: &str = "linkerd-linkerd-viz-tap-admin";

#[test]
fn viz_extension_shows_traffic_and_uninstalls_cleanly() {
    let Some(cluster) = Cluster::acquire("the viz extension") else {
        return;
    };
    let before = ClusterSnapshot::capture(&cluster);
    let mesh = Installation::by_helm(&cluster, &[]);
    install_by_helm(&cluster);
    {
        let shop = Shop::open(&cluster);
        assert_statistics(&cluster, &shop);
        assert_routes(&cluster, &shop);
        assert_edges(&cluster, &shop);
        assert_tap(&cluster, &shop);
        assert_request_is_explained(&cluster);
        assert_permission_to_tap(&cluster);
        assert_check(&cluster, "--proxy");
        assert_faults_are_named(&cluster);
    }
    uninstall_by_helm(&cluster);
    let manifests = cluster.meshctl("viz install");
    cluster.apply(&manifests);
    wait_until_ready(&cluster);
    assert_eq!(cluster.meshctl("viz prune"), "");
    let objects = cluster.meshctl("viz uninstall");
    cluster.delete(&objects);
    mesh.remove();
    before.assert_restored();
}

#[test]
fn check_of_the_viz_extension_reports_faults_and_its_advice_repairs_them() {
    let Some(cluster) = Cluster::acquire_for_long_test("planted faults of the viz extension")
    else {
        return;
    };
    let mesh = Installation::by_helm(&cluster, &[]);
    install_by_helm(&cluster);
    {
        let _shop = Shop::open(&cluster);
        faults::plant_and_repair(&cluster);
    }
    uninstall_by_helm(&cluster);
    mesh.remove();
}

fn install_by_helm(cluster: &Cluster) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../helm")
        .join(CHART);
    let mut helm = cluster.program("helm");
    helm.args(["install", CHART])
        .arg(path)
        .args(["-n", NAMESPACE, "--create-namespace", "--wait"])
        .args(["--timeout", "5m"]);
    succeed(&mut helm);
    wait_until_ready(cluster);
}

fn wait_until_ready(cluster: &Cluster) {
    for workload in ["metrics-api", "tap", "tap-injector", "web", "prometheus"] {
        cluster.rolled_out(NAMESPACE, &format!("deployment/{workload}"));
    }
    cluster
        .kubectl("wait apiservice/v1alpha1.tap.linkerd.io --for=condition=Available --timeout=60s");
    // Pods must be created after this to be tapped.
    eventually("the API server trusts the tap injector", || {
        let webhooks =
            cluster.json("get mutatingwebhookconfiguration linkerd-tap-injector-webhook-config");
        webhooks["webhooks"][0]["clientConfig"]["caBundle"].is_string()
    });
    let label = cluster.kubectl(format!(
        "get namespace {NAMESPACE} -o jsonpath={{.metadata.labels.linkerd\\.io/extension}}"
    ));
    assert_eq!(label, "viz");
    assert_check(cluster, "");
}

fn assert_check(cluster: &Cluster, flags: &str) {
    let (green, output) = cluster.try_meshctl(format!("viz check --wait 60s {flags}"));
    assert!(green, "meshctl viz check:\n{output}");
}

fn uninstall_by_helm(cluster: &Cluster) {
    let line = format!("uninstall {CHART} -n {NAMESPACE} --wait --timeout 3m");
    succeed(cluster.program("helm").args(line.words()));
    cluster.delete_namespace(NAMESPACE);
}

fn send_requests(shop: &Shop<'_>) {
    let urls = "http://web/ http://web/ http://web/ http://web/";
    let (sent, output) = shop.client(format!("curl -sS --fail --max-time 10 {urls}"));
    assert!(sent, "{output}");
}

fn assert_statistics(cluster: &Cluster, shop: &Shop<'_>) {
    eventually("statistics of the web servers", || {
        send_requests(shop);
        let text = cluster.meshctl(format!(
            "viz stat deploy/web -n {} -o json",
            shop::NAMESPACE
        ));
        let rows: Value =
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let row = &rows[0];
        let counted = row["success"] == 1.0 && row["rps"].as_f64().is_some_and(|rps| rps > 0.0);
        counted.then_some(()).ok_or(text)
    });
}

/// Asserts that the requests that the web servers receive have the route of a ServiceProfile, and
/// that they are the port's requests.
fn assert_routes(cluster: &Cluster, shop: &Shop<'_>) {
    cluster.apply(include_str!("viz/profile.yaml"));
    let has_requests = |row: &Value, success: &str| {
        row[success] == 1.0 && row["rps"].as_f64().is_some_and(|rps| rps > 0.0)
    };
    let shown = |command: &str, is_right: &dyn Fn(&Value) -> bool| {
        eventually(&format!("viz {command} shows received requests"), || {
            send_requests(shop);
            let flags = format!("-n {} -o json", shop::NAMESPACE);
            let text = cluster.meshctl(format!("viz {command} deploy/web {flags}"));
            let rows: Value =
                serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            is_right(&rows).then_some(()).ok_or(text)
        });
    };
    shown("routes", &|tables| {
        let mut rows = tables["deployment/web"].as_array().into_iter().flatten();
        rows.any(|row| row["route"] == "GET /" && has_requests(row, "success"))
    });
    shown("stat-inbound", &|rows| {
        let mut rows = rows.as_array().into_iter().flatten();
        rows.any(|row| row["port"] == "8080" && has_requests(row, "successesRate"))
    });
}

fn assert_edges(cluster: &Cluster, shop: &Shop<'_>) {
    eventually("the connection of client and web server", || {
        send_requests(shop);
        let text = cluster.meshctl(format!("viz edges deploy -n {} -o wide", shop::NAMESPACE));
        let edge = text.lines().find(|line| {
            let mut cells = line.split_whitespace();
            cells.next() == Some("client") && cells.next() == Some("web")
        });
        let edge = edge.ok_or_else(|| text.clone())?.to_owned();
        contains(edge, "client.shop")
    });
}

/// Asserts that a request is shown while it passes, with its path and the identity of its client.
fn assert_tap(cluster: &Cluster, shop: &Shop<'_>) {
    let tap = Tap::start(
        cluster,
        &format!("deploy/web -n {} -o json", shop::NAMESPACE),
    );
    // Probes and scrapes of the web server pass the same tap.
    let event = eventually("a request of the client", || {
        send_requests(shop);
        tap.events.try_iter().find(|event| {
            let client = event["source"]["metadata"]["client_id"].as_str();
            let from_client = client.is_some_and(|client| client.starts_with("client.shop."));
            from_client && !event["requestInitEvent"].is_null()
        })
    });
    assert_eq!(event["requestInitEvent"]["path"], "/");
    assert_eq!(event["proxyDirection"], "INBOUND");
}

/// Asserts that `why` shows the reports of the kernel and both proxies about its request.
fn assert_request_is_explained(cluster: &Cluster) {
    let question = format!(
        "why -o json -n {} deploy/client web:80 -- GET /",
        shop::NAMESPACE
    );
    let text = cluster.meshctl(question);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let steps = report["steps"].as_array().expect("a list");
    let summary = |name: &str| {
        let step = steps.iter().find(|step| step["name"] == name);
        let step = step.unwrap_or_else(|| panic!("no step {name}: {text}"));
        assert_eq!(step["outcome"], "ok", "{text}");
        step["summary"].as_str().expect("a text").to_owned()
    };
    assert_eq!(report["verdict"]["status"], 200, "{text}");
    assert!(summary("kernel").contains("redirected to the client's proxy at"));
    assert!(summary("endpoint").contains("pod shop/web-"), "{text}");
    assert_eq!(summary("tls"), "mutual TLS between the proxies");
    assert!(summary("delivery").starts_with("given to the proxy of pod shop/web-"));
    // The server's proxy itself reports this.
    assert!(summary("policy").contains(" admitted it by "), "{text}");
}

/// Asserts that a user without permission is refused, and that the role of the chart permits it in
/// the namespace of its binding.
fn assert_permission_to_tap(cluster: &Cluster) {
    let tap = format!(
        "viz tap deploy/web -n {} --as alice --max-rps 1",
        shop::NAMESPACE
    );
    let (allowed, output) = cluster.try_meshctl(&tap);
    assert!(!allowed && output.contains("alice"), "{output}");
    cluster.kubectl(format!(
        "create rolebinding tap -n {} --clusterrole={TAP_ROLE} --user=alice",
        shop::NAMESPACE
    ));
    let can_tap = |namespace: &str| {
        let line = format!(
            "auth can-i watch deployments.tap.linkerd.io/web --subresource=tap -n {namespace} --as alice"
        );
        cluster.try_kubectl(line).1.trim() == "yes"
    };
    assert!(can_tap(shop::NAMESPACE) && !can_tap("default"));
}

/// Asserts that `viz check` names the broken part, and is green again after the repair.
fn assert_faults_are_named(cluster: &Cluster) {
    let named = |expected: &str| {
        eventually(expected, || {
            let (_green, output) = cluster.try_meshctl("viz check -o short");
            contains(output, expected)
        });
    };
    for deployment in ["prometheus", "tap"] {
        let scale = |replicas: u32| {
            let line =
                format!("scale deployment {deployment} -n {NAMESPACE} --replicas={replicas}");
            cluster.kubectl(line);
        };
        scale(0);
        named(&format!("Deployment {deployment} has no replicas"));
        scale(1);
        cluster.rolled_out(NAMESPACE, &format!("deployment/{deployment}"));
    }
    let binding = format!("clusterrolebinding linkerd-{NAMESPACE}-metrics-api");
    let mut saved = cluster.json(format!("get {binding}"));
    let metadata = saved["metadata"].as_object_mut().expect("an object");
    metadata.retain(|key, _| ["name", "labels", "annotations"].contains(&key.as_str()));
    cluster.kubectl(format!("delete {binding}"));
    named(&format!(
        "ClusterRoleBinding linkerd-{NAMESPACE}-metrics-api is missing"
    ));
    cluster.apply(&saved.to_string());
    assert_check(cluster, "");
}

/// A running `meshctl viz tap -o json`; dropping it ends it.
struct Tap {
    child: Child,
    events: Receiver<Value>,
}

impl Tap {
    fn start(cluster: &Cluster, arguments: &str) -> Self {
        let mut child = cluster
            .program("meshctl")
            .args(["viz", "tap"])
            .args(arguments.words())
            .stdout(Stdio::piped())
            .spawn()
            .expect("meshctl starts");
        let stdout = child.stdout.take().expect("a piped output");
        let (events_tx, events) = channel();
        thread::spawn(move || {
            let events = serde_json::Deserializer::from_reader(stdout).into_iter();
            for event in events.map_while(Result::ok) {
                if events_tx.send(event).is_err() {
                    break;
                }
            }
        });
        Self { child, events }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
