//! `mesh-controller heartbeat` as a process, with servers that play an API server, Prometheus and
//! the receiver of reports.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use form_urlencoded::parse;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use mesh_test_support::program::Program;
use mesh_test_support::{installation, kube_api};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

mod tls;

/// Sufficient for a loaded host; a test that passes does not wait this long.
const TIMEOUT: Duration = Duration::from_secs(30);

type Respond = fn(&str, &str) -> Response<Full<Bytes>>;

/// A server whose requests the test receives: path with query, and body.
struct Server {
    addr: SocketAddr,
    requests: mpsc::UnboundedReceiver<(String, String)>,
}

impl Server {
    /// Serves HTTP/1 until the test ends.
    async fn start(respond: Respond) -> Self {
        let (received, requests) = mpsc::unbounded_channel();
        let addr = kube_api::start(recorded(respond, received)).await;
        Self { addr, requests }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// Returns a function that responds, and passes each request on.
fn recorded(
    respond: Respond,
    received: mpsc::UnboundedSender<(String, String)>,
) -> impl Fn(Request<Incoming>) -> BoxFuture<'static, Response<Full<Bytes>>> + Clone {
    move |request| {
        let received = received.clone();
        let responding = async move {
            let target = request.uri().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            let response = respond(&target, &body);
            // The test may have ended.
            let _ended = received.send((target, body));
            response
        };
        responding.boxed()
    }
}

fn accept(_target: &str, _body: &str) -> Response<Full<Bytes>> {
    kube_api::response(StatusCode::OK, &json!("ok"))
}

fn api_server(target: &str, _body: &str) -> Response<Full<Bytes>> {
    let path = target.split('?').next().unwrap();
    let values = "linkerdVersion: 1.2.3\n";
    kube_api::found(installation::object(path, "linkerd", "0b7c-4d", values))
}

/// Responds with a sample for total-rps and max-mem-destination, and without one otherwise.
fn prometheus(target: &str, body: &str) -> Response<Full<Bytes>> {
    assert_eq!(target, "/prom/api/v1/query");
    let (_, query) = parse(body.as_bytes())
        .find(|(name, _)| name == "query")
        .unwrap();
    let value = if query.starts_with("sum(rate(request_total{") {
        Some("12.4")
    } else if query.contains("container_memory") && query.contains("destination") {
        Some("268435456")
    } else {
        None
    };
    let samples: Vec<Value> = value
        .into_iter()
        .map(|value| json!({ "metric": {}, "value": [1, value] }))
        .collect();
    let data = json!({ "resultType": "vector", "result": samples });
    let found = json!({ "status": "success", "data": data });
    kube_api::response(StatusCode::OK, &found)
}

/// A cluster to report on.
struct Cluster {
    prometheus: Server,
    dir: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let api = Server::start(api_server).await;
        kube_api::write_kubeconfig(&dir.path().join("config"), api.addr);
        Self {
            prometheus: Server::start(prometheus).await,
            dir,
        }
    }

    /// Sends a report. `authorities` is a file of CA certificates instead of the machine's.
    fn send(&self, receiver: &str, authorities: Option<&Path>) -> Program {
        let kubeconfig = self.dir.path().join("config");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
        command
            .arg("heartbeat")
            .arg(format!("--url={receiver}"))
            .arg(format!("--prometheus-url={}/prom", self.prometheus.url()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()));
        if let Some(authorities) = authorities {
            command
                .env("SSL_CERT_FILE", authorities)
                .env_remove("SSL_CERT_DIR");
        }
        Program::start(&mut command)
    }
}

/// Returns the next request of a server.
async fn next(requests: &mut mpsc::UnboundedReceiver<(String, String)>) -> (String, String) {
    let next = tokio::time::timeout(TIMEOUT, requests.recv()).await;
    next.unwrap().unwrap()
}

/// Returns the parameters of a report except the architecture, which depends on the machine.
fn parameters(target: &str) -> Vec<(String, String)> {
    let (path, query) = target.split_once('?').unwrap();
    assert_eq!(path, "/mesh");
    let parameters = parse(query.as_bytes()).into_owned();
    parameters.filter(|(name, _)| name != "arch").collect()
}

const EXPECTED: [(&str, &str); 9] = [
    ("ext-viz", "1"),
    ("install-time", "1767225600"),
    ("k8s-version", "v1.34.1"),
    ("max-mem-destination", "268435456"),
    ("service-profile-count", "5"),
    ("source", "heartbeat"),
    ("total-rps", "12"),
    ("uuid", "0b7c-4d"),
    ("version", "1.2.3"),
];

fn expected() -> Vec<(String, String)> {
    let expected = EXPECTED.iter();
    expected
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[tokio::test]
async fn report_of_cluster_arrives_once() {
    let cluster = Cluster::start().await;
    let mut receiver = Server::start(accept).await;
    let mut program = cluster.send(&format!("{}/mesh", receiver.url()), None);
    let (target, body) = next(&mut receiver.requests).await;
    assert_eq!(parameters(&target), expected());
    assert_eq!(body, "");
    program.logged("Sent the report").await;
    assert!(program.exited().await.success());
    assert!(receiver.requests.try_recv().is_err());
    // A figure that Prometheus lacks is logged.
    let log = program.log();
    assert!(log.contains("p99-handle-us"), "{log}");
}

#[tokio::test]
async fn report_is_sent_over_verified_tls() {
    let cluster = Cluster::start().await;
    let mut receiver = tls::start(accept).await;
    let file = |name: &str, authority: &str| {
        let path = cluster.dir.path().join(name);
        std::fs::write(&path, authority).unwrap();
        path
    };
    let authority = file("ca.pem", &receiver.authority);
    let url = format!("https://localhost:{}/mesh", receiver.addr.port());
    let mut program = cluster.send(&url, Some(&authority));
    let (target, _) = next(&mut receiver.requests).await;
    assert_eq!(parameters(&target), expected());
    assert!(program.exited().await.success());

    // The certificate is valid for the name, not for the address.
    let address = format!("https://127.0.0.1:{}/mesh", receiver.addr.port());
    let mut program = cluster.send(&address, Some(&authority));
    program
        .logged("no secure connection: the handshake failed")
        .await;
    assert!(!program.exited().await.success());

    let other = file("other.pem", &tls::start(accept).await.authority);
    let mut program = cluster.send(&url, Some(&other));
    program
        .logged("no secure connection: the handshake failed")
        .await;
    assert!(!program.exited().await.success());
    assert!(receiver.requests.try_recv().is_err());
}

#[tokio::test]
async fn refusal_of_receiver_is_failure() {
    let cluster = Cluster::start().await;
    let refuse: Respond =
        |_target, _body| kube_api::response(StatusCode::FORBIDDEN, &json!("not you"));
    let receiver = Server::start(refuse).await;
    let mut program = cluster.send(&receiver.url(), None);
    let error = program.logged("cannot send a report").await;
    assert!(
        error.contains("it responded with 403 Forbidden: \"not you\""),
        "{error}"
    );
    assert!(!program.exited().await.success());
}
