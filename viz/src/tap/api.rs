//! The responses of the tap API, as an extension API server and as Linkerd's clients expect them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::unfold;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use mesh_api::linkerd2::tap::TapByResourceRequest;
use mesh_api::linkerd2::viz::ApiError;
use mesh_api::tap_events;
use mesh_api::tap_frames::frame;
use mesh_api::tap_request::ERROR_HEADER;
use mesh_core::tap::{AddressTable, TapEvent, TapRequest};
use mesh_objects::inventory::Inventory;
use mesh_objects::inventory::tap::{MeshNames, TappedPod, addresses};
use mesh_objects::model::ListedKind;
use parking_lot::Mutex;
use prost::Message;
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;

use super::front_proxy::FrontProxy;
use super::ignored::IgnoredHeaders;
use super::observe::{WINDOW, observe};
use super::pods::tappable;
use super::request::{TARGET_KINDS, TapQuery, Target, resource};
use crate::metrics_api::parse_selector;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Decides whether a user may do something.
pub(crate) trait AccessReviewer: Send + Sync {
    /// Returns the review with its status, or why there is none.
    fn review(&self, review: SubjectAccessReview) -> ReviewFuture<'_>;
}

pub(crate) type ReviewFuture<'a> =
    Pin<Box<dyn Future<Output = Result<SubjectAccessReview, String>> + Send + 'a>>;

/// Responds to requests.
pub(crate) struct TapApi {
    pub(crate) inventory: Arc<Mutex<Inventory>>,
    pub(crate) access: Box<dyn AccessReviewer>,
    /// `None` until the API server's configuration is known.
    pub(crate) front_proxy: watch::Receiver<Option<Arc<FrontProxy>>>,
    pub(crate) mesh: MeshNames,
    pub(crate) ignored: IgnoredHeaders,
    /// One permit for each tap.
    pub(crate) taps: Arc<Semaphore>,
}

/// The events of one tap.
struct EventStream {
    inventory: Arc<Mutex<Inventory>>,
    ignored: IgnoredHeaders,
    events: mpsc::Receiver<TapEvent>,
    addresses: AddressTable,
    /// When the addresses are looked up again.
    refresh: Instant,
    /// The subscriptions end with the stream.
    _observers: JoinSet<()>,
    _permit: OwnedSemaphorePermit,
}

/// The most taps. Each costs every proxy that it reaches.
pub(crate) const MAX_TAPS: usize = 64;

/// A request has at most 100 conditions.
const MAX_REQUEST: usize = 64 << 10;

/// Events of all pods that the client has not read. Further events wait in the proxies, which drop
/// the excess.
const MAX_QUEUED: usize = 1_000;

const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

const GROUP: &str = "tap.linkerd.io";
const VERSION: &str = "v1alpha1";

impl TapApi {
    /// Responds to a request of a client with a verified certificate, or without one.
    pub(crate) async fn respond<B>(
        &self,
        request: Request<B>,
        leaf: Option<&CertificateDer<'_>>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        if let Some(response) = discovery(&path) {
            return response;
        }
        let target = match (request.method(), Target::from_path(&path)) {
            (&Method::POST, Some((target, true))) => target,
            (&Method::GET, Some((_, false))) => return json_response(StatusCode::OK, &resources()),
            (_, Some(_)) => return json_error(StatusCode::METHOD_NOT_ALLOWED, "expected POST"),
            (_, None) => return json_response(StatusCode::NOT_FOUND, &paths()),
        };
        if let Err((status, problem)) = self.authorize(request.headers(), leaf, &target).await {
            tracing::info!(%target, status = status.as_u16(), problem, "Denied tap");
            return json_error(status, &problem);
        }
        match self.tap(request.into_body(), &path).await {
            Ok(events) => events,
            Err(status) => api_error(&status),
        }
    }

    /// Whether the user of a request may tap the target.
    async fn authorize(
        &self,
        headers: &HeaderMap,
        leaf: Option<&CertificateDer<'_>>,
        target: &Target,
    ) -> Result<(), (StatusCode, String)> {
        let front_proxy = self.front_proxy.borrow().clone();
        let front_proxy = front_proxy.ok_or_else(|| {
            let problem = "the API server's configuration is not known yet";
            (StatusCode::SERVICE_UNAVAILABLE, problem.to_owned())
        })?;
        let untrusted =
            |error: &dyn std::error::Error| (StatusCode::BAD_REQUEST, error.to_string());
        front_proxy
            .check_name(leaf)
            .map_err(|error| untrusted(&error))?;
        let user = front_proxy
            .user(headers)
            .map_err(|error| untrusted(&error))?;
        let reviewed = self.access.review(user.review(target)).await;
        let reviewed = reviewed.map_err(|error| {
            let problem = format!("cannot review the access of {:?}: {error}", user.name);
            (StatusCode::INTERNAL_SERVER_ERROR, problem)
        })?;
        let status = reviewed.status.unwrap_or_default();
        if status.allowed && status.denied != Some(true) {
            return Ok(());
        }
        let reason = status.reason.unwrap_or_default();
        let problem = format!(
            "{:?} may not tap {target}: {reason}; bind the ClusterRole linkerd-linkerd-viz-tap-admin (https://linkerd.io/tap-rbac)",
            user.name
        );
        Err((StatusCode::FORBIDDEN, problem))
    }

    async fn tap<B>(&self, body: B, path: &str) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let body = Limited::new(body, MAX_REQUEST).collect().await;
        let body = body.map_err(|error| {
            Status::invalid_argument(format!("cannot read the request: {error}"))
        })?;
        let request = TapByResourceRequest::decode(body.to_bytes())
            .map_err(|error| Status::invalid_argument(format!("not a tap request: {error}")))?;
        let query = TapQuery::new(&request, path)?;
        let selector = parse_selector(&query.label_selector).map_err(Status::invalid_argument)?;
        let permit = self
            .taps
            .clone()
            .try_acquire_owned()
            .map_err(|_none_left| {
                Status::resource_exhausted(format!("{MAX_TAPS} taps are running"))
            })?;
        let inventory = self.inventory.lock();
        let pods = tappable(&inventory, &query, &selector, &self.mesh)?;
        let addresses = addresses(&inventory);
        drop(inventory);
        let (sender, events) = mpsc::channel(MAX_QUEUED);
        let stream = EventStream {
            inventory: self.inventory.clone(),
            ignored: self.ignored.clone(),
            events,
            addresses,
            refresh: Instant::now() + WINDOW,
            _observers: start_observers(pods, &query, &sender),
            _permit: permit,
        };
        let frames = unfold(stream, async |mut stream| {
            let frame = Frame::data(stream.next().await?);
            Some((Ok(frame), stream))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, OCTETS);
        Ok(response)
    }
}

