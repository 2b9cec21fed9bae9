//! The policies of a workload in the dashboard, from a real policy controller.

use http::Method;
use http_body_util::BodyExt as _;
use mesh_test_support::controller::{Controller, ManifestDir};
use serde_json::{Value, json};

use super::Web;
use super::scripted::Pace;
use super::scripted::cluster::SHOP;

const WEB: &str = "namespace=shop&resource_type=deploy&resource_name=web";

/// A policy controller that reads the objects of the scripted mesh, and a dashboard.
async fn with_policies() -> (ManifestDir, Controller, Web) {
    let dir = ManifestDir::new();
    dir.write("shop.yaml", SHOP);
    let policy = Controller::policy(&[&dir]).await;
    let flags = [format!("--policy-addr={}", policy.grpc)];
    let web = Web::start_with(Pace::Steady, &flags).await;
    (dir, policy, web)
}

fn port(policies: &Value, number: u16) -> &Value {
    let ports = policies["ports"].as_array().unwrap();
    let found = ports.iter().find(|port| port["port"] == number);
    found.unwrap_or_else(|| panic!("no port {number} in {policies}"))
}

#[tokio::test]
async fn policies_are_those_that_the_proxies_enforce() {
    let (_dir, _policy, web) = with_policies().await;
    let answer = web.get(&format!("/api/policies?{WEB}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let policies = answer.json();
    let both = json!(["web-7f9c6-q8zlm", "web-7f9c6-x2v4k"]);

    let http = port(&policies, 8080);
    assert_eq!((&http["name"], &http["pods"]), (&json!("http"), &both));
    let policy = &http["policy"];
    let server = json!({
        "group": "policy.linkerd.io", "kind": "server", "namespace": "shop", "name": "web-http",
    });
    assert_eq!(policy["server"], server);
    assert_eq!(policy["protocol"], "HTTP/1");
    let allowed = &policy["authorizations"][0];
    assert_eq!(allowed["policy"]["name"], "ingress-only");
    assert_eq!(allowed["authentication"], "identity");
    let ingress = "ingress.edge.serviceaccount.identity.linkerd.cluster.local";
    assert_eq!(allowed["identities"], json!([ingress]));

    let routes = policy["routes"].as_array().unwrap();
    let route = |name: &str| {
        routes
            .iter()
            .find(|it| it["route"]["name"] == name)
            .unwrap()
    };
    let products = route("products");
    assert_eq!(products["matches"], json!(["GET /products/*"]));
    let office = &products["authorizations"][0];
    assert_eq!(office["authentication"], "none");
    let networks = json!([{ "net": "10.0.0.0/8", "except": ["10.9.0.0/16"] }]);
    assert_eq!(office["networks"], networks);
    assert_eq!(route("orders")["authorizations"], json!([]));

    // No Server selects it.
    let default = &port(&policies, 9990)["policy"]["server"];
    assert_eq!(
        (&default["kind"], &default["name"]),
        (&json!("default"), &json!("all-unauthenticated"))
    );
    let raw = port(&policies, 9000);
    assert_eq!(
        (&raw["skipped"], &raw["policy"]),
        (&json!(true), &Value::Null)
    );
    // The ports of the proxy are not the application's.
    assert_eq!(policies["ports"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn stream_follows_changes_of_policies() {
    let (dir, _policy, web) = with_policies().await;
    let asked = format!("policies?{WEB}")
        .replace('=', "%3D")
        .replace('&', "%26");
    let path = format!("/api/stream?q={}", asked.replace('?', "%3F"));
    let mut viewer = web.open(Method::GET, &path, &[]).await.into_body();
    let mut received = String::new();
    let mut until = async |text: &str| {
        while !received.contains(text) {
            let part = viewer.frame().await.unwrap().unwrap().into_data().unwrap();
            received.push_str(str::from_utf8(&part).unwrap());
        }
    };
    until("\"ingress-only\"").await;
    dir.write("shop.yaml", &SHOP.replace("ingress-only", "no-longer-only"));
    until("\"no-longer-only\"").await;
}

#[tokio::test]
async fn workload_without_running_pods_has_no_policies() {
    let (_dir, _policy, web) = with_policies().await;
    // Its pods are listed by the metrics API and have gone from the API server.
    let about = "namespace=shop&resource_type=deploy&resource_name=catalog";
    let policies = web.get(&format!("/api/policies?{about}")).await.json();
    assert_eq!(policies["ports"], json!([]));
}

#[tokio::test]
async fn policy_controller_that_is_down_is_named() {
    let flags = ["--policy-addr=127.0.0.1:1".to_owned()];
    let web = Web::start_with(Pace::Steady, &flags).await;
    let policies = web.get(&format!("/api/policies?{WEB}")).await;
    assert_eq!(policies.status, 503);
    let error = policies.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.contains("policy controller at 127.0.0.1:1"),
        "{error}"
    );
}
