//! The pods and endpoints of one workload in the dashboard, with metrics that a real Prometheus has
//! scraped.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::{Value, json};

use super::Web;
use super::scripted::Pace;
use super::scripted::cluster::MANY_ENDPOINTS;
use crate::metrics_api::{Prometheus, serve_series};

const WEB: &str = "namespace=shop&resource_type=deploy&resource_name=web";

/// Seconds since 1970.
const EXPIRY: u64 = 1_900_000_000;

/// Requests per second to the first endpoint.
const RATE: u64 = 50;

#[tokio::test]
async fn workload_without_running_pods_has_empty_responses() {
    let web = Web::start().await;
    // Its pods are listed by the metrics API and have gone from the API server.
    let about = "namespace=shop&resource_type=deploy&resource_name=catalog";
    let proxies = web.get(&format!("/api/proxies?{about}")).await.json();
    assert_eq!(proxies["pods"], json!([]));
    let service = "namespace=shop&resource_type=service&resource_name=catalog";
    let endpoints = web.get(&format!("/api/endpoints?{service}")).await.json();
    assert_eq!(endpoints["endpoints"], json!([]));
}

#[tokio::test]
async fn endpoints_and_pods_are_bounded() {
    let web = Web::start().await;
    let many = "namespace=shop&resource_type=service&resource_name=many";
    let endpoints = web.get(&format!("/api/endpoints?{many}")).await.json();
    assert_eq!(endpoints["endpoints"].as_array().unwrap().len(), 500);
    assert_eq!(endpoints["endpointsOmitted"], MANY_ENDPOINTS - 500);
    assert_eq!(endpoints["slicesOmitted"], true);
    let proxies = web.get(&format!("/api/proxies?{many}")).await.json();
    assert_eq!(proxies["podsOmitted"], MANY_ENDPOINTS - 20);
}

#[tokio::test]
async fn prometheus_that_is_down_is_named_and_leaves_what_objects_say() {
    let flags = ["--prometheus-url=http://127.0.0.1:1".to_owned()];
    let web = Web::start_with(Pace::Steady, &flags).await;
    let proxies = web.get(&format!("/api/proxies?{WEB}")).await.json();
    let problem = proxies["metricsProblem"].as_str().unwrap();
    assert!(problem.contains("127.0.0.1:1"), "{problem}");
    assert_eq!(proxies["pods"].as_array().unwrap().len(), 2);
    assert_eq!(proxies["pods"][0]["node"], "node-b");
    assert!(proxies["pods"][0]["certificateExpires"].is_null());

    let service = "namespace=shop&resource_type=service&resource_name=web";
    let endpoints = web.get(&format!("/api/endpoints?{service}")).await.json();
    assert_eq!(endpoints["endpoints"].as_array().unwrap().len(), 2);
    assert_eq!(endpoints["slicesOmitted"], false);
    assert!(endpoints["endpoints"][0]["stats"].is_null());
    assert!(endpoints["metricsProblem"].is_string());
}

#[tokio::test]
async fn questions_without_pods_or_endpoints_are_refused() {
    let web = Web::start().await;
    for (path, problem) in [
        ("proxies?namespace=shop", "resource_name is missing"),
        (
            "proxies?resource_type=cronjob&resource_name=a",
            "has no pods",
        ),
        ("endpoints?resource_name=web", "has no endpoints"),
    ] {
        let answer = web.get(&format!("/api/{path}")).await;
        assert_eq!(answer.status, 400, "{path}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(problem), "{error}");
    }
}

#[tokio::test]
async fn certificates_tiers_and_loads_are_those_that_prometheus_scraped() {
    let target = serve_series(series).await;
    let Some(prometheus) = Prometheus::start(target) else {
        return;
    };
    let flags = [format!("--prometheus-url=http://{}", prometheus.addr)];
    let web = Web::start_with(Pace::Steady, &flags).await;
    let proxies = eventually("the certificates to be scraped", async || {
        let answer = web.get(&format!("/api/proxies?{WEB}")).await.json();
        (answer["pods"][1]["certificateExpires"] == EXPIRY).then_some(answer)
    })
    .await;
    assert_eq!(proxies["metricsProblem"], Value::Null);
    let [other, pod] = &proxies["pods"].as_array().unwrap()[..] else {
        panic!("{proxies}");
    };
    assert_eq!(pod["name"], "web-7f9c6-x2v4k");
    let identity = "web.shop.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(pod["identity"], identity);
    assert_eq!(
        pod["redirection"],
        json!({ "tier": "full", "reason": "tested" })
    );
    // The agent of the other node is not scraped.
    assert_eq!(other["redirection"], Value::Null);

    let service = "namespace=shop&resource_type=service&resource_name=web";
    let endpoint = eventually("a load", async || {
        let answer = web.get(&format!("/api/endpoints?{service}")).await.json();
        let found = answer["endpoints"].as_array().unwrap().clone();
        let loaded = found.into_iter().find(|it| it["address"] == "10.1.0.5")?;
        // Quantiles need two samples.
        (loaded["stats"]["latencyMsP99"].as_str()? != "0").then_some(loaded)
    })
    .await;
    assert_eq!(endpoint["pod"], "web-7f9c6-x2v4k");
    assert_eq!(endpoint["openConnections"], "4");
    // All responses took from 10 to 20 ms.
    assert_eq!(endpoint["stats"]["latencyMsP50"], "15");
    assert!(endpoint["stats"]["successCount"] != "0" && endpoint["stats"]["failureCount"] == "0");
}

/// The series of a client of the Service, of a proxy and of one agent.
fn series() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = now.as_secs() + 1;
    let to =
        "direction=\"outbound\",dst_namespace=\"shop\",dst_service=\"web\",target_ip=\"10.1.0.5\"";
    let count = seconds * RATE;
    let mut text = String::new();
    let mut line = |series: String| writeln!(text, "{series}").unwrap();
    line(format!(
        "control_identity_cert_expiration_timestamp_seconds{{namespace=\"shop\",pod=\"web-7f9c6-x2v4k\"}} {EXPIRY}"
    ));
    line("mesh_agent_tier_info{node=\"node-a\",tier=\"full\",reason=\"tested\"} 1".to_owned());
    line(format!("tcp_open_connections{{{to},peer=\"dst\"}} 4"));
    line(format!("tcp_open_connections{{{to},peer=\"src\"}} 90"));
    line(format!(
        "response_total{{{to},classification=\"success\"}} {count} {seconds}000"
    ));
    for (bound, count) in [("10", 0), ("20", count), ("+Inf", count)] {
        line(format!(
            "response_latency_ms_bucket{{{to},le=\"{bound}\"}} {count} {seconds}000"
        ));
    }
    text
}
