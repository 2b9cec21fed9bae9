//! `meshctl multicluster` against a server that plays the API server of a target cluster.

#![expect(clippy::unwrap_used, reason = "failed set-up fails the test")]

use std::future::ready;
use std::process::Output;

use http::Request;
use hyper::body::Incoming;
use mesh_test_support::kube_api;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::process::Command;

/// Returns the object at a path of a cluster with the extension. The load balancer of its gateway
/// has no address.
fn object(path: &str) -> Option<Value> {
    let list = |items: &[Value]| json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items });
    let account = "linkerd-service-mirror-remote-access-default";
    let namespace = "/api/v1/namespaces/linkerd-multicluster";
    Some(match path.strip_prefix(namespace) {
        Some("/serviceaccounts/linkerd-service-mirror-remote-access-default") => {
            json!({ "metadata": { "name": account } })
        }
        Some("/secrets") => {
            let annotations = json!({ "kubernetes.io/service-account.name": account });
            list(&[json!({
                "metadata": { "name": "token", "annotations": annotations },
                "type": "kubernetes.io/service-account-token",
                "data": { "token": "c2VjcmV0" },
            })])
        }
        Some("/services/linkerd-gateway") => json!({
            "metadata": { "name": "linkerd-gateway", "annotations": {
                "mirror.linkerd.io/gateway-identity": "gateway.example",
                "mirror.linkerd.io/probe-path": "/ready",
                "mirror.linkerd.io/probe-period": "3",
            } },
            "spec": { "type": "LoadBalancer", "ports": [
                { "name": "mc-gateway", "port": 4143 }, { "name": "mc-probe", "port": 4191 },
            ] },
        }),
        _ if path == "/api/v1/namespaces/linkerd/configmaps/linkerd-config" => {
            json!({ "metadata": {}, "data": { "values": "clusterDomain: east.example\n" } })
        }
        _ => return None,
    })
}

async fn meshctl(arguments: &[&str]) -> Output {
    let server = kube_api::start(|request: Request<Incoming>| {
        ready(kube_api::found(object(request.uri().path())))
    });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    kube_api::write_kubeconfig(&kubeconfig, server.await);
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshctl"));
    command
        .arg("mc")
        .args(arguments)
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE");
    command.output().await.unwrap()
}

fn kinds(objects: &[Value]) -> Vec<&str> {
    let kinds = objects.iter().map(|object| object["kind"].as_str());
    kinds.map(Option::unwrap).collect()
}

#[tokio::test]
async fn manifests_go_to_standard_output_and_notes_do_not() {
    let flags = [
        "link-gen",
        "--cluster-name",
        "east",
        "--gateway-addresses",
        "192.0.2.1",
    ];
    let output = meshctl(&flags).await;
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("an address of this machine"), "{notes}");
    let objects: Vec<Value> = serde_norway::Deserializer::from_slice(&output.stdout)
        .map(|document| Value::deserialize(document).unwrap())
        .collect();
    assert_eq!(kinds(&objects), ["Secret", "Secret", "Link"]);
    assert_eq!(objects[2]["spec"]["gatewayAddress"], "192.0.2.1");
    assert_eq!(objects[2]["spec"]["targetClusterDomain"], "east.example");

    let output = meshctl(&[&flags[..], &["-o", "json"]].concat()).await;
    let json = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let objects: Vec<Value> = json.map(Result::unwrap).collect();
    assert_eq!(kinds(&objects), ["Secret", "Secret", "Link"]);
}

/// `kubectl apply` would read a Link without an address from the pipe.
#[tokio::test]
async fn nothing_is_printed_without_an_address_of_the_gateway() {
    let output = meshctl(&["link-gen", "--cluster-name", "east"]).await;
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(output.stdout, b"");
    let error = String::from_utf8_lossy(&output.stderr);
    let expect = "Service linkerd-multicluster/linkerd-gateway has no address yet";
    assert!(error.contains(expect), "{error}");
}

#[tokio::test]
async fn local_node_cannot_be_linked() {
    let output = meshctl(&["gateways", "--local", "none"]).await;
    assert_eq!(output.status.code(), Some(69));
}
