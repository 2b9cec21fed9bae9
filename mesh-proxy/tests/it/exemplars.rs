//! Exemplars of traced requests, as a real Prometheus stores them.

use std::collections::BTreeSet;

use mesh_test_support::command::are_installed;
use serde_json::Value;

use crate::harness::{HttpApp, Mesh, Pod, eventually, policies};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A collector that cannot be reached, which exemplars do not depend on.
const TRACING: [(&str, &str); 3] = [
    ("TRACE_COLLECTOR_SVC_ADDR", "localhost.:4317"),
    (
        "TRACE_COLLECTOR_SVC_NAME",
        "collector.test.serviceaccount.identity.linkerd.cluster.local",
    ),
    ("TRACE_PROTOCOL", "opentelemetry"),
];

/// Scrapes the proxy of the pod that Prometheus runs in.
const CONFIGURATION: &str = "\
global: {scrape_interval: 250ms, scrape_timeout: 250ms}
scrape_configs:
- job_name: linkerd-proxy
  static_configs: [{targets: ['127.0.0.1:4191']}]
";

const PROMETHEUS: u16 = 9090;

#[tokio::test]
async fn prometheus_stores_the_series_of_the_text_format_and_exemplars() {
    if !are_installed(&["prometheus", "curl"]) {
        return;
    }
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed_with(&TRACING).await;
    let client = mesh.pod("client").meshed().await;
    let endpoint = policies::meshed(&server, 8080);
    mesh.control.service(SERVICE, "web", [endpoint]);
    let _app = HttpApp::start(&server, 8080, OK).await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("prometheus.yml"), CONFIGURATION).unwrap();
    let prometheus = [
        "prometheus",
        "--enable-feature=exemplar-storage",
        &format!("--config.file={}", path("prometheus.yml")),
        &format!("--storage.tsdb.path={}", path("data")),
        &format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"),
        "--log.level=error",
    ];
    let _prometheus = server.serve(PROMETHEUS, prometheus).await;

    for fields in [
        String::new(),
        format!("traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n"),
    ] {
        let request = format!("GET /a HTTP/1.1\r\nHost: web\r\nConnection: close\r\n{fields}\r\n");
        let answer = client.exchange(SERVICE, request).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    for family in [
        "response_latency_ms",
        "inbound_http_request_duration_seconds",
        "inbound_http_response_duration_seconds",
    ] {
        let query = format!("query_exemplars?start=0&end=4102444800&query={family}_bucket");
        let exemplars = eventually(&query, || async {
            let found = get(&server, &query).await;
            found.as_array().filter(|found| !found.is_empty()).cloned()
        })
        .await;
        let [series] = &exemplars[..] else {
            panic!("the traced request has one exemplar: {exemplars:?}");
        };
        let [exemplar] = &series["exemplars"].as_array().unwrap()[..] else {
            panic!("the traced request has one exemplar: {series}");
        };
        assert_eq!(exemplar["labels"]["trace_id"], TRACE);
        assert_eq!(exemplar["labels"]["span_id"].as_str().unwrap().len(), 16);
    }

    let text = names(&server.metrics().await);
    eventually("Prometheus has all names of the text format", || async {
        let stored = get(&server, "label/__name__/values").await;
        let stored: BTreeSet<String> = serde_json::from_value(stored).unwrap();
        let missing: Vec<_> = text.difference(&stored).collect();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(format!("{missing:?} are missing"))
        }
    })
    .await;
}

/// Calls the API of Prometheus and returns its data.
async fn get(pod: &Pod, path: &str) -> Value {
    let url = format!("http://127.0.0.1:{PROMETHEUS}/api/v1/{path}");
    let response = pod.run(["curl", "-sS", &url]).await;
    let mut response: Value = serde_json::from_str(&response).unwrap();
    response["data"].take()
}

/// The names of the series in a response of the admin interface.
fn names(response: &str) -> BTreeSet<String> {
    let (_head, body) = response.split_once("\r\n\r\n").unwrap();
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split(['{', ' ']).next());
    names.map(str::to_owned).collect()
}
