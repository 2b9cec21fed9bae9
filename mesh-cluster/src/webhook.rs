//! Admission webhooks: an HTTPS server that passes reviews of the API server to a [`Reviewer`], and
//! its certificate.
//!
//! The response to every review is a review. After an internal error the webhook's `failurePolicy`
//! decides about the object (docs/adr/0080). The response to an invalid review is an HTTP error.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mesh_runtime::drain;
use mesh_runtime::log::chain;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

mod accept;
pub mod certificate;
pub mod managed;
pub mod mounted;
pub mod review;
mod tls;

pub use self::{
    accept::{accept, handshake},
    review::{AdmissionDecision, AdmissionRequest},
    tls::{Acceptor, ServingCertificate},
};

/// Reviews objects.
pub trait Reviewer: Send + Sync {
    /// Returns the decision about an object, or the description of an internal error.
    fn review(&self, review: AdmissionRequest) -> ReviewFuture<'_>;

    /// Returns the decision of the webhook's `failurePolicy` about an object that could not be
    /// reviewed.
    fn failed(&self, problem: String) -> AdmissionDecision;
}

pub type ReviewFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AdmissionDecision, String>> + Send + 'a>>;

/// The state that all connections share.
#[derive(Clone)]
struct WebhookServer {
    acceptor: Acceptor,
    reviewer: Arc<dyn Reviewer>,
    drain: drain::Watch,
    /// One permit for each request.
    requests: Arc<Semaphore>,
    /// One permit for each byte of a body beyond [`SMALL_BODY`].
    large_bodies: Arc<Semaphore>,
}

/// A received body, which counts against the limits until it is dropped.
struct ReceivedBody {
    bytes: Bytes,
    _large: Option<OwnedSemaphorePermit>,
}

/// Why a request was rejected, with the status of the response.
type Rejected = (StatusCode, String);

/// An object has at most 1.5 MiB in etcd; a review contains up to two of them, and JSON escapes
/// characters.
const MAX_BODY: usize = 10 * 1024 * 1024;

/// The most requests in flight, with a body of up to [`SMALL_BODY`] each. Most reviews of pods have
/// 10 KiB.
const MAX_REQUESTS: usize = 1024;

const SMALL_BODY: usize = 64 * 1024;

/// The header section of a request over HTTP/1, with the empty lines before it. Hyper would hold
/// six times as much, and search it again with each segment that arrives. API servers send a few
/// hundred bytes.
pub const MAX_HEADERS: usize = 64 * 1024;

/// The bytes of all bodies in flight beyond [`SMALL_BODY`] each: clients that are not the API
/// server can fill it, and then only large reviews fail.
const MAX_LARGE_BODIES: usize = 64 * 1024 * 1024;

/// The deadline of a response. The API server waits 10 s (`timeoutSeconds` of the chart), and its
/// error would not contain the cause.
const DEADLINE: Duration = Duration::from_secs(8);

/// Each API server opens a few connections.
const MAX_CONNECTIONS: usize = 1024;

/// How long new connections are accepted during shutdown, until kube-proxy no longer forwards them
/// here.
const LINGER: Duration = Duration::from_secs(5);

/// The name in logs.
const SERVER: &str = "webhook";

/// Serves until shortly after shutdown starts.
pub async fn serve(
    listener: TcpListener,
    serving: Arc<ServingCertificate>,
    reviewer: Arc<dyn Reviewer>,
    drain: drain::Watch,
) {
    let server = WebhookServer {
        acceptor: Acceptor::new(serving),
        reviewer,
        drain: drain.clone(),
        requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
        large_bodies: Arc::new(Semaphore::new(MAX_LARGE_BODIES)),
    };
    let serve = |stream, peer| Some(server.clone().connection(stream, peer));
    let stop = async {
        drain.draining().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        () = accept(listener, MAX_CONNECTIONS, SERVER, serve) => {}
        () = stop => {}
    }
}

