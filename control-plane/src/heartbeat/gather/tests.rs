//! What the report has when an API server responds with objects, errors, or not at all.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;

/// Returns a client of an API server with these responses by path. Others are `NotFound`.
fn api_server(respond: fn(&str) -> Option<(StatusCode, Value)>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let responded = respond(request.uri().path());
        async move {
            let (status, body) = responded.unwrap_or_else(|| {
                let status = json!({
                    "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": "there is none",
                });
                (StatusCode::NOT_FOUND, status)
            });
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "default")
}

fn complete(path: &str) -> Option<(StatusCode, Value)> {
    let metadata = |kind: &str| json!({ "apiVersion": "meta.k8s.io/v1", "kind": kind });
    let object = match path {
        "/api/v1/namespaces/mesh/configmaps/linkerd-config" => json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "linkerd-config", "uid": "0b7c",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "data": { "values": "linkerdVersion: 1.2.3\n" },
        }),
        "/version" => json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }),
        "/api/v1/namespaces" => {
            let mut list = metadata("PartialObjectMetadataList");
            list["metadata"] = json!({});
            let mut viz = metadata("PartialObjectMetadata");
            viz["metadata"] = json!({ "name": "viz", "labels": { "linkerd.io/extension": "viz" } });
            list["items"] = json!([viz]);
            list
        }
        "/apis/linkerd.io/v1alpha2/serviceprofiles" => {
            let mut list = metadata("PartialObjectMetadataList");
            list["metadata"] = json!({ "continue": "t", "remainingItemCount": 4 });
            let mut profile = metadata("PartialObjectMetadata");
            profile["metadata"] = json!({ "name": "web", "namespace": "shop" });
            list["items"] = json!([profile]);
            list
        }
        _ => return None,
    };
    Some((StatusCode::OK, object))
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
