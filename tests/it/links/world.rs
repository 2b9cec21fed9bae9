//! A cluster with a healthy Link to cluster east, and that cluster.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::kube_api;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::api::Api;

/// Both clusters, before they are served.
pub(super) struct World {
    pub(super) own: Api,
    pub(super) east: Api,
    /// Where east will be served.
    listener: TcpListener,
    pub(super) address: SocketAddr,
    /// What the identity service of the own cluster says about trust bundles.
    pub(super) bundle_metrics: Arc<Mutex<String>>,
}

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) const LINK: &str =
    "/apis/multicluster.linkerd.io/v1alpha3/namespaces/linkerd-multicluster/links/east";
/// The credentials of the mirror controller, and of the destination controller.
pub(super) const CREDENTIALS: &str =
    "/api/v1/namespaces/linkerd-multicluster/secrets/cluster-credentials-east";
pub(super) const DISCOVERY: &str = "/api/v1/namespaces/linkerd/secrets/cluster-credentials-east";
pub(super) const CONTROLLER: &str =
    "/apis/apps/v1/namespaces/linkerd-multicluster/deployments/controller-east";
pub(super) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/linkerd-multicluster/leases/service-mirror-write-east";
pub(super) const PROBE: &str = "/api/v1/namespaces/linkerd-multicluster/services/probe-east";
pub(super) const PROBE_ENDPOINTS: &str =
    "/api/v1/namespaces/linkerd-multicluster/endpoints/probe-east";
pub(super) const MIRROR: &str = "/api/v1/namespaces/shop/services/web-east";
pub(super) const MIRROR_ENDPOINTS: &str = "/api/v1/namespaces/shop/endpoints/web-east";
/// In cluster east.
pub(super) const GATEWAY: &str = "/api/v1/namespaces/linkerd-multicluster/services/linkerd-gateway";
pub(super) const CONFIG: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-config";
/// The trust bundle of cluster east, and the bundles that proxies get.
pub(super) const BUNDLE: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-trust-bundle-east";
pub(super) const RECORD: &str =
    "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-bundle";
pub(super) const ROOTS: &str = "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-roots";

const POD: &str = "/api/v1/namespaces/linkerd-multicluster/pods/controller-east-0";
/// The port with the metrics of the mirror controller.
const METRICS: u16 = 9999;

const IDENTITY: &str = "/api/v1/namespaces/linkerd/pods/linkerd-identity-0";
/// The port with the metrics of the identity service.
const IDENTITY_METRICS: u16 = 9990;

