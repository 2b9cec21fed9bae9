//! Endpoints of a Service from objects of an API server.

use serde_json::json;

use crate::manifests::pod;
use crate::messages::update;
use crate::{cluster, web};

#[tokio::test]
async fn endpoints_follow_the_api_server() {
    let Some(cluster) = cluster("endpoints").await else {
        return;
    };
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    let controller = cluster.destination().await;
    let mut stream = cluster.endpoints_of_web(&controller).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    // A pod is created before the slice contains it.
    cluster.apply(&pod("web-2", "10.1.0.2")).await;
    cluster
        .apply(&web(&[("web-1", "10.1.0.1"), ("web-2", "10.1.0.2")]))
        .await;
    assert_eq!(update(&mut stream).await, "+10.1.0.2:8080");
    // A deleted pod is removed, even if the slice still contains it.
    cluster.delete("v1", "Pod", "web-1").await;
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080");
    cluster
        .delete("discovery.k8s.io/v1", "EndpointSlice", "web-1")
        .await;
    assert_eq!(update(&mut stream).await, "-10.1.0.2:8080");
}

#[tokio::test]
async fn terminated_pod_is_removed() {
    let Some(cluster) = cluster("ended").await else {
        return;
    };
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    let controller = cluster.destination().await;
    let mut stream = cluster.endpoints_of_web(&controller).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = cluster.namespaced();
    let ended = json!({ "status": { "phase": "Succeeded" } });
    pods.patch_status(
        "web-1",
        &kube::api::PatchParams::default(),
        &kube::api::Patch::Merge(&ended),
    )
    .await
    .unwrap();
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080");
}
