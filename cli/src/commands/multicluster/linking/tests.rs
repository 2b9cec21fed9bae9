//! Flags, selectors and the whole output against a scripted API server.

use clap::Parser as _;
use mesh_k8s::foreign_domain::ForeignDomain;
use mesh_k8s::kinds::ConfigMap;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::kube_api::{self, ScriptedApi};
use serde_json::json;

use super::*;
use crate::commands::multicluster::tests::cluster_of;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    link: LinkFlags,
    #[command(flatten)]
    global: Global,
}

fn line(arguments: &[&str]) -> Line {
    let arguments = ["link-gen", "--cluster-name", "east"]
        .iter()
        .chain(arguments);
    Line::try_parse_from(arguments).unwrap()
}

/// Adds the trust bundle of the mesh, with an anchor in PEM, and its server.
fn serve_trust_bundle(api: &ScriptedApi, anchor: &str) {
    let namespace = "/api/v1/namespaces/linkerd";
    api.put(
        &format!("{namespace}/configmaps/linkerd-identity-trust-bundle"),
        json!({ "metadata": {}, "data": { "number": "7", "ca-bundle.crt": anchor } }),
    );
    api.put(
        &format!("{namespace}/services/linkerd-identity-bundle"),
        json!({
            "metadata": {},
            "spec": { "type": "LoadBalancer", "ports": [{ "name": "https", "port": 8443 }] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.2" }] } },
        }),
    );
}

/// Returns an API server with a mesh, the multicluster extension and an address of its gateway.
fn target() -> ScriptedApi {
    let api = ScriptedApi::default();
    let values = "clusterDomain: east.example\nidentityTrustDomain: east.trust\n";
    api.put(
        "/api/v1/namespaces/linkerd/configmaps/linkerd-config",
        json!({ "metadata": { "name": "linkerd-config" }, "data": { "values": values } }),
    );
    let account = "linkerd-service-mirror-remote-access-default";
    let mc = "/api/v1/namespaces/linkerd-multicluster";
    api.put(
        &format!("{mc}/serviceaccounts/{account}"),
        json!({ "metadata": { "name": account } }),
    );
    let token = json!({
        "metadata": {
            "name": format!("{account}-token"),
            "annotations": { "kubernetes.io/service-account.name": account },
        },
        "type": "kubernetes.io/service-account-token",
        "data": { "token": "c2VjcmV0" },
    });
    let list =
        json!({ "kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": [token] });
    api.put(&format!("{mc}/secrets"), list);
    api.put(
        &format!("{mc}/services/linkerd-gateway"),
        json!({
            "metadata": { "name": "linkerd-gateway", "annotations": {
                "mirror.linkerd.io/gateway-identity": "gateway.east.trust",
                "mirror.linkerd.io/probe-path": "/ready",
                "mirror.linkerd.io/probe-period": "3",
            } },
            "spec": { "type": "LoadBalancer", "ports": [
                { "name": "mc-gateway", "port": 4143 }, { "name": "mc-probe", "port": 4191 },
            ] },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } },
        }),
    );
    api
}

/// Returns the objects that the command prints for a scripted cluster.
async fn printed(api: &ScriptedApi, arguments: &[&str]) -> anyhow::Result<Vec<Value>> {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    kube_api::write_kubeconfig(&kubeconfig, "192.0.2.9:6443".parse().unwrap());
    let mut line = line(arguments);
    line.global.kubeconfig = Some(kubeconfig);
    let cluster = cluster_of(api);
    let documents = documents(&line.link, "linkerd-multicluster", &cluster, &line.global);
    Box::pin(documents).await
}

async fn error(api: &ScriptedApi, arguments: &[&str]) -> String {
    let error = printed(api, arguments).await.unwrap_err();
    format!("{error:#}")
}

fn kubeconfig_of(secret: &Value) -> Value {
    let secret: Secret = serde_json::from_value(secret.clone()).unwrap();
    let text = secret.data.unwrap().remove("kubeconfig").unwrap().0;
    serde_norway::from_slice(&text).unwrap()
}