impl World {
    /// Returns two clusters whose Link has no fault.
    pub(super) async fn healthy() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let anchor = TestCa::new().anchor_pem().to_owned();
        let mut world = Self {
            own: cluster("own", &anchor),
            east: cluster("east", &anchor),
            listener,
            address,
            bundle_metrics: Arc::default(),
        };
        world.east.token = Some("secret");
        world.east.put(GATEWAY, gateway());
        world.add_link();
        world.add_controller().await;
        world.add_identity().await;
        world
    }

    /// Gives cluster east trust anchors of its own, which its trust bundle makes trusted.
    pub(super) fn exchange_bundles(&mut self) {
        let anchor = TestCa::new().anchor_pem().to_owned();
        self.east.edit(ROOTS)["data"]["ca-bundle.crt"] = json!(anchor);
        let der: String = anchor.lines().filter(|it| !it.starts_with('-')).collect();
        let bundle = json!({
            "keys": [{ "use": "x509-svid", "x5c": [der] }], "spiffe_sequence": 7,
        });
        self.own.put(
            BUNDLE,
            json!({
                "metadata": {
                    "name": "linkerd-trust-bundle-east", "namespace": "linkerd",
                    "labels": { "multicluster.linkerd.io/trust-bundle-of": "east" },
                },
                "data": {
                    "trust-domain": "east.example",
                    "endpoint-url": "https://192.0.2.1:8443/",
                    "endpoint-profile": "https_spiffe",
                    "endpoint-spiffe-id": "spiffe://east.example/ns/linkerd/sa/linkerd-identity",
                    "bundle.json": bundle.to_string(),
                    "link": "linkerd-multicluster/east",
                },
            }),
        );
        self.record(&anchor);
        self.set_bundle_metrics(0);
    }

    /// Records the anchors of cluster east that proxies get.
    pub(super) fn record(&mut self, anchors: &str) {
        let foreign = json!({
            "east.example": { "origin": "first", "sequence": 7, "anchors": anchors },
        });
        self.own.put(
            RECORD,
            json!({
                "metadata": { "name": "linkerd-identity-trust-bundle", "namespace": "linkerd" },
                "data": { "number": "7", "foreign": foreign.to_string() },
            }),
        );
    }

    /// Sets whether the identity service fails to fetch the bundle of cluster east, after it has
    /// fetched one just now.
    pub(super) fn set_bundle_metrics(&self, failing: u8) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let label = "{trust_domain=\"east.example\"}";
        let text = format!(
            "mesh_foreign_bundle_fetched_timestamp_seconds{label} {}\nmesh_foreign_bundle_failing{label} {failing}\n",
            now.as_secs()
        );
        *self.bundle_metrics.lock() = text;
    }

    /// Serves both clusters until the runtime ends, and returns the address of the own one.
    pub(super) async fn serve(self) -> SocketAddr {
        self.east.serve(self.listener);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        self.own.serve(listener);
        address
    }

    /// Serves the own cluster alone. Nothing listens where the other one is expected.
    pub(super) async fn serve_own(self) -> SocketAddr {
        drop(self.listener);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        self.own.serve(listener);
        address
    }

    /// Replaces the kubeconfig of the mirror controller.
    pub(super) fn set_kubeconfig(&mut self, text: &str) {
        self.own.edit(CREDENTIALS)["data"] = json!({ "kubeconfig": STANDARD.encode(text) });
    }

    fn add_link(&mut self) {
        let own = &mut self.own;
        own.put(
            "/apis",
            json!({
                "kind": "APIGroupList", "groups": [{
                    "name": "multicluster.linkerd.io",
                    "versions": [{
                        "groupVersion": "multicluster.linkerd.io/v1alpha3", "version": "v1alpha3",
                    }],
                }],
            }),
        );
        own.put(
            "/apis/multicluster.linkerd.io/v1alpha3",
            json!({
                "kind": "APIResourceList", "groupVersion": "multicluster.linkerd.io/v1alpha3",
                "resources": [{
                    "name": "links", "singularName": "link", "namespaced": true, "kind": "Link",
                    "verbs": ["list"],
                }],
            }),
        );
        own.put(
            "/api/v1/namespaces/linkerd-multicluster",
            json!({
                "metadata": {
                    "name": "linkerd-multicluster",
                    "labels": { "linkerd.io/extension": "multicluster" },
                },
            }),
        );
        own.put(LINK, link("east"));
        let kubeconfig = kubeconfig(self.address, "secret");
        let data = json!({ "kubeconfig": STANDARD.encode(&kubeconfig) });
        own.put(CREDENTIALS, json!({
            "metadata": { "name": "cluster-credentials-east", "namespace": "linkerd-multicluster" },
            "type": "mirror.linkerd.io/remote-kubeconfig", "data": data,
        }));
        own.put(
            DISCOVERY,
            json!({
                "metadata": {
                    "name": "cluster-credentials-east", "namespace": "linkerd",
                    "labels": { "multicluster.linkerd.io/cluster-name": "east" },
                    "annotations": {
                        "multicluster.linkerd.io/trust-domain": "east.example",
                        "multicluster.linkerd.io/cluster-domain": "east.example",
                    },
                },
                "type": "mirror.linkerd.io/remote-kubeconfig", "data": data,
            }),
        );
    }

    async fn add_identity(&mut self) {
        let text = self.bundle_metrics.clone();
        let metrics = kube_api::start(move |_request| {
            let text = text.lock().clone();
            ready(Response::new(Full::<Bytes>::from(text)))
        });
        let key = ("linkerd/linkerd-identity-0".to_owned(), IDENTITY_METRICS);
        self.own.ports.insert(key, metrics.await);
        self.own.put(
            IDENTITY,
            json!({
                "metadata": {
                    "name": "linkerd-identity-0", "namespace": "linkerd",
                    "labels": { "linkerd.io/control-plane-component": "identity" },
                },
                "spec": { "containers": [{ "name": "identity" }] },
                "status": { "phase": "Running" },
            }),
        );
    }

    async fn add_controller(&mut self) {
        let metrics = kube_api::start(|_request| ready(metrics())).await;
        let key = ("linkerd-multicluster/controller-east-0".to_owned(), METRICS);
        let own = &mut self.own;
        own.ports.insert(key, metrics);
        let labels = json!({
            "component": "controller", "mirror.linkerd.io/cluster-name": "east",
        });
        let named = |namespace: &str, name: &str| json!({ "name": name, "namespace": namespace, "labels": labels });
        let container = |name: &str, image: &str| json!({ "name": name, "image": format!("mesh/{image}:{VERSION}") });
        let containers = json!([
            container("controller", "controller"),
            container("linkerd-proxy", "proxy"),
        ]);
        own.put(
            CONTROLLER,
            json!({
                "metadata": named("linkerd-multicluster", "controller-east"),
                "spec": {
                    "replicas": 1, "selector": {},
                    "template": { "spec": {
                        "serviceAccountName": "controller-east", "containers": containers,
                    } },
                },
                "status": { "availableReplicas": 1 },
            }),
        );
        let status = |name: &str| {
            json!({
                "name": name, "image": "x", "imageID": "", "ready": true, "started": true,
                "restartCount": 0, "state": { "running": {} },
            })
        };
        own.put(
            POD,
            json!({
                "metadata": named("linkerd-multicluster", "controller-east-0"),
                "spec": { "containers": containers },
                "status": {
                    "phase": "Running",
                    "containerStatuses": [status("controller"), status("linkerd-proxy")],
                },
            }),
        );
        own.put(LEASE, json!({
            "metadata": { "name": "service-mirror-write-east", "namespace": "linkerd-multicluster" },
            "spec": { "holderIdentity": "controller-east-0" },
        }));
        let written = |namespace: &str, name: &str, kind: &str| {
            let mut metadata = named(namespace, name);
            metadata["labels"][format!("mirror.linkerd.io/{kind}")] = json!("true");
            metadata
        };
        own.put(
            PROBE,
            json!({
                "metadata": written("linkerd-multicluster", "probe-east", "mirrored-gateway"),
                "spec": { "ports": [{ "name": "mc-probe", "port": 4191 }] },
            }),
        );
        own.put(
            MIRROR,
            json!({
                "metadata": written("shop", "web-east", "mirrored-service"),
                "spec": { "ports": [{ "name": "http", "port": 80 }] },
            }),
        );
        let subsets =
            json!([{ "addresses": [{ "ip": "192.0.2.1" }], "ports": [{ "port": 4143 }] }]);
        for (path, metadata) in [
            (PROBE_ENDPOINTS, named("linkerd-multicluster", "probe-east")),
            (MIRROR_ENDPOINTS, named("shop", "web-east")),
        ] {
            own.put(path, json!({ "metadata": metadata, "subsets": subsets }));
        }
    }
}

