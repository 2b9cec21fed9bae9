//! The identity service and proxies in processes of this machine, in a [`Cluster`].

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use mesh_test_support::command::{built, succeed};
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::http;
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::json;
use tempfile::TempDir;

use super::cluster::{ANCHORS, Cluster, token};

pub(super) struct Mesh {
    pub(super) cluster: Cluster,
    pub(super) directory: TempDir,
    _identity: Controller,
}

/// A proxy and its pod.
pub(super) struct Proxy {
    pub(super) program: Program,
    admin: SocketAddr,
    _token: TempDir,
}

impl Mesh {
    /// Creates the certificates by the bootstrap, and starts the identity service.
    pub(super) async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let cluster = Cluster::new();
        let kubeconfig = directory.path().join("controllers");
        cluster.listen("control plane", &kubeconfig).await;
        cluster
            .listen("meshctl", &directory.path().join("meshctl"))
            .await;
        let mut bootstrap = Command::new(built("mesh-controller"));
        bootstrap
            .arg("bootstrap")
            .arg("--kubeconfig")
            .arg(&kubeconfig);
        let bootstrapped = tokio::task::spawn_blocking(move || succeed(&mut bootstrap));
        bootstrapped.await.expect("the bootstrap ends");
        cluster.sync(directory.path());
        cluster.spawn_kubelet(directory.path());
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let args = [
            flag("kubeconfig", &kubeconfig),
            flag("issuer-dir", directory.path()),
            flag("trust-anchors", &directory.path().join("ca-bundle.crt")),
            "--publish-trust-roots".to_owned(),
        ];
        let identity = Controller::start("identity", "--addr", "--admin-addr", &args);
        let identity = identity.ready().await;
        let pod = json!({
            "metadata": {
                "name": "linkerd-identity-0", "namespace": "linkerd",
                "labels": { "linkerd.io/control-plane-component": "identity" },
            },
            "spec": { "containers": [{ "name": "identity", "image": "mesh/controller" }] },
            "status": { "phase": "Running", "podIP": "127.0.0.1" },
        });
        cluster.add_pod("linkerd", pod, &[(9990, identity.admin)]);
        Self {
            cluster,
            directory,
            _identity: identity,
        }
    }

    pub(super) fn anchors(&self) -> String {
        self.cluster.text(ANCHORS, "ca-bundle.crt")
    }

    /// Starts a proxy with these anchors in its environment, and waits for its certificate.
    pub(super) async fn proxy(&self, name: &str, anchors: &str) -> Proxy {
        let files = tempfile::tempdir().expect("a directory");
        let token_file = files.path().join("token");
        std::fs::write(&token_file, token("shop", "default")).expect("the token is written");
        let [admin, inbound, outbound, control] = [(); 4].map(|()| free_address());
        let closed = "127.0.0.1:1";
        let identity = "default.shop.serviceaccount.identity.linkerd.cluster.local";
        let environment = [
            ("LOG", "warn,mesh=debug".to_owned()),
            ("IDENTITY_TOKEN_FILE", token_file.display().to_string()),
            ("IDENTITY_SVC_ADDR", self.identity()),
            ("DESTINATION_SVC_ADDR", closed.to_owned()),
            ("POLICY_SVC_ADDR", closed.to_owned()),
            ("DESTINATION_CONTEXT", name.to_owned()),
            ("POLICY_WORKLOAD", name.to_owned()),
            ("DESTINATION_PROFILE_NETWORKS", "10.0.0.0/8".to_owned()),
            ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8".to_owned()),
            ("IDENTITY_TRUST_ANCHORS", anchors.to_owned()),
            ("IDENTITY_LOCAL_NAME", identity.to_owned()),
            // A new certificate every second.
            ("IDENTITY_MIN_REFRESH", "1s".to_owned()),
            ("IDENTITY_MAX_REFRESH", "1s".to_owned()),
            ("INBOUND_DEFAULT_POLICY", "all-unauthenticated".to_owned()),
            ("INBOUND_IPS", "127.0.0.1".to_owned()),
            ("OUTBOUND_LISTEN_ADDRS", outbound.to_string()),
            ("INBOUND_LISTEN_ADDR", inbound.to_string()),
            ("CONTROL_LISTEN_ADDR", control.to_string()),
            ("ADMIN_LISTEN_ADDR", admin.to_string()),
            ("CORES", "1".to_owned()),
        ]
        .map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value));
        let mut command = Command::new(built("mesh-proxy"));
        command
            .env_clear()
            .envs(environment.iter().map(|(name, value)| (name, value)));
        let program = Program::start(&mut command);
        let env = environment
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }));
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "shop",
                "labels": { "linkerd.io/control-plane-ns": "linkerd", "pod-template-hash": "5d4f" },
                "ownerReferences": [
                    { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "u" }
                ],
            },
            "spec": { "containers": [
                { "name": "linkerd-proxy", "image": "mesh/proxy", "env": env.collect::<Vec<_>>() }
            ] },
            "status": { "phase": "Running", "podIP": "127.0.0.1" },
        });
        self.cluster.add_pod("shop", pod, &[(admin.port(), admin)]);
        let proxy = Proxy {
            program,
            admin,
            _token: files,
        };
        eventually(&format!("a certificate of {name}"), async || {
            proxy.metric("control_identity_cert_refreshes_total{result=\"ok\"}") > 0.0
        })
        .await;
        proxy
    }

    fn identity(&self) -> String {
        // The name of loopback, which needs no TLS.
        format!("localhost.:{}", self._identity.grpc.port())
    }

    /// Returns `meshctl identity rotate` with these arguments.
    pub(super) fn rotate(&self, args: &[&str]) -> Command {
        let mut command = Command::new(built("meshctl"));
        command
            .args(["identity", "rotate"])
            .args(args)
            .env("KUBECONFIG", self.directory.path().join("meshctl"))
            .env_remove("MESHCTL_LOCAL")
            .env_remove("LINKERD_NAMESPACE");
        command
    }
}

impl Proxy {
    pub(super) fn metric(&self, series: &str) -> f64 {
        let response = http::request(self.admin, "GET /metrics").unwrap_or_default();
        let mut lines = response.lines();
        let line = lines.find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok())
            .unwrap_or_default()
    }
}
