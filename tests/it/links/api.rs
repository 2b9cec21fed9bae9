//! A played API server with the objects of a cluster, which it does not change: lists by namespace,
//! labels and fields, reviews of rights, and port-forwards.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, DATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use mesh_test_support::kube_api::{failure, found, response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::port_forward;

/// A cluster.
#[derive(Default)]
pub(super) struct Api {
    /// By path.
    pub(super) objects: BTreeMap<String, Value>,
    /// The rights that no account has, as `list services`.
    pub(super) denied: Vec<&'static str>,
    /// The only token that is accepted; any is if there is none.
    pub(super) token: Option<&'static str>,
    /// Seconds that its clock is ahead.
    pub(super) clock_ahead: i64,
    /// Where ports of pods are, as `NAMESPACE/POD`.
    pub(super) ports: BTreeMap<(String, u16), SocketAddr>,
}

impl Api {
    pub(super) fn put(&mut self, path: &str, object: Value) {
        self.objects.insert(path.to_owned(), object);
    }

    /// Returns an object, to be changed.
    pub(super) fn edit(&mut self, path: &str) -> &mut Value {
        self.objects.get_mut(path).expect(path)
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.objects.remove(path).expect(path);
    }

    /// Serves at an address until the runtime ends.
    pub(super) fn serve(self, listener: TcpListener) {
        let api = Arc::new(self);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let api = api.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let api = api.clone();
                        async move { Ok::<_, Infallible>(api.respond(request).await) }
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

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = self.answer(request).await;
        let now = Timestamp::now() + SignedDuration::from_secs(self.clock_ahead);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new();
        let date = date.timestamp_to_rfc9110_string(&now).expect("a date");
        let date = HeaderValue::from_str(&date).expect("text");
        response.headers_mut().insert(DATE, date);
        response
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let sent = request.headers().get(AUTHORIZATION);
        let sent = sent.and_then(|it| it.to_str().ok()).unwrap_or_default();
        if self
            .token
            .is_some_and(|token| sent != format!("Bearer {token}"))
        {
            return failure(StatusCode::UNAUTHORIZED, "Unauthorized");
        }
        let path = request.uri().path().to_owned();
        if path.ends_with("/portforward") {
            return port_forward::accept(request, |pod, port| {
                self.ports.get(&(pod.to_owned(), port)).copied()
            });
        }
        if request.method() == Method::POST {
            return self.review(request).await;
        }
        let query = request.uri().query().unwrap_or_default();
        if let Some(object) = self.objects.get(&path) {
            return found(Some(object.clone()));
        }
        if !is_collection(&path) {
            return found(None);
        }
        let selected = self.objects.iter();
        let selected = selected.filter(|(at, object)| {
            is_in(at, &path) && has_labels(object, query) && has_fields(object, query)
        });
        let items: Vec<&Value> = selected.map(|(_, object)| object).collect();
        let list = json!({
            "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items,
        });
        response(StatusCode::OK, &list)
    }

    /// Responds to a review of rights.
    async fn review(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let body = request.into_body().collect().await.expect("a body");
        let mut review: Value = serde_json::from_slice(&body.to_bytes()).expect("an object");
        let of = &review["spec"]["resourceAttributes"];
        let text = |field: &str| of[field].as_str().unwrap_or_default();
        let right = format!("{} {}", text("verb"), text("resource"));
        let allowed = !self.denied.contains(&&*right);
        review["status"] = json!({ "allowed": allowed });
        response(StatusCode::CREATED, &review)
    }
}

/// Returns whether a path lists objects, of a namespace or of all.
fn is_collection(path: &str) -> bool {
    let skipped = if path.starts_with("/apis/") { 4 } else { 3 };
    let parts: Vec<&str> = path.split('/').skip(skipped).collect();
    matches!(parts[..], [_] | ["namespaces", _, _])
}

/// Returns whether the object at a path is in a collection: of a namespace, or of all.
fn is_in(path: &str, collection: &str) -> bool {
    let Some((parent, _name)) = path.rsplit_once('/') else {
        return false;
    };
    if parent == collection {
        return true;
    }
    let Some((root, rest)) = parent.split_once("/namespaces/") else {
        return false;
    };
    rest.split_once('/')
        .is_some_and(|(_namespace, plural)| format!("{root}/{plural}") == collection)
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query
        .split('&')
        .find_map(|it| it.strip_prefix(name)?.strip_prefix('='))?;
    let value = value.replace('+', " ");
    let mut parts = value.split('%');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let code = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        text.push(char::from(code));
        text.push_str(&part[2..]);
    }
    Some(text)
}

/// Evaluates the forms of selectors that `meshctl` sends.
fn has_labels(object: &Value, query: &str) -> bool {
    let selector = parameter(query, "labelSelector").unwrap_or_default();
    let labels = &object["metadata"]["labels"];
    // The values of `in` are divided by commas as well.
    let (selector, mut met) = match selector.split_once(" in (") {
        Some((key, rest)) => {
            let (values, rest) = rest.split_once(')').expect("a list");
            let value = labels[key].as_str();
            let met = value.is_some_and(|it| values.split(',').any(|one| one.trim() == it));
            (rest.trim_start_matches(',').to_owned(), met)
        }
        None => (selector, true),
    };
    for requirement in selector.split(',').filter(|it| !it.is_empty()) {
        met &= match (requirement.strip_prefix('!'), requirement.split_once('=')) {
            (Some(key), _) => labels[key].is_null(),
            (None, Some((key, value))) => labels[key] == value,
            (None, None) => !labels[requirement].is_null(),
        };
    }
    met
}

fn has_fields(object: &Value, query: &str) -> bool {
    let selector = parameter(query, "fieldSelector").unwrap_or_default();
    match selector.split_once('=') {
        Some(("metadata.name", name)) => object["metadata"]["name"] == name,
        Some((field, value)) => object[field] == value,
        None => true,
    }
}