impl WebhookServer {
    async fn connection(self, stream: TcpStream, peer: SocketAddr) {
        let Some(stream) = handshake(&self.acceptor, stream, peer, SERVER).await else {
            return;
        };
        let http2 = stream.is_http2();
        let io = TokioIo::new(stream);
        let server = self.clone();
        let service = service_fn(move |request| {
            let server = server.clone();
            async move { server.respond(request).await }
        });
        let stop = async {
            self.drain.draining().await;
            tokio::time::sleep(LINGER).await;
        };
        let ended = if http2 {
            let serving = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .serve_connection(io, service);
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                ended = serving.as_mut() => ended,
                () = stop => {
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            }
        } else {
            let serving = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(DEADLINE)
                .max_buf_size(MAX_HEADERS)
                .serve_connection(io, service);
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                ended = serving.as_mut() => ended,
                () = stop => {
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%peer, %error, "Webhook connection failed");
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let Ok(_in_flight) = self.requests.try_acquire() else {
            let problem = format!("{MAX_REQUESTS} requests are in flight\n");
            return Ok(reply(
                StatusCode::SERVICE_UNAVAILABLE,
                "text/plain",
                problem.into(),
            ));
        };
        let deadline = Instant::now() + DEADLINE;
        let read = timeout_at(deadline, self.read_body(request.into_body())).await;
        let late = || {
            let problem = format!("the body was not received within {} s", DEADLINE.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, problem))
        };
        let answered = match read.unwrap_or_else(|_elapsed| late()) {
            // A probe.
            Ok(body) if body.bytes.is_empty() => Ok(body.bytes),
            Ok(body) => self.review(&body.bytes, deadline).await,
            Err(refused) => Err(refused),
        };
        Ok(match answered {
            Ok(body) => reply(StatusCode::OK, "application/json", body),
            Err((status, problem)) => {
                tracing::warn!(
                    status = status.as_u16(),
                    problem,
                    "Rejected invalid webhook request"
                );
                reply(status, "text/plain", format!("{problem}\n").into())
            }
        })
    }

    /// Receives a body within the limits.
    async fn read_body(&self, mut body: Incoming) -> Result<ReceivedBody, Rejected> {
        let mut received = Vec::new();
        let mut large: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let problem = format!("the body ended early: {error}");
                (StatusCode::BAD_REQUEST, problem)
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = received.len() + data.len();
            if length > MAX_BODY {
                let problem = format!("the review is larger than {} MiB", MAX_BODY >> 20);
                return Err((StatusCode::PAYLOAD_TOO_LARGE, problem));
            }
            // At most 10 MiB.
            let beyond = length.saturating_sub(SMALL_BODY.max(received.len())) as u32;
            let permit = self.large_bodies.clone().try_acquire_many_owned(beyond);
            let permit = permit.map_err(|_none_left| {
                let limit = MAX_LARGE_BODIES >> 20;
                let problem = format!("the reviews in flight take more than {limit} MiB");
                (StatusCode::SERVICE_UNAVAILABLE, problem)
            })?;
            match &mut large {
                Some(large) => large.merge(permit),
                None => large = Some(permit),
            }
            received.extend_from_slice(&data);
        }
        Ok(ReceivedBody {
            bytes: received.into(),
            _large: large,
        })
    }

    async fn review(&self, body: &Bytes, deadline: Instant) -> Result<Bytes, Rejected> {
        let (review, header) =
            review::parse(body).map_err(|error| (StatusCode::BAD_REQUEST, chain(&error)))?;
        let reviewed = timeout_at(deadline, self.reviewer.review(review)).await;
        let late = || Err(format!("no response within {} s", DEADLINE.as_secs()));
        let decision = reviewed
            .unwrap_or_else(|_elapsed| late())
            .unwrap_or_else(|problem| {
                tracing::warn!(problem, "Cannot review object");
                self.reviewer.failed(problem)
            });
        let unwritten = |error| {
            let problem = format!("cannot encode the response: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, problem)
        };
        review::encode_response(&header, &decision)
            .map(Bytes::from)
            .map_err(unwritten)
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let content_type = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests;
