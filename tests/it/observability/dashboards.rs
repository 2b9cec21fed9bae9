//! A mesh with traffic, scraped by a real Prometheus with the labels of Linkerd's scrape
//! configuration.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use mesh_test_support::command::are_installed;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;
use serde_json::Value;

use super::panels::{Query, Variables, queries};
use crate::harness::mesh::Mesh;
use crate::harness::prometheus::Prometheus;
use crate::mesh::{manifests, send_requests};

/// The number of requests that the load generator sends.
const REQUESTS: u32 = 3000;

/// Denies every client of nginx's other port.
const SERVER: &str = "\
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: closed, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  port: h2c
  proxyProtocol: HTTP/2
";

/// The pod that is looked at, as its Deployment, its Service and so on.
const VARIABLES: Variables<'_> = &[
    ("job", ".+"),
    ("scrape_job", ".+"),
    ("instance", ".+"),
    ("component", ".+"),
    ("namespace", "shop"),
    ("deployment", "web"),
    ("pod", "web"),
    ("service", "web"),
    ("route", "default"),
    ("authority", "web.shop.svc.cluster.local"),
];

/// Dashboards whose panels this mesh fills.
const FILLED: [&str; 10] = [
    "linkerd-authority",
    "linkerd-deployment",
    "linkerd-health",
    "linkerd-namespace",
    "linkerd-pod",
    "linkerd-service",
    "linkerd-top-line",
    "mesh-certificates",
    "mesh-node-agent",
    "mesh-policy",
];

/// Queries about faults, and about features that this mesh does not have.
const EMPTY: [&str; 19] = [
    // The pod `web` calls only itself.
    r#"direction="outbound", tls="true""#,
    r#"grpc_code!="Ok""#,
    r#"result="error""#,
    r#"tls!="true""#,
    "inbound_http_local_ratelimit_total",
    "inbound_http_route_not_found_total",
    "inbound_tcp_authz_allow_total",
    "inbound_tcp_authz_terminate_total",
    "mesh_agent_guard_bypasses_total",
    "mesh_agent_repairs_total",
    "mesh_agent_waiting_pods",
    "mesh_proxy_inbound_terminated_total",
    "mesh_proxy_refused_total",
    "mesh_trust_bundle_failures_total",
    "outbound_tcp_balancer_",
    "sum (rate(inbound_tcp_authz_deny_total",
    "sum by (srv_name) (rate(inbound_tcp_authz_deny_total",
    "tcp_close_total",
    "webhook_cert_ttl_seconds",
];