fn start_observers(
    pods: Vec<TappedPod>,
    query: &TapQuery,
    events: &mpsc::Sender<TapEvent>,
) -> JoinSet<()> {
    let request = TapRequest {
        limit: query.rps_per_pod(pods.len()),
        filter: query.filter.clone(),
        with_headers: query.with_headers,
    };
    let mut observers = JoinSet::new();
    for pod in pods {
        observers.spawn(observe(pod, request.clone(), events.clone()));
    }
    observers
}

impl EventStream {
    /// Returns the next event as a message; `None` when all pods have gone.
    async fn next(&mut self) -> Option<Bytes> {
        let event = self.events.recv().await?;
        if Instant::now() >= self.refresh {
            self.addresses = addresses(&self.inventory.lock());
            self.refresh = Instant::now() + WINDOW;
        }
        let event = event.described(&self.addresses);
        let message = tap_events::message(&event, |header| !self.ignored.contains(header));
        Some(frame(&message))
    }
}

/// An error of a tap has the status of success, and is recognised by its header.
fn api_error(status: &Status) -> Response<Body> {
    let error = ApiError {
        error: status.message().to_owned(),
    };
    let mut response = Response::new(full(frame(&error)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, OCTETS);
    headers.insert(
        ERROR_HEADER,
        HeaderValue::from_static("Internal Server Error"),
    );
    response
}

fn json_error(status: StatusCode, problem: &str) -> Response<Body> {
    json_response(status, &json!({ "error": problem }))
}

fn json_response(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// Responds to the discovery requests of API servers and `kubectl`.
fn discovery(path: &str) -> Option<Response<Body>> {
    let group_version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
    let group = json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": [group_version],
        "preferredVersion": group_version,
    });
    let value = match path {
        "/" => paths(),
        "/apis" => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}),
        "/apis/tap.linkerd.io" => group,
        "/apis/tap.linkerd.io/v1alpha1" => resources(),
        "/version" => json!({"major": "0", "minor": "0", "gitVersion": env!("CARGO_PKG_VERSION")}),
        "/openapi/v2" => json!({
            "swagger": "2.0",
            "info": {"title": "Api", "version": "v0"},
            "paths": {},
        }),
        "/healthz" | "/healthz/ping" | "/healthz/log" => {
            return Some(Response::new(full("ok")));
        }
        _ => return None,
    };
    Some(json_response(StatusCode::OK, &value))
}

fn paths() -> serde_json::Value {
    json!({"paths": [
        "/apis",
        "/apis/tap.linkerd.io",
        "/apis/tap.linkerd.io/v1alpha1",
        "/healthz",
        "/healthz/log",
        "/healthz/ping",
        "/openapi/v2",
        "/version",
    ]})
}

fn resources() -> serde_json::Value {
    let kinds = TARGET_KINDS.into_iter().flat_map(|kind| {
        let name = resource(kind);
        [name.clone(), format!("{name}/tap")].map(|name| {
            json!({
                "name": name,
                "singularName": "",
                "namespaced": kind != ListedKind::Namespace,
                "kind": "Tap",
                "verbs": ["watch"],
            })
        })
    });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": kinds.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests;
