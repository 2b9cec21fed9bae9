//! The responses to requests of controllers, and to those that change the objects.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

use super::cluster::{Cluster, groups, resources};

type Body = BoxBody<Bytes, Infallible>;

/// Larger than any object that a controller writes.
const MAX_BODY: usize = 1 << 20;
/// The end of a watch whose request has no timeout.
const WATCH_TIMEOUT: u64 = 300;

pub(super) async fn respond(
    cluster: Arc<Cluster>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let query = parts.uri.query().unwrap_or_default();
    if parts.method == Method::GET {
        return Ok(read(&cluster, path, query));
    }
    if let Some(target) = path.strip_prefix("/bench/toggle/") {
        let service = target.split_once('/');
        let version = service.and_then(|(namespace, name)| cluster.toggle(namespace, name));
        return Ok(match version {
            Some(version) => object(StatusCode::OK, &json!({ "version": version })),
            None => failure(StatusCode::NOT_FOUND, "there is no such Service"),
        });
    }
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return Ok(failure(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large or incomplete",
        ));
    };
    let written = match serde_json::from_slice::<Value>(&body.to_bytes()) {
        Ok(written) => written,
        Err(error) => return Ok(failure(StatusCode::BAD_REQUEST, &error.to_string())),
    };
    Ok(match parts.method {
        Method::PUT | Method::PATCH => object(StatusCode::OK, &cluster.write(path, &written)),
        Method::POST => {
            let name = written["metadata"]["name"].as_str().unwrap_or_default();
            let stored = cluster.write(&format!("{path}/{name}"), &written);
            object(StatusCode::CREATED, &stored)
        }
        _ => failure(StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed"),
    })
}

fn read(cluster: &Arc<Cluster>, path: &str, query: &str) -> Response<Body> {
    if path == "/apis" {
        return object(StatusCode::OK, &groups());
    }
    if parameter(query, "watch").is_some_and(|value| value == "true" || value == "1")
        && cluster.has_list(path)
    {
        return watch(cluster.clone(), path.to_owned(), query);
    }
    if let Some(list) = cluster.list(path) {
        return response(StatusCode::OK, Full::new(list.into()).boxed());
    }
    match resources(path).or_else(|| cluster.written(path)) {
        Some(found) => object(StatusCode::OK, &found),
        None => failure(StatusCode::NOT_FOUND, "there is no such object"),
    }
}

/// Sends the events of a list until the timeout of the request.
fn watch(cluster: Arc<Cluster>, path: String, query: &str) -> Response<Body> {
    let number = |name| parameter(query, name).and_then(|value| value.parse::<u64>().ok());
    let timeout = Duration::from_secs(number("timeoutSeconds").unwrap_or(WATCH_TIMEOUT));
    let mut after = number("resourceVersion").filter(|version| *version > 0);
    // One event waits for the controller to read it; later ones wait in the cluster.
    let (frames, body) = mpsc::channel(1);
    let mut version = cluster.version();
    let events = async move {
        loop {
            let latest = *version.borrow_and_update();
            let lines = cluster.events(&path, after);
            after = Some(latest);
            if !lines.is_empty() {
                let frame = Ok::<_, Infallible>(Frame::data(Bytes::from(lines)));
                if frames.send(frame).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                changed = version.changed() => if changed.is_err() { return },
                () = frames.closed() => return,
            }
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            () = events => {}
            () = sleep(timeout) => {}
        }
    });
    response(
        StatusCode::OK,
        StreamBody::new(ReceiverStream::new(body)).boxed(),
    )
}

/// Returns a parameter of a query whose values need no decoding.
fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .find(|pair| pair.0 == name)
        .map(|pair| pair.1)
}

fn object(status: StatusCode, value: &Value) -> Response<Body> {
    response(status, Full::new(value.to_string().into()).boxed())
}

fn failure(status: StatusCode, message: &str) -> Response<Body> {
    let reason = if status == StatusCode::NOT_FOUND {
        "NotFound"
    } else {
        "BadRequest"
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": status.as_u16(), "reason": reason, "message": message,
    });
    object(status, &body)
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
