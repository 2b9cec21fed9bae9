//! A cluster for `meshctl` and the identity service: objects in memory, an API server with
//! port-forwards to processes of this machine, and a kubelet that writes the files of the identity
//! service.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mesh_test_support::kube_api::{ScriptedApi, response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower::Service as _;

use crate::port_forward;

/// The cluster. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Cluster {
    pub(super) api: ScriptedApi,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The paths of the pods.
    pods: Vec<String>,
    /// Where ports of pods are, by `NAMESPACE/POD` and port.
    ports: HashMap<(String, u16), SocketAddr>,
    trap: Trap,
}

/// What happens to the next write of `meshctl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Trap {
    #[default]
    None,
    /// It has no effect and no response.
    Lost,
    /// It has an effect and no response.
    ResponseLost,
    /// It has happened. Further writes have no effect.
    Sprung,
}

pub(super) const CORE: &str = "/api/v1/namespaces/linkerd";
pub(super) const ANCHORS: &str =
    "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-roots";
pub(super) const BUNDLE: &str =
    "/api/v1/namespaces/linkerd/configmaps/linkerd-identity-trust-bundle";
pub(super) const ISSUER: &str = "/api/v1/namespaces/linkerd/secrets/linkerd-identity-issuer";
pub(super) const OWN_ANCHOR: &str = "/api/v1/namespaces/linkerd/secrets/linkerd-trust-anchor";
pub(super) const ROTATION: &str = "/api/v1/namespaces/linkerd/secrets/linkerd-identity-rotation";

