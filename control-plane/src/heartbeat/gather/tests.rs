//! The content of the report when an API server responds with objects, errors, or not at all.

use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use mesh_test_support::{installation, kube_api};
use serde_json::Value;

use super::*;

/// Returns a client of an API server with these objects by path. Others are `NotFound`.
fn api_server(object: fn(&str) -> Option<Value>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let response = kube_api::found(object(request.uri().path()));
        async move { Ok::<_, Infallible>(response) }
    });
    Client::new(service, "default")
}

fn complete(path: &str) -> Option<Value> {
    installation::object(path, "mesh", "0b7c", "linkerdVersion: 1.2.3\n")
}

fn absence(report: &Report, name: &str) -> String {
    let mut parameters = report.parameters().iter();
    let parameter = parameters.find(|parameter| parameter.name == name);
    let value = &parameter.unwrap().value;
    value.as_ref().unwrap_err().to_string()
}

#[tokio::test]
async fn report_has_what_the_api_server_has() {
    let report = report(&api_server(complete), None, "mesh").await;
    let architecture = heartbeat::own_architecture();
    assert_eq!(
        report.query(),
        format!(
            "arch={architecture}&ext-viz=1&install-time=1767225600&k8s-version=v1.34.1\
             &service-profile-count=5&source=heartbeat&uuid=0b7c&version=1.2.3"
        )
    );
    assert_eq!(
        absence(&report, "total-rps"),
        "the value prometheusUrl is empty"
    );
    // The extension is installed, so that its Prometheus has figures.
    assert_eq!(
        absence(&report, "max-mem-prometheus"),
        "the value prometheusUrl is empty"
    );
}

#[tokio::test]
async fn each_failed_request_leaves_out_its_own_parameters() {
    let report = report(&api_server(|_path| None), None, "mesh").await;
    let architecture = heartbeat::own_architecture();
    assert_eq!(
        report.query(),
        format!("arch={architecture}&source=heartbeat")
    );
    assert_eq!(
        absence(&report, "uuid"),
        "cannot read ConfigMap linkerd-config: there is none"
    );
    assert_eq!(
        absence(&report, "service-profile-count"),
        "cannot count the ServiceProfiles: there is none"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_without_response_time_out_together() {
    let service = tower::service_fn(|_request: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let started = tokio::time::Instant::now();
    let report = report(&Client::new(service, "default"), None, "mesh").await;
    assert!(started.elapsed() < TIMEOUT * 2);
    assert_eq!(
        absence(&report, "k8s-version"),
        "cannot query the version of the API server: no response within 10 s"
    );
}