#[tokio::test]
async fn printed_objects_are_those_of_linkerd() {
    let [mirrors, endpoints, link] = printed(&target(), &[]).await.unwrap().try_into().unwrap();
    assert_eq!(mirrors["metadata"]["name"], "cluster-credentials-east");
    assert_eq!(mirrors["metadata"]["namespace"], "linkerd-multicluster");
    assert_eq!(mirrors["type"], "mirror.linkerd.io/remote-kubeconfig");
    assert_eq!(endpoints["type"], mirrors["type"]);
    let metadata = json!({
        "name": "cluster-credentials-east", "namespace": "linkerd",
        "labels": { "multicluster.linkerd.io/cluster-name": "east" },
        "annotations": {
            "multicluster.linkerd.io/trust-domain": "east.trust",
            "multicluster.linkerd.io/cluster-domain": "east.example",
        },
    });
    assert_eq!(endpoints["metadata"], metadata);
    let kubeconfig = kubeconfig_of(&mirrors);
    assert_eq!(kubeconfig, kubeconfig_of(&endpoints));
    assert_eq!(kubeconfig["users"][0]["user"], json!({ "token": "secret" }));
    let cluster = &kubeconfig["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "http://192.0.2.9:6443");
    let created_by = format!("linkerd/cli {}", env!("CARGO_PKG_VERSION"));
    let expect = json!({
        "apiVersion": "multicluster.linkerd.io/v1alpha3",
        "kind": "Link",
        "metadata": {
            "name": "east", "namespace": "linkerd-multicluster",
            "annotations": { "linkerd.io/created-by": created_by },
        },
        "spec": {
            "targetClusterName": "east",
            "targetClusterDomain": "east.example",
            "targetClusterLinkerdNamespace": "linkerd",
            "clusterCredentialsSecret": "cluster-credentials-east",
            "gatewayAddress": "192.0.2.1",
            "gatewayPort": "4143",
            "gatewayIdentity": "gateway.east.trust",
            "probeSpec": { "path": "/ready", "port": "4191", "period": "3s" },
            "selector": { "matchLabels": { "mirror.linkerd.io/exported": "true" } },
            "remoteDiscoverySelector":
                { "matchLabels": { "mirror.linkerd.io/exported": "remote-discovery" } },
            "federatedServiceSelector":
                { "matchLabels": { "mirror.linkerd.io/federated": "member" } },
        },
    });
    assert_eq!(link, expect);
}

/// `link` finds the Link at the end.
#[tokio::test]
async fn trust_bundle_is_printed_before_the_link_that_it_ends_with() {
    let api = target();
    serve_trust_bundle(&api, TestCa::new().anchor_pem());
    let documents = printed(&api, &["--trust-bundle"]).await.unwrap();
    let kinds: Vec<&str> = documents
        .iter()
        .filter_map(|it| it["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["Secret", "Secret", "ConfigMap", "Link"]);
    let printed: ConfigMap = serde_json::from_value(documents[2].clone()).unwrap();
    let domain = ForeignDomain::read(&printed).unwrap();
    assert_eq!(domain.trust_domain, "east.trust");
    assert_eq!(domain.endpoint.url(), "https://192.0.2.2:8443/");
    let link = &documents[3]["metadata"];
    let (namespace, name) = (&link["namespace"], &link["name"]);
    let expect = format!("{}/{}", namespace.as_str().unwrap(), name.as_str().unwrap());
    assert_eq!(domain.link.unwrap().to_string(), expect);
}

#[tokio::test]
async fn link_without_gateway_mirrors_nothing_behind_it() {
    let arguments = ["--gateway=false", "--excluded-labels", "a/*,b"];
    let link = printed(&ScriptedApi::default(), &arguments).await;
    assert!(link.is_err(), "an empty cluster has no mesh");
    let link = printed(&target(), &arguments).await.unwrap().remove(2);
    let spec = link["spec"].as_object().unwrap();
    for absent in [
        "gatewayAddress",
        "gatewayPort",
        "gatewayIdentity",
        "probeSpec",
        "selector",
    ] {
        assert!(!spec.contains_key(absent), "{absent}: {spec:?}");
    }
    assert_eq!(spec["excludedLabels"], json!(["a/*", "b"]));
    assert!(spec.contains_key("remoteDiscoverySelector"));
}

#[tokio::test]
async fn error_names_object_and_fix() {
    let refused = error(&target(), &["--gateway=false", "--gateway-port", "1"]).await;
    assert!(
        refused.starts_with("--gateway-port has no effect with"),
        "{refused}"
    );
    for flag in ["--trust-bundle-address", "--trusting-context"] {
        let refused = error(&target(), &[flag, "a"]).await;
        let expect = format!("{flag} has no effect without --trust-bundle");
        assert!(refused.starts_with(&expect), "{refused}");
    }
    let unserved = error(&target(), &["--trust-bundle"]).await;
    assert!(
        unserved.starts_with("namespace linkerd has no Service linkerd-identity-bundle"),
        "{unserved}"
    );
    let named = error(&target(), &["--gateway-name", "gw"]).await;
    assert!(
        named.starts_with("namespace linkerd-multicluster has no Service gw: "),
        "{named}"
    );
    let account = error(&target(), &["--service-account-name", "west"]).await;
    assert!(
        account.ends_with("allow --service-account-name west`"),
        "{account}"
    );
    let selector = error(&target(), &["-l", "a in b"]).await;
    assert!(
        selector.starts_with("--selector: invalid label selector"),
        "{selector}"
    );
    let addresses = vec!["192.0.2.1"; 65].join(",");
    let many: Vec<String> = (0..65).map(|at| format!("192.0.2.{at}")).collect();
    let many = error(&target(), &["--gateway-addresses", &many.join(",")]).await;
    assert!(many.contains("more than 64 addresses"), "{many}");
    assert!(
        printed(&target(), &["--gateway-addresses", &addresses])
            .await
            .is_ok()
    );
    let gateway = "/api/v1/namespaces/linkerd-multicluster/services/linkerd-gateway";
    let api = target();
    let mut service = api.get(gateway).unwrap();
    service["metadata"]["annotations"]["mirror.linkerd.io/probe-period"] = json!("often");
    api.put(gateway, service);
    let period = error(&api, &[]).await;
    assert!(
        period.contains("spec.probeSpec.period: \"often\" is not a duration"),
        "{period}"
    );
}

#[test]
fn cluster_names_are_parts_of_names() {
    for bad in ["East", "", "east.example", "a/b", &"e".repeat(64)] {
        let line = Line::try_parse_from(["link-gen", "--cluster-name", bad]).unwrap();
        let error = line.link.check().unwrap_err().to_string();
        assert!(error.starts_with("--cluster-name: "), "{error}");
    }
    assert!(line(&[]).link.check().is_ok());
    assert!(Line::try_parse_from(["link-gen"]).is_err());
    let zero = ["link-gen", "--cluster-name", "east", "--gateway-port", "0"];
    assert!(Line::try_parse_from(zero).is_err());
}

#[test]
fn equality_becomes_labels_and_the_rest_expressions() {
    let json = |text: &str| serde_json::to_value(selector(text).unwrap()).unwrap();
    assert_eq!(
        json("a=b,c==d"),
        json!({ "matchLabels": { "a": "b", "c": "d" } })
    );
    assert_eq!(json("a in (b)"), json!({ "matchLabels": { "a": "b" } }));
    let several = json!({ "key": "e", "operator": "In", "values": ["f", "g"] });
    let exists = json!({ "key": "h", "operator": "Exists" });
    assert_eq!(
        json("a=b,e in (f,g),h"),
        json!({ "matchLabels": { "a": "b" }, "matchExpressions": [several, exists] })
    );
    // Both must hold, although labels can have only one of them.
    let other = json!({ "key": "a", "operator": "In", "values": ["c"] });
    assert_eq!(
        json("a=b,a=c"),
        json!({ "matchLabels": { "a": "b" }, "matchExpressions": [other] })
    );
    // It selects nothing.
    assert_eq!(json(""), json!({}));
}