/// Returns a cluster with a control plane.
fn cluster(name: &str, anchor: &str) -> Api {
    let mut api = Api::default();
    api.put(
        "/version",
        json!({
            "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }),
    );
    let values = json!({
        "linkerdVersion": VERSION, "clusterDomain": format!("{name}.example"),
        "identityTrustDomain": "", "identityTrustAnchorsPEM": anchor,
    });
    api.put(
        CONFIG,
        json!({
            "metadata": { "name": "linkerd-config", "namespace": "linkerd", "uid": name },
            "data": { "values": values.to_string() },
        }),
    );
    api.put(
        ROOTS,
        json!({
            "metadata": { "name": "linkerd-identity-trust-roots", "namespace": "linkerd" },
            "data": { "ca-bundle.crt": anchor },
        }),
    );
    api
}

pub(super) fn link(name: &str) -> Value {
    json!({
        "apiVersion": "multicluster.linkerd.io/v1alpha3", "kind": "Link",
        "metadata": {
            "name": name, "namespace": "linkerd-multicluster",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "linkerd.io/created-by": format!("linkerd/cli {VERSION}") },
        },
        "spec": {
            "targetClusterName": "east", "targetClusterDomain": "east.example",
            "targetClusterLinkerdNamespace": "linkerd",
            "clusterCredentialsSecret": "cluster-credentials-east",
            "gatewayAddress": "192.0.2.1", "gatewayPort": "4143",
            "gatewayIdentity": "gateway.example",
            "probeSpec": { "path": "/ready", "port": "4191", "period": "3s" },
            "selector": { "matchLabels": { "mirror.linkerd.io/exported": "true" } },
            "federatedServiceSelector": { "matchLabels": { "mirror.linkerd.io/federated": "member" } },
        },
    })
}

fn gateway() -> Value {
    json!({
        "metadata": {
            "name": "linkerd-gateway", "namespace": "linkerd-multicluster",
            "annotations": {
                "mirror.linkerd.io/gateway-identity": "gateway.example",
                "mirror.linkerd.io/probe-path": "/ready",
                "mirror.linkerd.io/probe-period": "3",
            },
        },
        "spec": { "type": "LoadBalancer", "ports": [
            { "name": "mc-gateway", "port": 4143 }, { "name": "mc-probe", "port": 4191 },
        ] },
        "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } },
    })
}

/// Returns a kubeconfig with a token.
pub(super) fn kubeconfig(server: SocketAddr, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "east",
        "clusters": [{ "name": "east", "cluster": { "server": format!("http://{server}") } }],
        "users": [{ "name": "mirror", "user": { "token": token } }],
        "contexts": [{ "name": "east", "context": { "cluster": "east", "user": "mirror" } }],
    });
    config.to_string()
}

/// Returns the metrics of a mirror controller whose probes succeed.
fn metrics() -> Response<Full<Bytes>> {
    let label = "{target_cluster_name=\"east\"}";
    let text =
        format!("gateway_enabled{label} 1\ngateway_alive{label} 1\ngateway_latency{label} 3\n");
    Response::new(Full::from(text))
}
