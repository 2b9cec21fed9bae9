//! `meshctl viz` with the real metrics API and a real Prometheus. Needs no root.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;
use std::time::Instant;

use mesh_test_support::command::{are_installed, built, output_text};
use mesh_test_support::eventually::eventually;
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::Value;

const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: a}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1-a
  namespace: shop
  labels: {linkerd.io/control-plane-ns: linkerd}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: b}]
spec: {containers: [], serviceAccountName: web}
status: {phase: Running, podIP: 10.0.0.1}
";

/// Each of these grows by one in a millisecond.
const COUNTERS: [&str; 2] = [
    r#"response_total{direction="inbound",namespace="shop",deployment="web",pod="web-1-a",classification="success",tls="true",srv_kind="server",srv_name="web-http"}"#,
    r#"inbound_http_authz_deny_total{namespace="shop",deployment="web",pod="web-1-a",srv_kind="server",srv_name="web-http"}"#,
];

/// A connection of the Deployment to itself.
const CONNECTIONS: &str = r#"tcp_open_connections{direction="outbound",peer="dst",namespace="shop",deployment="web",pod="web-1-a",dst_namespace="shop",dst_deployment="web",server_id="web.shop.serviceaccount.identity.linkerd.cluster.local"}"#;

/// Serves the series until the process ends.
fn serve_series() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let start = Instant::now();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept");
            let mut request = [0; 4096];
            // Prometheus sends a request in one segment.
            let _read = stream.read(&mut request).expect("a request");
            let value = start.elapsed().as_millis();
            let counters = COUNTERS.map(|series| format!("{series} {value}\n"));
            let body = format!("{}{CONNECTIONS} 3\n", counters.concat());
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close";
            let response = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(response.as_bytes()).expect("respond");
        }
    });
    addr
}

fn start_prometheus(directory: &std::path::Path, target: SocketAddr) -> (Program, SocketAddr) {
    let config = directory.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: linkerd-proxy, honor_labels: true, static_configs: [{{targets: ['{target}']}}]}}]\n"
    );
    std::fs::write(&config, text).expect("write the configuration");
    let addr = free_address();
    let data = directory.join("data");
    let prometheus = Program::start(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={addr}"))
            .arg("--log.level=error"),
    );
    (prometheus, addr)
}

fn start_metrics_api(directory: &std::path::Path, prometheus: SocketAddr) -> (Program, SocketAddr) {
    let manifests = directory.join("manifests");
    std::fs::create_dir(&manifests).expect("create a directory");
    std::fs::write(manifests.join("shop.yaml"), OBJECTS).expect("write the manifests");
    let (addr, admin) = (free_address(), free_address());
    let controller = Program::start(
        Command::new(built("mesh-viz"))
            .arg("metrics-api")
            .arg("--source-dir")
            .arg(manifests)
            .arg(format!("--addr={addr}"))
            .arg(format!("--metrics-addr={admin}"))
            .arg(format!("--prometheus-url=http://{prometheus}")),
    );
    (controller, addr)
}

/// Runs `meshctl viz` and returns its standard output, or why it failed.
fn viz(args: &str) -> Result<String, String> {
    let output = Command::new(built("meshctl"))
        .args(["viz", "-n", "shop"])
        .args(args.split(' '))
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(output_text(&output));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn json(args: &str) -> Result<Value, String> {
    let text = viz(&format!("{args} -o json"))?;
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}

#[test]
fn viz_commands_show_what_the_metrics_api_reads_from_prometheus() {
    if !are_installed(&["prometheus"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("create a directory");
    let (_prometheus, addr) = start_prometheus(directory.path(), serve_series());
    let (_controller, api) = start_metrics_api(directory.path(), addr);
    let api = format!("--api-addr {api}");

    let stat = eventually("the Deployment has requests", || {
        let rows = json(&format!("{api} stat deploy -t 15s"))?;
        match rows[0]["rps"].as_f64() {
            Some(_) => Ok(rows),
            None => Err(rows.to_string()),
        }
    });
    let row = &stat[0];
    assert_eq!(
        (&row["name"], &row["meshed"]),
        (&"web".into(), &"1/1".into())
    );
    assert_eq!(row["success"], 1.0);
    let table = viz(&format!("{api} stat all -t 15s")).expect("a table");
    assert!(table.contains("deploy/web"), "{table}");
    assert!(table.contains("po/web-1-a"), "{table}");

    let edges = json(&format!("{api} edges deploy")).expect("edges");
    assert_eq!(
        (&edges[0]["src"], &edges[0]["dst"]),
        (&"web".into(), &"web".into())
    );
    assert_eq!(edges[0]["server_id"], "web.shop");

    let authz = json(&format!("{api} authz deploy/web -t 15s")).expect("authorizations");
    let is_denied = |row: &Value| row["unauthorized"].as_f64() > Some(0.0);
    let rows = authz.as_array().expect("an array");
    assert!(rows.iter().any(is_denied), "{authz}");
    assert!(
        rows.iter().all(|row| row["server"] == "web-http"),
        "{authz}"
    );

    let missing = viz(&format!("{api} stat deploy/gone")).expect_err("no such Deployment");
    assert!(missing.contains("\"gone\" not found"), "{missing}");
    let refused = viz(&format!("{api} routes deploy/web")).expect_err("no ServiceProfile");
    assert!(refused.contains("No Service Profiles found"), "{refused}");

    let url = format!("--prometheus-url http://{addr} -t 15s");
    let inbound = json(&format!("stat-inbound deploy/web {url}")).expect("received requests");
    assert_eq!(
        (&inbound[0]["name"], &inbound[0]["server"]),
        (&"web".into(), &"web-http".into())
    );
    assert_eq!(inbound[0]["successesRate"], 1.0);
    let outbound = json(&format!("stat-outbound deploy/web {url}")).expect("sent requests");
    assert_eq!(outbound, Value::Array(Vec::new()));
}
