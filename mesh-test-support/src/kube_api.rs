//! The common part of the API servers that tests and benchmarks play: connections, responses, and
//! objects in memory that clients write ([`ScriptedApi`]).

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

pub use self::scripted::{Fault, ScriptedApi, Write};

mod scripted;
mod watched;

/// Serves on a port of the loopback until the runtime ends, and returns its address.
pub async fn start<F, B>(
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    let addr = listener.local_addr().expect("a bound address");
    tokio::spawn(serve(listener, respond));
    addr
}

/// Serves HTTP/1 until accepting fails.
pub async fn serve<F, B>(
    listener: TcpListener,
    respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) -> io::Error
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => {
                // Nagle's algorithm would delay an event until the previous one is acknowledged.
                let _closed = tcp.set_nodelay(true);
                tokio::spawn(serve_connection(tcp, respond.clone()));
            }
            Err(error) => return error,
        }
    }
}

/// Serves one connection. Clients close connections whenever they want.
pub async fn serve_connection<S, F, B>(stream: S, respond: impl Fn(Request<Incoming>) -> F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Response<B>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let service = service_fn(move |request| {
        let response = respond(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let _closed = served.await;
}

/// Returns the response with an object, or the one of an API server without the object.
pub fn found(object: Option<Value>) -> Response<Full<Bytes>> {
    match object {
        Some(object) => response(StatusCode::OK, &object),
        None => failure(StatusCode::NOT_FOUND, "there is none"),
    }
}

pub fn response(status: StatusCode, object: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(object.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Returns a response with a `Status`, whose reason is the text of the code, such as `NotFound`.
pub fn failure(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let reason = status
        .canonical_reason()
        .unwrap_or_default()
        .replace(' ', "");
    let object = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": status.as_u16(), "reason": reason, "message": message,
    });
    response(status, &object)
}

/// Writes a kubeconfig for an API server without TLS.
pub fn write_kubeconfig(path: &Path, server: SocketAddr) {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "scripted",
        "clusters": [{ "name": "scripted", "cluster": { "server": format!("http://{server}") } }],
        "users": [{ "name": "test", "user": {} }],
        "contexts": [{ "name": "scripted", "context": { "cluster": "scripted", "user": "test" } }],
    });
    std::fs::write(path, config.to_string()).expect("a writable directory");
}

/// Applies a JSON merge patch (RFC 7396).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(key)),
            _ => merge(&mut target[key], value),
        }
    }
}
