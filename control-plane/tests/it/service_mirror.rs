//! The service mirror as a process, with API servers in memory for both clusters.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::http;
use mesh_test_support::kube_api::{self, Fault, ScriptedApi};
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::{Value, json};
use tempfile::TempDir;

const WEB: &str = "/api/v1/namespaces/shop/services/web";
const MIRROR: &str = "/api/v1/namespaces/shop/services/web-east";
const ENDPOINTS: &str = "/api/v1/namespaces/shop/endpoints/web-east";
const LINK: &str = "/apis/multicluster.linkerd.io/v1alpha3/namespaces/links/links/east";
const SECRET: &str = "/api/v1/namespaces/links/secrets/cluster-credentials-east";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/links/leases/service-mirror-write-east";

/// A running service mirror. The directory has its kubeconfig.
struct Mirror {
    program: Program,
    admin: SocketAddr,
    directory: TempDir,
}

impl Mirror {
    /// Starts the process with the flags of Linkerd's chart, and waits until it is ready.
    async fn start(api: &ScriptedApi, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        kube_api::write_kubeconfig(&kubeconfig, api.listen("mirror").await);
        let admin = free_address();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
        command
            .arg("service-mirror")
            .arg(format!("-kubeconfig={}", kubeconfig.display()))
            .arg(format!("-metrics-addr={admin}"))
            .args(["-log-level=debug", "-log-format=plain"])
            .args(["-event-requeue-limit=3", "-enable-pprof=false"])
            .arg("-namespace=links")
            .args(arguments);
        let mirror = Self {
            program: Program::start(&mut command),
            admin,
            directory,
        };
        eventually("the service mirror to be ready", async || {
            mirror
                .get("/ready")
                .is_some_and(|(status, _)| status == 200)
        })
        .await;
        mirror
    }

    fn get(&self, path: &str) -> Option<(u16, String)> {
        let response = http::request(self.admin, &format!("GET {path}")).ok()?;
        let (status, body) = http::status_and_body(&response)?;
        Some((status, body.to_owned()))
    }

    async fn expect_metric(&self, line: &str) {
        eventually(line, async || {
            let (_, metrics) = self.get("/metrics")?;
            metrics.lines().any(|it| it == line).then_some(())
        })
        .await;
    }

    /// Returns the text of a kubeconfig for an API server.
    fn kubeconfig(&self, server: SocketAddr) -> String {
        let path = self.directory.path().join("target");
        kube_api::write_kubeconfig(&path, server);
        std::fs::read_to_string(path).unwrap()
    }
}

/// This cluster, with the namespaces `shop` and `links`.
fn cluster() -> ScriptedApi {
    let api = ScriptedApi::default();
    for namespace in ["shop", "links"] {
        let object = json!({ "metadata": { "name": namespace } });
        api.put(&format!("/api/v1/namespaces/{namespace}"), object);
    }
    api
}

fn link(probe_port: u16) -> Value {
    json!({
        "apiVersion": "multicluster.linkerd.io/v1alpha3",
        "kind": "Link",
        "metadata": {
            "name": "east",
            "namespace": "links",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "targetClusterName": "east",
            "targetClusterDomain": "cluster.local",
            "targetClusterLinkerdNamespace": "linkerd",
            "clusterCredentialsSecret": "cluster-credentials-east",
            "gatewayAddress": "192.0.2.1",
            "gatewayPort": "4143",
            "gatewayIdentity": "gateway.example",
            "probeSpec": {
                "path": "/ready",
                "port": probe_port.to_string(),
                "period": "100ms",
                "timeout": "5s",
                "failureThreshold": "2",
            },
            "selector": { "matchLabels": { "mirror.linkerd.io/exported": "true" } },
        },
    })
}

fn secret(kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "mirror.linkerd.io/remote-kubeconfig",
        "metadata": { "name": "cluster-credentials-east", "namespace": "links" },
        "data": { "kubeconfig": STANDARD.encode(kubeconfig) },
    })
}

