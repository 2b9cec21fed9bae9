//! The server of the bundle, the first bundle, and the whole ConfigMap against a scripted API
//! server.

use mesh_core::trust_domain::MAX_DOMAIN_ANCHORS;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::kube_api::ScriptedApi;
use serde_json::{Value, json};

use super::*;
use crate::commands::multicluster::tests::{cluster_of, global};

fn service(type_: &str, ingress: &Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {},
        "spec": { "type": type_, "ports": [{ "name": "https", "port": 8443, "nodePort": 30443 }] },
        "status": { "loadBalancer": { "ingress": ingress } },
    }))
    .unwrap()
}

fn url(service: &Service, address: Option<&str>) -> Result<String, String> {
    let id = Identity::parse("spiffe://east.example/a").unwrap();
    Ok(endpoint(service, address, id)?.url())
}

fn record(number: &str, anchors: &str) -> ConfigMap {
    let data = json!({ NUMBER_KEY: number, BUNDLE_KEY: anchors });
    serde_json::from_value(json!({ "data": data })).unwrap()
}

/// Returns an API server with a mesh that serves its bundle.
fn serving(anchors: &str) -> ScriptedApi {
    let api = ScriptedApi::default();
    let namespace = "/api/v1/namespaces/linkerd";
    let values = json!({ "values": "identityTrustDomain: east.example\n" });
    let config = json!({ "metadata": { "name": "linkerd-config" }, "data": values });
    api.put(&format!("{namespace}/configmaps/linkerd-config"), config);
    let service = service("LoadBalancer", &json!([{ "ip": "192.0.2.1" }]));
    let service = serde_json::to_value(service).unwrap();
    api.put(&format!("{namespace}/services/{SERVICE}"), service);
    let record = serde_json::to_value(record("7", anchors)).unwrap();
    api.put(
        &format!("{namespace}/configmaps/{BUNDLE_CONFIG_MAP}"),
        record,
    );
    api
}

async fn printed(api: &ScriptedApi, name: &str) -> anyhow::Result<ConfigMap> {
    let (cluster, flags) = (cluster_of(api), TrustFlags::default());
    let link = LinkName {
        namespace: "mc".to_owned(),
        name: name.to_owned(),
    };
    let global = global();
    let printed = config_map(&cluster, &global, name, &flags, Some(link));
    Box::pin(printed).await
}

#[test]
fn server_is_at_the_address_of_its_load_balancer_or_the_given_one() {
    for (ingress, expected) in [
        (json!([{ "ip": "192.0.2.1" }]), "https://192.0.2.1:8443/"),
        (
            json!([{ "ip": "2001:db8::1" }]),
            "https://[2001:db8::1]:8443/",
        ),
        (
            json!([{ "hostname": "lb.example" }]),
            "https://lb.example:8443/",
        ),
    ] {
        let found = url(&service("LoadBalancer", &ingress), None);
        assert_eq!(found.as_deref(), Ok(expected));
    }
    for (type_, address, expected) in [
        ("ClusterIP", "a.example:1", "https://a.example:1/"),
        ("ClusterIP", "a.example", "https://a.example:8443/"),
        ("NodePort", "192.0.2.1", "https://192.0.2.1:30443/"),
        ("NodePort", "2001:db8::1", "https://[2001:db8::1]:30443/"),
        ("NodePort", "[2001:db8::1]", "https://[2001:db8::1]:30443/"),
        ("NodePort", "[2001:db8::1]:1", "https://[2001:db8::1]:1/"),
    ] {
        let found = url(&service(type_, &json!([])), Some(address));
        assert_eq!(found.as_deref(), Ok(expected));
    }
}

#[test]
fn service_without_an_address_and_invalid_addresses_are_refused() {
    for (type_, problem) in [
        ("LoadBalancer", "linkerd-identity-bundle has no address yet"),
        ("NodePort", "linkerd-identity-bundle is of type NodePort"),
    ] {
        let problem_of = url(&service(type_, &json!([])), None).unwrap_err();
        assert!(problem_of.contains(problem), "{problem_of}");
        assert!(
            problem_of.ends_with("with --trust-bundle-address"),
            "{problem_of}"
        );
    }
    for bad in [
        "",
        "a b",
        "a:99999",
        "a:0",
        "a:b",
        "a/b",
        "u@a",
        "https://a",
        "a?b",
        "a#b",
    ] {
        let problem = url(&service("ClusterIP", &json!([])), Some(bad)).unwrap_err();
        let expect = format!("--trust-bundle-address: {bad:?} is not an address");
        assert!(problem.starts_with(&expect), "{problem}");
    }
    let mut nameless = service("ClusterIP", &json!([]));
    nameless.spec.as_mut().unwrap().ports = None;
    let problem = url(&nameless, Some("a.example")).unwrap_err();
    let expect = "has no port with the name https; --trust-bundle-address names one";
    assert!(problem.ends_with(expect), "{problem}");
}

#[test]
fn first_bundle_is_the_recorded_one() {
    let anchor = TestCa::new();
    let pem = anchor.anchor_pem();
    let text = first_bundle(Some(&record("7", pem))).unwrap();
    let read = document::read(text.as_bytes()).unwrap();
    assert_eq!(read.bundle.sequence, Some(7));
    assert_eq!(read.bundle.anchors.matches("BEGIN").count(), 1);
    // Printed again, it is the same one, so that nothing begins anew.
    assert_eq!(first_bundle(Some(&record("7", pem))).unwrap(), text);
    for damaged in [None, Some(record("x", pem)), Some(ConfigMap::default())] {
        let problem = first_bundle(damaged.as_ref()).unwrap_err();
        assert!(
            problem.contains("no trust anchors with a number yet"),
            "{problem}"
        );
    }
    // The other cluster would refuse it.
    let many = pem.repeat(MAX_DOMAIN_ANCHORS / pem.len() + 1);
    let problem = first_bundle(Some(&record("7", &many))).unwrap_err();
    assert!(problem.contains("at most 16384 are used"), "{problem}");
}

#[tokio::test]
async fn printed_config_map_is_read_by_the_identity_service() {
    let anchor = TestCa::new();
    let printed = printed(&serving(anchor.anchor_pem()), "east")
        .await
        .unwrap();
    let domain = ForeignDomain::read(&printed).unwrap();
    let bundle = first_bundle(Some(&record("7", anchor.anchor_pem()))).unwrap();
    let expect = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "linkerd-trust-bundle-east", "namespace": "linkerd",
            "labels": { "multicluster.linkerd.io/trust-bundle-of": "east" },
        },
        "data": {
            "trust-domain": "east.example",
            "endpoint-url": "https://192.0.2.1:8443/",
            "endpoint-profile": "https_spiffe",
            "endpoint-spiffe-id": "spiffe://east.example/ns/linkerd/sa/linkerd-identity",
            "link": "mc/east",
            "bundle.json": bundle,
        },
    });
    assert_eq!(serde_json::to_value(&printed).unwrap(), expect);
    assert_eq!(domain.cluster, "east");
}

#[tokio::test]
async fn error_names_object_and_fix() {
    let anchor = TestCa::new();
    let api = serving(anchor.anchor_pem());
    let name = printed(&api, "East").await.unwrap_err().to_string();
    assert!(name.starts_with("--cluster-name: \"East\""), "{name}");
    api.delete(&format!("/api/v1/namespaces/linkerd/services/{SERVICE}"));
    let service = printed(&api, "east").await.unwrap_err().to_string();
    let expect = "has no Service linkerd-identity-bundle: set the value identity.bundleEndpoint";
    assert!(service.contains(expect), "{service}");
}
