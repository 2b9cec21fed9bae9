//! A scripted Prometheus: the series that the dashboard itself asks for.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use mesh_test_support::kube_api;
use serde_json::{Value, json};

/// A metric, the labels of a sample, and its value.
type Series = (&'static str, &'static [(&'static str, &'static str)], f64);

/// The seconds until the certificates of both pods expire.
const VALID: f64 = 61_000.0;

/// The Service's endpoints have the same addresses.
const SERIES: [Series; 12] = [
    (
        "mesh_agent_tier_info",
        &[
            ("node", "node-a"),
            ("tier", "full"),
            ("reason", "the self-test passed"),
        ],
        1.0,
    ),
    (
        "mesh_agent_tier_info",
        &[
            ("node", "node-b"),
            ("tier", "nft"),
            ("reason", "the kernel has no sk_assign"),
        ],
        1.0,
    ),
    (
        "response_total",
        &[("target_ip", "10.1.0.5"), ("classification", "success")],
        7_300.0,
    ),
    (
        "response_total",
        &[("target_ip", "10.1.0.6"), ("classification", "success")],
        7_080.0,
    ),
    (
        "response_total",
        &[("target_ip", "10.1.0.6"), ("classification", "failure")],
        20.0,
    ),
    ("tcp_open_connections", &[("target_ip", "10.1.0.5")], 2.0),
    ("tcp_open_connections", &[("target_ip", "10.1.0.6")], 3.0),
    ("histogram_quantile(0.5,", &[("target_ip", "10.1.0.5")], 9.0),
    (
        "histogram_quantile(0.95,",
        &[("target_ip", "10.1.0.5")],
        28.0,
    ),
    (
        "histogram_quantile(0.99,",
        &[("target_ip", "10.1.0.5")],
        37.0,
    ),
    (
        "histogram_quantile(0.99,",
        &[("target_ip", "10.1.0.6")],
        41.0,
    ),
    (
        "histogram_quantile(0.5,",
        &[("target_ip", "10.1.0.6")],
        11.0,
    ),
];

/// Serves until the process ends.
pub(crate) async fn serve() -> SocketAddr {
    kube_api::start(respond).await
}

async fn respond(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let form = request.into_body().collect().await.unwrap().to_bytes();
    let query = form_urlencoded::parse(&form).find(|(name, _)| name == "query");
    let query = query
        .map(|(_, query)| query.into_owned())
        .unwrap_or_default();
    let body = json!({ "status": "success", "data": { "resultType": "vector", "result": vector(&query) } });
    kube_api::response(StatusCode::OK, &body)
}

fn vector(query: &str) -> Vec<Value> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let sample =
        |labels: &Value, value: f64| json!({ "metric": labels, "value": [now, value.to_string()] });
    if query.contains("control_identity_cert_expiration_timestamp_seconds") {
        let pods = ["web-7f9c6-x2v4k", "web-7f9c6-q8zlm"];
        return pods
            .map(|pod| sample(&json!({ "pod": pod }), now + VALID))
            .to_vec();
    }
    let found = SERIES.iter().filter(|(name, ..)| query.contains(name));
    let samples = found.map(|(_, labels, value)| {
        let labels: Value = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        sample(&labels, *value)
    });
    samples.collect()
}
