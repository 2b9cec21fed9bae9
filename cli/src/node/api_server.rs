//! An API server with the objects and the taps of a local node, for the dashboard.
//!
//! It listens on loopback, has only what the dashboard asks for, changes nothing, and requires a
//! token that it shares with the dashboard alone.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Node;
use crate::node::tap::Observer;

mod objects;
mod tap;

/// Ends when it is dropped.
pub(crate) struct ApiServer {
    addr: SocketAddr,
    token: String,
    task: JoinHandle<()>,
}

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// The dashboard has one connection for each of its 64 taps, and some for objects.
const MAX_CONNECTIONS: usize = 128;

/// How long a connection may be without a request: connections of other users have no token.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(60);

/// The agent answers from memory.
const AGENT_TIMEOUT: Duration = Duration::from_secs(2);

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const JSON: HeaderValue = HeaderValue::from_static("application/json");

impl ApiServer {
    pub(crate) async fn start(node: Node) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("listen for the dashboard")?;
        let addr = listener.local_addr().context("read the port")?;
        let token = format!(
            "{:032x}{:032x}",
            rand::random::<u128>(),
            rand::random::<u128>()
        );
        let server = Arc::new(Server {
            observer: Arc::new(Observer::new(node.clone())),
            node,
            authorization: format!("Bearer {token}"),
        });
        Ok(Self {
            addr,
            token,
            task: tokio::spawn(server.serve(listener)),
        })
    }

    /// Writes a kubeconfig for the dashboard, which only the user can read if the directory is of
    /// that kind.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "node", "cluster": { "server": format!("http://{}", self.addr) } }],
            "users": [{ "name": "dashboard", "user": { "token": self.token } }],
            "contexts": [{ "name": "node", "context": { "cluster": "node", "user": "dashboard" } }],
            "current-context": "node",
        });
        std::fs::write(path, config.to_string())
            .with_context(|| format!("write {}", path.display()))
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Server {
    node: Node,
    /// Taps the node's proxies for all viewers.
    observer: Arc<Observer>,
    /// The header that requests must have.
    authorization: String,
}

impl Server {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        while let Ok(permit) = permits.clone().acquire_owned().await {
            let Ok((stream, _from)) = listener.accept().await else {
                // No file descriptor is free, for example.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let server = self.clone();
            tokio::spawn(async move {
                server.serve_connection(stream).await;
                drop(permit);
            });
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let server = self.clone();
            async move { Ok::<_, Infallible>(server.respond(request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        // The dashboard closes the connection of a tap whose viewer has left.
        let _ended = connection.await;
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let given = request.headers().get(AUTHORIZATION);
        if given.is_none_or(|given| given.as_bytes() != self.authorization.as_bytes()) {
            return refused(
                StatusCode::UNAUTHORIZED,
                "expected the token of the dashboard",
            );
        }
        if tap::is_path(request.uri().path()) && request.method() == Method::POST {
            return tap::respond(&self.observer, request).await;
        }
        if request.method() != Method::GET {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "expected GET");
        }
        match objects::find(&self.node, request.uri()) {
            Ok(Some(mut found)) => {
                if objects::is_of_pods(request.uri().path()) {
                    // Without the agent the dashboard shows no tier.
                    if let Ok(report) = timeout(AGENT_TIMEOUT, self.node.agent()).await {
                        objects::add_redirection(&mut found, &report);
                    }
                }
                json_response(StatusCode::OK, &found)
            }
            Ok(None) => refused(
                StatusCode::NOT_FOUND,
                "the local node does not have this object",
            ),
            Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}")),
        }
    }
}

/// Returns an error in the form of Kubernetes.
fn refused(status: StatusCode, message: &str) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or_default();
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason.replace(' ', ""),
        "code": status.as_u16(),
    });
    json_response(status, &body)
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn full(bytes: impl Into<Bytes>) -> Body {
    let body = Full::new(bytes.into());
    body.map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use mesh_local::node_paths::NodePaths;

    use super::*;

    async fn send(
        server: &ApiServer,
        request: http::request::Builder,
        body: Vec<u8>,
    ) -> StatusCode {
        let stream = TcpStream::connect(server.addr).await.unwrap();
        let io = TokioIo::new(stream);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = request.header(http::header::HOST, "localhost");
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let _body = response.into_body().collect().await;
        status
    }

    #[tokio::test]
    async fn requests_without_the_token_or_too_long_are_refused() {
        let paths = NodePaths::new("not-up".parse().unwrap());
        let server = ApiServer::start(Node { paths }).await.unwrap();
        let tap = "/apis/tap.linkerd.io/v1alpha1/watch/namespaces/shop/pods/web/tap";
        let authorization = format!("Bearer {}", server.token);
        let long = vec![0; (64 << 10) + 1];
        for (request, token, body, expected) in [
            (Request::get("/version"), None, Vec::new(), 401),
            (Request::get("/version"), Some("Bearer x"), Vec::new(), 401),
            (Request::post(tap), None, Vec::new(), 401),
            (
                Request::get("/version"),
                Some(&*authorization),
                Vec::new(),
                200,
            ),
            (
                Request::get("/api/v1/secrets"),
                Some(&*authorization),
                Vec::new(),
                404,
            ),
            (
                Request::delete("/version"),
                Some(&*authorization),
                Vec::new(),
                405,
            ),
            (Request::post(tap), Some(&*authorization), long, 413),
        ] {
            let request = match token {
                Some(token) => request.header(AUTHORIZATION, token),
                None => request,
            };
            let status = send(&server, request, body).await;
            assert_eq!(status.as_u16(), expected);
        }
    }
}