impl Cluster {
    /// Returns a cluster with what the chart creates for the identity service.
    pub(super) fn new() -> Self {
        let cluster = Self::default();
        let config = json!({ "values": "clusterDomain: cluster.local" });
        for (name, data) in [
            ("linkerd-config", config),
            ("linkerd-identity-trust-bundle", Value::Null),
        ] {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": name, "namespace": "linkerd" }, "data": data,
            });
            cluster.api.put(&format!("{CORE}/configmaps/{name}"), map);
        }
        cluster
    }

    /// Serves until the runtime ends, and writes a kubeconfig.
    pub(super) async fn listen(&self, client: &'static str, kubeconfig: &Path) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("a bound address");
        mesh_test_support::kube_api::write_kubeconfig(kubeconfig, addr);
        let cluster = self.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let cluster = cluster.clone();
                        async move { Ok::<_, Infallible>(cluster.respond(client, request).await) }
                    });
                    let connection = http1::Builder::new()
                        .serve_connection(TokioIo::new(tcp), service)
                        .with_upgrades();
                    // Clients close connections whenever they want.
                    let _closed = connection.await;
                });
            }
        });
    }

    pub(super) fn add_pod(&self, namespace: &str, pod: Value, ports: &[(u16, SocketAddr)]) {
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.api.put(&path, pod);
        let mut state = self.state.lock();
        state.pods.retain(|other| *other != path);
        state.pods.push(path);
        for (port, addr) in ports {
            let key = (format!("{namespace}/{name}"), *port);
            state.ports.insert(key, *addr);
        }
    }

    pub(super) fn set_trap(&self, trap: Trap) {
        self.state.lock().trap = trap;
    }

    pub(super) fn trap(&self) -> Trap {
        self.state.lock().trap
    }

    /// Returns an entry of a ConfigMap.
    pub(super) fn text(&self, path: &str, key: &str) -> String {
        let object = self.api.get(path).unwrap_or_default();
        object["data"][key].as_str().unwrap_or_default().to_owned()
    }

    /// Returns an entry of a Secret.
    pub(super) fn secret(&self, path: &str, key: &str) -> String {
        let bytes = STANDARD.decode(self.text(path, key)).expect("base64");
        String::from_utf8(bytes).expect("text")
    }

    /// Writes the files of the identity service when the objects change, as the kubelet does.
    pub(super) fn spawn_kubelet(&self, directory: &Path) {
        let (cluster, directory) = (self.clone(), directory.to_owned());
        tokio::spawn(async move {
            loop {
                cluster.sync(&directory);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }

    pub(super) fn sync(&self, directory: &Path) {
        for (file, text) in [
            ("ca-bundle.crt", self.text(ANCHORS, "ca-bundle.crt")),
            ("crt.pem", self.secret(ISSUER, "crt.pem")),
            ("key.pem", self.secret(ISSUER, "key.pem")),
        ] {
            let draft = directory.join(format!(".{file}"));
            std::fs::write(&draft, text).expect("the file is written");
            std::fs::rename(draft, directory.join(file)).expect("the file is renamed");
        }
    }

    async fn respond(
        &self,
        client: &'static str,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        match (request.method(), path.as_str()) {
            (_, path) if path.ends_with("/portforward") => self.forward(request),
            (&Method::GET, "/version") => response(StatusCode::OK, &version()),
            (&Method::GET, "/api" | "/apis") => response(
                StatusCode::OK,
                &json!({ "kind": "APIGroupList", "groups": [] }),
            ),
            (&Method::GET, path) => match self.list(path) {
                Some(items) => response(
                    StatusCode::OK,
                    &json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }),
                ),
                None => self.object(client, request).await,
            },
            (&Method::POST, path) if path.ends_with("/tokenreviews") => {
                review(request, |review| {
                    let token = review["spec"]["token"].as_str().unwrap_or_default();
                    let user = json!({ "username": subject(token), "uid": "u" });
                    let audiences = review["spec"]["audiences"].clone();
                    json!({ "authenticated": true, "user": user, "audiences": audiences })
                })
                .await
            }
            (&Method::POST, path) if path.ends_with("/selfsubjectaccessreviews") => {
                review(request, |_| json!({ "allowed": true })).await
            }
            (_, path) if path.ends_with("/events") => review(request, |_| Value::Null).await,
            _ => self.object(client, request).await,
        }
    }

    fn list(&self, path: &str) -> Option<Vec<Value>> {
        match path {
            "/api/v1/nodes" | "/apis/workload.linkerd.io/v1beta1/externalworkloads" => {
                Some(Vec::new())
            }
            "/api/v1/pods" => {
                let state = self.state.lock();
                Some(
                    state
                        .pods
                        .iter()
                        .filter_map(|path| self.api.get(path))
                        .collect(),
                )
            }
            // The only selected one.
            "/api/v1/namespaces/linkerd/configmaps" => {
                Some(self.api.get(ANCHORS).into_iter().collect())
            }
            _ => None,
        }
    }

    /// Reads or writes an object, unless the write is trapped.
    async fn object(
        &self,
        client: &'static str,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let is_write = *request.method() != Method::GET;
        let trap = if client == "meshctl" && is_write {
            self.trap()
        } else {
            Trap::None
        };
        if matches!(trap, Trap::Lost | Trap::Sprung) {
            self.set_trap(Trap::Sprung);
            return std::future::pending().await;
        }
        let Ok(response) = self.api.service(client).call(request).await;
        if trap == Trap::ResponseLost {
            self.set_trap(Trap::Sprung);
            return std::future::pending().await;
        }
        response
    }

    /// Forwards to where the port of a pod is.
    fn forward(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        port_forward::accept(request, |pod, port| {
            let key = (pod.to_owned(), port);
            self.state.lock().ports.get(&key).copied()
        })
    }
}

/// Responds to a created object with a status.
async fn review(
    request: Request<Incoming>,
    status: impl Fn(&Value) -> Value,
) -> Response<Full<Bytes>> {
    let body = request
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    let mut object: Value = serde_json::from_slice(&body).expect("an object");
    object["status"] = status(&object);
    response(StatusCode::CREATED, &object)
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    })
}

/// Returns a token of a ServiceAccount, which the API server accepts whatever its signature.
pub(crate) fn token(namespace: &str, account: &str) -> String {
    let header = json!({ "alg": "RS256" });
    let claims = json!({
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
        "aud": ["identity.l5d.io"], "exp": 4_000_000_000_u64,
    });
    let [header, claims] = [header, claims].map(|it| URL_SAFE_NO_PAD.encode(it.to_string()));
    format!("{header}.{claims}.c2ln")
}

fn subject(token: &str) -> String {
    let claims = token.split('.').nth(1).unwrap_or_default();
    let claims = URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
    let claims: Value = serde_json::from_slice(&claims).unwrap_or_default();
    claims["sub"].as_str().unwrap_or_default().to_owned()
}