#[test]
fn panels_show_what_a_load_generator_counts() {
    require_root!();
    if !are_installed(&["prometheus", "curl", "nginx", "h2load"]) {
        return;
    }
    let shop = [
        manifests::namespace("shop", true),
        manifests::client("shop"),
        manifests::web("shop"),
        SERVER.to_owned(),
    ]
    .concat();
    let mesh = Mesh::up(&[("shop.yaml", &shop)]);
    let prometheus = Prometheus::start(&configuration(&mesh));
    eventually("all targets are scraped", || {
        let down = prometheus.query("up == 0").ok()?;
        let up = prometheus.query("up == 1").ok()?;
        (down.is_empty() && up.len() == 6).then_some(())
    });
    mesh.exec(
        "shop/client",
        format!("h2load --h1 -n {REQUESTS} -c 4 http://web.shop/"),
    );
    mesh.exec("shop/web", "h2load --h1 -n 100 -c 1 http://web.shop/");
    for seen in [
        r#"sum(request_total{direction="outbound", pod="client", dst_service="web", authority="web.shop.svc.cluster.local"})"#,
        r#"sum(response_total{direction="inbound", pod="web", client_id=~"client.shop.+", classification="success"})"#,
        r#"sum(response_latency_ms_bucket{direction="inbound", pod="web", client_id=~"client.shop.+", le="+Inf"})"#,
    ] {
        eventually(&format!("{seen} is {REQUESTS}"), || {
            (prometheus.number(seen)? == f64::from(REQUESTS)).then_some(())
        });
    }

    // A counter that appears with its first increment has no rate before the next one.
    eventually("denials have a rate", || {
        mesh.exec("shop/client", "h2load -p h2c -n 5 -c 1 http://web.shop:81/");
        let rate = r#"sum(rate(inbound_http_authz_deny_total{srv_name="closed"}[1m]))"#;
        prometheus.number(rate).filter(|rate| *rate > 0.0)
    });

    // A proxy forgets a destination that has no requests, and its gauges with it.
    let _requests = send_requests(&mesh, "shop/client", "http://web.shop/", 10);
    eventually("the client's proxy balances again", || {
        let endpoints = r#"outbound_http_balancer_endpoints{parent_name="web"}"#;
        prometheus.number(&format!("sum({endpoints})"))
    });
    let mut empty = BTreeSet::new();
    for query in queries(VARIABLES) {
        let Query {
            dashboard,
            panel,
            expression,
        } = &query;
        let result = prometheus
            .query(expression)
            .unwrap_or_else(|error| panic!("{dashboard}, {panel}: {error}: {expression}"));
        if result.is_empty() && FILLED.contains(&dashboard.as_str()) {
            empty.insert(format!("{dashboard}: {panel}: {expression}"));
        }
    }
    let unexpected: Vec<&String> = empty
        .iter()
        .filter(|query| !EMPTY.iter().any(|known| query.contains(known)))
        .collect();
    assert!(unexpected.is_empty(), "no data for {unexpected:#?}");
}

/// Static targets with the labels that service discovery would give them.
fn configuration(mesh: &Mesh) -> String {
    let status = mesh.json("local status -o json");
    let mut text = String::from("global: {scrape_interval: 1s}\nscrape_configs:\n");
    let proxies = ["client", "web"].map(|name| proxy(mesh, name));
    let controllers = controllers(&status);
    let agent = format!(
        "{{targets: ['{}:9993'], labels: {{node: local}}}}",
        node(&status)
    );
    for (job, targets) in [
        ("linkerd-proxy", proxies.join(", ")),
        ("linkerd-controller", controllers.join(", ")),
        ("mesh-agent", agent),
    ] {
        let written = writeln!(text, "- job_name: {job}\n  static_configs: [{targets}]");
        written.expect("a string takes all text");
    }
    text
}

/// The proxy of a pod in namespace `shop`, with the labels of a Deployment of the same name.
pub(super) fn proxy(mesh: &Mesh, name: &str) -> String {
    let address = mesh.address("shop", name);
    format!(
        "{{targets: ['{address}:4191'], labels: {{namespace: shop, pod: {name}, deployment: {name}}}}}"
    )
}

/// The admin ports of the controllers on a local node.
fn controllers(status: &Value) -> Vec<String> {
    let address = |name: &str| {
        let pods = status["pods"].as_array().expect("the status lists pods");
        let pod = pods.iter().find(|pod| {
            let found = pod["name"].as_str();
            pod["namespace"] == "linkerd" && found.is_some_and(|found| found.contains(name))
        });
        let pod = pod.unwrap_or_else(|| panic!("no pod of {name}: {status}"));
        pod["ips"][0].as_str().expect("an address").to_owned()
    };
    [
        ("identity", "identity", 9990),
        ("destination", "destination", 9996),
        ("destination", "policy", 9990),
    ]
    .map(|(pod, component, port)| {
        let address = address(pod);
        format!("{{targets: ['{address}:{port}'], labels: {{component: {component}}}}}")
    })
    .into()
}

/// The node's own address: the first of its Services' addresses.
fn node(status: &Value) -> String {
    let service = status["services"][0]["addresses"][0].as_str();
    let (network, _) = service
        .and_then(|address| address.rsplit_once('.'))
        .unwrap_or_else(|| panic!("no Service with an IPv4 address: {status}"));
    format!("{network}.1")
}