fn service(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": namespace, "uid": "u", "labels": labels },
        "spec": { "clusterIP": "10.96.0.1", "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

fn exported() -> Value {
    json!({ "mirror.linkerd.io/exported": "true" })
}

fn target() -> ScriptedApi {
    let api = ScriptedApi::default();
    api.put(WEB, service("shop", "web", exported()));
    let slice = json!({
        "metadata": {
            "name": "web-1",
            "namespace": "shop",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": ["10.2.0.1"] }],
    });
    let path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1";
    api.put(path, slice);
    api
}

/// A gateway, whose responses to probes have this status.
async fn gateway(status: &Arc<AtomicU16>) -> u16 {
    let status = status.clone();
    let addr = kube_api::start(move |_request| {
        let status = StatusCode::from_u16(status.load(Ordering::Relaxed)).unwrap();
        async move { kube_api::failure(status, "") }
    });
    addr.await.port()
}

async fn expect(api: &ScriptedApi, path: &str, what: &str, is: impl Fn(&Value) -> bool) {
    eventually(what, async || {
        let object = api.get(path);
        let holds = object.as_ref().is_some_and(&is);
        if holds {
            Ok(())
        } else {
            Err(format!("{object:?}"))
        }
    })
    .await;
}

async fn expect_gone(api: &ScriptedApi, path: &str) {
    eventually(path, async || api.get(path).is_none()).await;
}

#[tokio::test]
async fn mirrors_follow_the_target_cluster_and_its_gateway() {
    let (api, target) = (cluster(), target());
    let status = Arc::new(AtomicU16::new(200));
    let port = gateway(&status).await;
    let mut mirror = Mirror::start(&api, &["-probe-service=127.0.0.1", "east"]).await;
    let kubeconfig = mirror.kubeconfig(target.listen("target").await);
    // Link and credentials appear later, in any order.
    api.put(SECRET, secret(&kubeconfig));
    api.put(LINK, link(port));
    expect(&api, MIRROR, "the mirror", |it| {
        it["spec"]["ports"][0]["port"] == 80
    })
    .await;
    expect(&api, ENDPOINTS, "ready endpoints", |it| {
        it["subsets"][0]["addresses"][0]["ip"] == "192.0.2.1"
    })
    .await;
    expect(&api, LINK, "the status", |it| {
        let entry = &it["status"]["mirrorServices"][0];
        entry["conditions"][0]["reason"] == "Mirrored"
    })
    .await;
    mirror
        .expect_metric("gateway_alive{target_cluster_name=\"east\"} 1")
        .await;
    mirror
        .expect_metric("gateway_enabled{target_cluster_name=\"east\"} 1")
        .await;
    mirror
        .expect_metric("service_mirror_endpoint_repairs{target_cluster_name=\"east\"} 1")
        .await;
    mirror
        .expect_metric("mesh_service_mirror_services{result=\"mirrored\"} 1")
        .await;

    // The gateway stops to respond, and does so again.
    status.store(503, Ordering::Relaxed);
    expect(&api, ENDPOINTS, "endpoints that are not ready", |it| {
        it["subsets"][0]["notReadyAddresses"][0]["ip"] == "192.0.2.1"
    })
    .await;
    mirror
        .expect_metric("gateway_alive{target_cluster_name=\"east\"} 0")
        .await;
    status.store(200, Ordering::Relaxed);
    expect(&api, ENDPOINTS, "ready endpoints", |it| {
        it["subsets"][0]["addresses"][0]["ip"] == "192.0.2.1"
    })
    .await;

    // A Service of a missing namespace is reported in both clusters.
    let other = service("bank", "db", exported());
    target.put("/api/v1/namespaces/bank/services/db", other);
    expect(&api, LINK, "the problem", |it| {
        let conditions = it["status"]["mirrorServices"]
            .as_array()
            .into_iter()
            .flatten();
        let reasons = conditions.map(|entry| &entry["conditions"][0]["reason"]);
        reasons.collect::<Vec<_>>() == ["MissingNamespace", "Mirrored"]
    })
    .await;
    let event = eventually("the event", async || target.writes("bank/events").pop()).await;
    assert_eq!(event.body["reason"], "ServiceMirroringSkipped");
    assert_eq!(event.body["involvedObject"]["name"], "db");

    target.delete(WEB);
    expect_gone(&api, MIRROR).await;
    expect_gone(&api, ENDPOINTS).await;

    // The Lease has no owner, and is released at the end.
    let lease = api.get(LEASE).unwrap();
    assert!(lease["metadata"]["ownerReferences"].is_null());
    assert!(lease["spec"]["holderIdentity"].is_string());
    mirror.program.terminate();
    assert!(mirror.program.exited().await.success());
    let lease = api.get(LEASE).unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
}

#[tokio::test]
async fn mirrors_stay_while_the_target_refuses_the_credentials_and_new_ones_are_followed() {
    let (api, first) = (cluster(), target());
    let mirror = Mirror::start(&api, &["east"]).await;
    let kubeconfig = mirror.kubeconfig(first.listen("first").await);
    api.put(SECRET, secret(&kubeconfig));
    let mut without_probe = link(1);
    without_probe["spec"]["probeSpec"] = Value::Null;
    api.put(LINK, without_probe.clone());
    expect(&api, MIRROR, "the mirror", Value::is_object).await;

    // The same cluster under another address, whose API server refuses everything, without the
    // Service.
    let second = ScriptedApi::default();
    second.set_fault("second", Some(Fault::Status(401)));
    let kubeconfig = mirror.kubeconfig(second.listen("second").await);
    api.put(SECRET, secret(&kubeconfig));
    mirror
        .program
        .logged("Cannot watch the API server; retrying")
        .await;
    // The first one is followed until then.
    let mut changed = service("shop", "web", exported());
    changed["spec"]["ports"][0]["port"] = 81.into();
    first.put(WEB, changed);
    expect(&api, MIRROR, "the changed port", |it| {
        it["spec"]["ports"][0]["port"] == 81
    })
    .await;
    second.set_fault("second", None);
    expect_gone(&api, MIRROR).await;

    // Without Secret and Link everything stays.
    second.put(WEB, service("shop", "web", exported()));
    expect(&api, MIRROR, "the mirror", Value::is_object).await;
    api.delete(SECRET);
    mirror
        .program
        .logged("The Secret of the Link was deleted")
        .await;
    api.delete(LINK);
    mirror.program.logged("The Link was deleted").await;
    second.delete(WEB);
    mirror
        .expect_metric("mesh_service_mirror_services{result=\"mirrored\"} 0")
        .await;
    assert!(api.get(MIRROR).is_some());
    api.put(SECRET, secret(&kubeconfig));
    api.put(LINK, without_probe);
    expect_gone(&api, MIRROR).await;
}

#[tokio::test]
async fn members_of_this_cluster_join_federated_services_without_a_link() {
    let api = cluster();
    let flags = [
        "-local-mirror",
        "-federated-service-selector=mirror.linkerd.io/federated=member",
        "-excluded-labels=team",
        "-excluded-annotations=",
    ];
    let mirror = Mirror::start(&api, &flags).await;
    let member = json!({ "mirror.linkerd.io/federated": "member", "team": "a", "app": "web" });
    api.put(WEB, service("shop", "web", member.clone()));
    let federated = "/api/v1/namespaces/shop/services/web-federated";
    expect(&api, federated, "the federated Service", |it| {
        let annotations = &it["metadata"]["annotations"];
        annotations["multicluster.linkerd.io/local-discovery"] == "web"
    })
    .await;
    let labels = &api.get(federated).unwrap()["metadata"]["labels"];
    let expected = json!({ "mirror.linkerd.io/mirrored-service": "true", "app": "web" });
    assert_eq!(*labels, expected);
    // The name of another one is in use.
    let taken = "/api/v1/namespaces/shop/services/db-federated";
    api.put(taken, service("shop", "db-federated", json!({})));
    let db = "/api/v1/namespaces/shop/services/db";
    api.put(db, service("shop", "db", member));
    let event = eventually("the event", async || api.writes("shop/events").pop()).await;
    assert_eq!(event.body["involvedObject"]["name"], "db");
    mirror
        .expect_metric("mesh_service_mirror_services{result=\"failed\"} 1")
        .await;
    api.put(WEB, service("shop", "web", json!({})));
    expect_gone(&api, federated).await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/links/leases/local-service-mirror-write";
    assert!(api.get(lease).is_some());
}

#[tokio::test]
async fn unusable_flags_end_the_process_with_their_name() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
        let output = command
            .arg("service-mirror")
            .args(arguments)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = run(&["-enable-pprof", "east"]);
    assert!(error.contains("--enable-pprof"), "{error}");
    let error = run(&["-namespace=links"]);
    assert!(error.contains("<LINK>"), "{error}");
}
