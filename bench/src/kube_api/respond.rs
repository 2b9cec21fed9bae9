//! The responses to requests of controllers, and to those that change the objects.

use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use mesh_test_support::kube_api;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

use super::cluster::{Page, Selection, Toggle, View};
use super::kinds::{groups, resources, version};
use super::{Front, token_review};

type Body = BoxBody<Bytes, Infallible>;

/// Larger than any object that a controller writes.
const MAX_BODY: usize = 1 << 20;
/// The end of a watch whose request has no timeout.
const WATCH_TIMEOUT: u64 = 300;

pub(super) async fn respond(front: Arc<Front>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let query = parts.uri.query().unwrap_or_default();
    if parts.method == Method::GET {
        let accept = parts.headers.get(ACCEPT).map(HeaderValue::as_bytes);
        let response = read(&front, path, query, view(accept.unwrap_or_default()));
        if response.status() == StatusCode::NOT_FOUND {
            // The log names the requests of a controller that are not served.
            eprintln!("not found: {path}");
        }
        return response;
    }
    if let Some(target) = path.strip_prefix("/bench/") {
        return match toggle(&front, target) {
            Some(version) => object(StatusCode::OK, &json!({ "version": version })),
            None => failure(StatusCode::NOT_FOUND, "there is no such Service"),
        };
    }
    let Ok(body) = Limited::new(body, MAX_BODY).collect().await else {
        return failure(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is too large or incomplete",
        );
    };
    let written = match serde_json::from_slice::<Value>(&body.to_bytes()) {
        Ok(written) => written,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match parts.method {
        Method::POST if path == token_review::PATH => {
            if !front.token_review_delay.is_zero() {
                sleep(front.token_review_delay).await;
            }
            object(StatusCode::CREATED, &token_review::reviewed(written))
        }
        Method::POST if path == token_review::ACCESS_PATH => {
            object(StatusCode::CREATED, &token_review::allowed(written))
        }
        Method::PUT | Method::PATCH => object(StatusCode::OK, &front.cluster.write(path, &written)),
        Method::POST => {
            let name = written["metadata"]["name"].as_str().unwrap_or_default();
            let stored = front.cluster.write(&format!("{path}/{name}"), &written);
            object(StatusCode::CREATED, &stored)
        }
        _ => failure(StatusCode::METHOD_NOT_ALLOWED, "the method is not allowed"),
    }
}

/// Executes the path: `toggle` or `toggle-opaque` with namespace and name of a Service.
fn toggle(front: &Front, target: &str) -> Option<u64> {
    let (what, service) = target.split_once('/')?;
    let (namespace, name) = service.split_once('/')?;
    let what = match what {
        "toggle" => Toggle::Ready,
        "toggle-opaque" => Toggle::Opaque,
        _ => return None,
    };
    front.cluster.toggle(namespace, name, what)
}

fn view(accept: &[u8]) -> View {
    let partial = b"as=PartialObjectMetadata";
    if accept.windows(partial.len()).any(|part| part == partial) {
        View::Metadata
    } else {
        View::Full
    }
}

fn read(front: &Arc<Front>, path: &str, query: &str, view: View) -> Response<Body> {
    if path == "/apis" {
        return object(StatusCode::OK, &groups());
    }
    if path == "/version" {
        return object(StatusCode::OK, &version());
    }
    if front.forbidden == Some(path) {
        return failure(StatusCode::FORBIDDEN, "the account may not read this");
    }
    if let Some(selection) = front.cluster.select(path, view) {
        if parameter(query, "watch").is_some_and(is_true) {
            return watch(front.clone(), selection, query);
        }
        let list = front.cluster.list(&selection, page(query));
        return json_response(Full::new(list.into()).boxed());
    }
    match resources(path).or_else(|| front.cluster.object(path)) {
        Some(found) => object(StatusCode::OK, &found),
        None => failure(StatusCode::NOT_FOUND, "there is no such object"),
    }
}

/// Returns the page that a request asks for. As of a real API server, a list of any version is
/// complete.
fn page(query: &str) -> Page {
    if parameter(query, "resourceVersion") == Some("0") {
        return Page::ALL;
    }
    Page {
        start: number(query, "continue").unwrap_or(0),
        limit: number(query, "limit")
            .filter(|limit| *limit > 0)
            .unwrap_or(usize::MAX),
    }
}

/// Sends the events of a list until the timeout of the request.
fn watch(front: Arc<Front>, selection: Selection, query: &str) -> Response<Body> {
    let timeout = Duration::from_secs(number(query, "timeoutSeconds").unwrap_or(WATCH_TIMEOUT));
    let streams_list = parameter(query, "sendInitialEvents").is_some_and(is_true);
    let mut after =
        number(query, "resourceVersion").filter(|version| *version > 0 && !streams_list);
    // One event waits for the controller to read it; later ones wait in the cluster.
    let (frames, body) = mpsc::channel(1);
    let mut version = front.cluster.version();
    let events = async move {
        loop {
            let latest = *version.borrow_and_update();
            let mut lines = front.cluster.events(&selection, after);
            if streams_list && after.is_none() {
                lines.extend(front.cluster.initial_events_end(&selection, latest));
            }
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
    json_response(StreamBody::new(ReceiverStream::new(body)).boxed())
}

fn is_true(value: &str) -> bool {
    value == "true" || value == "1"
}

/// Returns a parameter of a query whose values need no decoding.
fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .find(|pair| pair.0 == name)
        .map(|pair| pair.1)
}

fn number<N: FromStr>(query: &str, name: &str) -> Option<N> {
    parameter(query, name)?.parse().ok()
}

fn object(status: StatusCode, value: &Value) -> Response<Body> {
    kube_api::response(status, value).map(BodyExt::boxed)
}

fn failure(status: StatusCode, message: &str) -> Response<Body> {
    kube_api::failure(status, message).map(BodyExt::boxed)
}

fn json_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
