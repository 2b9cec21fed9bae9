//! `meshctl multicluster` against a server that plays the API server of a target cluster.

#![expect(clippy::unwrap_used, reason = "failed set-up fails the test")]

use std::future::ready;
use std::net::SocketAddr;
use std::process::Output;

use http::Request;
use hyper::body::Incoming;
use mesh_test_support::certificates::TestCa;
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

/// Returns the object at a path of a cluster that serves its trust bundle.
fn serving(path: &str, trust_domain: &str, anchor: &str) -> Option<Value> {
    let data = |data: Value| json!({ "metadata": {}, "data": data });
    Some(match path.strip_prefix("/api/v1/namespaces/linkerd")? {
        "/configmaps/linkerd-config" => {
            data(json!({ "values": format!("identityTrustDomain: {trust_domain}\n") }))
        }
        "/configmaps/linkerd-identity-trust-roots" => data(json!({ "ca-bundle.crt": anchor })),
        "/configmaps/linkerd-identity-trust-bundle" => {
            data(json!({ "number": "7", "ca-bundle.crt": anchor }))
        }
        "/services/linkerd-identity-bundle" => json!({
            "metadata": {},
            "spec": { "type": "ClusterIP", "ports": [{ "name": "https", "port": 8443 }] },
        }),
        _ => return None,
    })
}

/// Runs `trust-gen` for cluster west, which cluster east is to trust. `trust_domains` are the ones
/// of west and of east.
async fn trust_gen(trust_domains: [&'static str; 2], flags: &[&str]) -> Output {
    let servers = trust_domains.map(|trust_domain| {
        let anchor = TestCa::new().anchor_pem().to_owned();
        kube_api::start(move |request: Request<Incoming>| {
            ready(kube_api::found(serving(
                request.uri().path(),
                trust_domain,
                &anchor,
            )))
        })
    });
    let [west, east] = servers;
    let entry = |name: &str, server: SocketAddr| {
        let server = format!("http://{server}");
        (
            json!({ "name": name, "cluster": { "server": server } }),
            json!({ "name": name, "context": { "cluster": name, "user": "u" } }),
        )
    };
    let (west, east) = (entry("west", west.await), entry("east", east.await));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "west",
        "clusters": [west.0, east.0], "contexts": [west.1, east.1],
        "users": [{ "name": "u", "user": {} }],
    });
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshctl"));
    command
        .args(["mc", "trust-gen", "--cluster-name", "west"])
        .args(["--trust-bundle-address", "192.0.2.1:8443"])
        .args(flags)
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("MESHCTL_LOCAL")
        .env_remove("LINKERD_NAMESPACE");
    command.output().await.unwrap()
}

#[tokio::test]
async fn trust_bundle_is_printed_for_a_cluster_with_another_trust_domain() {
    let domains = ["west.example", "east.example"];
    let flags = ["--trusting-context", "east", "-o", "json"];
    let output = trust_gen(domains, &flags).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["kind"], "ConfigMap");
    assert_eq!(object["metadata"]["name"], "linkerd-trust-bundle-west");
    assert_eq!(object["data"]["trust-domain"], "west.example");
    let url = "https://192.0.2.1:8443/";
    assert_eq!(object["data"]["endpoint-url"], url);
    assert_eq!(object["data"]["link"], Value::Null);
}

/// Without the context of the other cluster, its identity service refuses the ConfigMap.
#[tokio::test]
async fn nothing_is_printed_for_a_cluster_with_other_anchors_of_the_same_trust_domain() {
    let domains = ["cluster.local"; 2];
    let output = trust_gen(domains, &["--trusting-context", "east"]).await;
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(output.stdout, b"");
    let error = String::from_utf8_lossy(&output.stderr);
    let expect = "contexts west and east have the same trust domain cluster.local, but different trust anchors";
    assert!(error.contains(expect), "{error}");
    assert!(trust_gen(domains, &[]).await.status.success());
    let unknown = trust_gen(domains, &["--trusting-context", "south"]).await;
    assert_eq!(unknown.status.code(), Some(65));
    let error = String::from_utf8_lossy(&unknown.stderr);
    assert!(error.contains("cannot use context \"south\""), "{error}");
}

#[tokio::test]
async fn local_node_cannot_be_linked() {
    let output = meshctl(&["gateways", "--local", "none"]).await;
    assert_eq!(output.status.code(), Some(69));
}
