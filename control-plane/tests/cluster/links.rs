//! A linked cluster: this one under another name, so that a Service has the endpoints of another
//! one by remote discovery.

use kube::config::Kubeconfig;
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::json;

use crate::messages::{request, update};
use crate::{Cluster, cluster, metric, web};

const MIRROR: &str = "---
apiVersion: v1
kind: Service
metadata:
  name: web-self
  namespace: shop
  labels:
    multicluster.linkerd.io/remote-discovery: self
    multicluster.linkerd.io/remote-service: web
spec: {ports: [{name: http, port: 80}]}
";

#[tokio::test]
async fn service_has_the_endpoints_of_a_linked_cluster_as_long_as_it_is_linked() {
    let Some(cluster) = cluster("links").await else {
        return;
    };
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    cluster.apply(MIRROR).await;
    let mut flags = cluster.flags();
    flags.push(format!("--controller-namespace={}", cluster.namespace));
    let controller = Controller::start("destination", "--addr", "--metrics-addr", &flags);
    let controller = controller.ready().await;
    expect_clusters(&controller, 0.0).await;
    // A Secret without credentials that can be used links nothing.
    let executed = "users: [{name: a, user: {exec: {apiVersion: v1, command: sh}}}]";
    cluster.apply(&secret(executed)).await;
    cluster.apply(&secret(&kubeconfig(&cluster))).await;
    expect_clusters(&controller, 1.0).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let name = format!("web-self.{}.svc.cluster.local:80", cluster.namespace);
    let mut stream = client.get(request(&name)).await.unwrap().into_inner();
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    cluster
        .delete("discovery.k8s.io/v1", "EndpointSlice", "web-1")
        .await;
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080");
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    cluster
        .delete("v1", "Secret", "cluster-credentials-self")
        .await;
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080");
    expect_clusters(&controller, 0.0).await;
}

async fn expect_clusters(controller: &Controller, number: f64) {
    eventually("the clusters are linked", async || {
        match metric(controller, "cluster_store_size").await {
            Some(found) if found == number => Ok(()),
            other => Err(format!("{other:?} clusters, expected {number}")),
        }
    })
    .await;
}

/// The credentials of this cluster.
pub(crate) fn kubeconfig(cluster: &Cluster) -> String {
    let mut file = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    file.current_context = Some(cluster.context.clone());
    serde_norway::to_string(&file).unwrap()
}

fn secret(kubeconfig: &str) -> String {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "mirror.linkerd.io/remote-kubeconfig",
        "metadata": {
            "name": "cluster-credentials-self",
            "namespace": "shop",
            "labels": { "multicluster.linkerd.io/cluster-name": "self" },
            "annotations": {
                "multicluster.linkerd.io/trust-domain": "cluster.local",
                "multicluster.linkerd.io/cluster-domain": "cluster.local",
            },
        },
        "stringData": { "kubeconfig": kubeconfig },
    });
    secret.to_string()
}
