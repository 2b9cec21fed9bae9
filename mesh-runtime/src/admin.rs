//! The admin interface of a daemon: `/live`, `/ready`, `/metrics` and the routes that the daemon
//! adds.
//!
//! [`Admin`] responds to requests and does not depend on sockets, so that the proxy can put its own
//! protocol detection, TLS and policy in front of it; [`serve`] is the plain HTTP/1 listener of the
//! other daemons. It continues to respond during a drain, because the last counters are often the
//! interesting ones.

mod accept;
pub mod log_level;
mod ready;
mod serve;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};

pub use self::ready::{Condition, Readiness};
pub use self::serve::{BindError, bind, serve};
use crate::metrics::Registry;

/// The response of an admin route.
pub type Response = http::Response<Full<Bytes>>;

/// Responds to admin requests. Clones share the same routes.
#[derive(Clone)]
pub struct Admin {
    inner: Arc<Inner>,
}

/// A request to a route that a daemon has added.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub peer: SocketAddr,
}

#[derive(Clone)]
struct Inner {
    registry: Registry,
    readiness: Readiness,
    routes: BTreeMap<&'static str, Route>,
}

type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;
type Route = Arc<dyn Fn(Call) -> ResponseFuture + Send + Sync>;

/// Larger request bodies are rejected: admin routes accept a log filter or a small JSON document.
const MAX_BODY: usize = 64 * 1024;

impl Admin {
    pub fn new(registry: Registry, readiness: Readiness) -> Self {
        Self {
            inner: Arc::new(Inner {
                registry,
                readiness,
                routes: BTreeMap::new(),
            }),
        }
    }

    /// Adds a route for exactly this path and any method.
    #[must_use]
    pub fn route<F, A>(mut self, path: &'static str, handler: F) -> Self
    where
        F: Fn(Call) -> A + Send + Sync + 'static,
        A: Future<Output = Response> + Send + 'static,
    {
        let route: Route = Arc::new(move |call| Box::pin(handler(call)));
        Arc::make_mut(&mut self.inner).routes.insert(path, route);
        self
    }

    /// Responds to a request.
    pub async fn respond<B>(&self, request: Request<B>, peer: SocketAddr) -> Response
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match request.uri().path() {
            "/live" => text(StatusCode::OK, "live\n"),
            "/ready" => self.ready(),
            "/metrics" => self.metrics(request.headers()),
            path => match self.inner.routes.get(path) {
                Some(route) => call(route, request, peer).await,
                None => empty(StatusCode::NOT_FOUND),
            },
        }
    }

    fn ready(&self) -> Response {
        let missing = self.inner.readiness.missing();
        if missing.is_empty() {
            return text(StatusCode::OK, "ready\n");
        }
        let mut body = String::from("not ready\n");
        for name in missing {
            body.push_str("waiting for ");
            body.push_str(name);
            body.push('\n');
        }
        // Without a content type, as in Linkerd.
        let mut response = http::Response::new(Full::from(body));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }

    fn metrics(&self, headers: &HeaderMap) -> Response {
        let format = accept::format(headers);
        let content_type = format.content_type();
        let uncompressed = self.inner.registry.encode_as(format);
        if accepts_gzip(headers)
            && let Ok(compressed) = gzip(&uncompressed)
        {
            let mut response = typed(StatusCode::OK, content_type, compressed);
            let gzip = HeaderValue::from_static("gzip");
            response.headers_mut().insert(CONTENT_ENCODING, gzip);
            return response;
        }
        typed(StatusCode::OK, content_type, uncompressed)
    }
}

impl Call {
    /// Whether the caller is on this host, by its IPv4, IPv6 or v4-mapped address. Routes with side
    /// effects require it.
    pub fn is_local(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("routes", &self.inner.routes.keys())
            .finish_non_exhaustive()
    }
}

/// Returns a plain text response.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    typed(status, "text/plain", body)
}

/// Returns a response with a content type.
pub fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = http::Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Returns a response without a body.
pub fn empty(status: StatusCode) -> Response {
    let mut response = http::Response::new(Full::default());
    *response.status_mut() = status;
    response
}

async fn call<B>(route: &Route, request: Request<B>, peer: SocketAddr) -> Response
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return text(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request body is unreadable or larger than 64 KiB\n",
        );
    };
    route(Call {
        method: head.method,
        uri: head.uri,
        headers: head.headers,
        body: body.to_bytes(),
        peer,
    })
    .await
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains("gzip")))
}

fn gzip(uncompressed: &[u8]) -> std::io::Result<Vec<u8>> {
    // A scrape is compressed once and discarded, so that speed matters more than size.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut encoder, uncompressed)?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
