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
use mesh_runtime::open_connections::Activity;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

use self::memory::{MemoryPool, Refusal, ReviewMemory};
use self::review::ReviewError;
use self::unsent::Unsent;

mod accept;
pub mod certificate;
pub mod managed;
mod memory;
mod metered;
pub mod mounted;
pub mod review;
mod tls;
mod unsent;

pub use self::{
    accept::{HeldBody, accept, handshake},
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
    /// One permit for each request, until its response has been sent.
    requests: Arc<Semaphore>,
    memory: MemoryPool,
}

/// A connection of a client.
#[derive(Clone)]
struct Connection {
    server: WebhookServer,
    activity: Activity,
    /// Notified when a response has not been sent in time.
    overdue: Arc<Notify>,
}

/// Why a request was rejected, with the status of the response.
type Rejected = (StatusCode, String);

/// An object has at most 1.5 MiB in etcd; a review contains up to two of them, and JSON escapes
/// characters.
const MAX_BODY: usize = 10 * 1024 * 1024;

/// The most requests in flight. An API server admits 200 changes at a time, and most reviews take
/// some milliseconds.
const MAX_REQUESTS: usize = 512;

/// The response beyond [`MAX_REQUESTS`].
const TOO_MANY_REQUESTS: &str = "512 requests are in flight; try again later\n";

/// The header section of a request, and with HTTP/1 the empty lines before it. Each segment of
/// empty lines makes hyper search all that it holds, which costs as much as the segment itself with
/// this limit, and much more with the limit of hyper. API servers send a few hundred bytes; the tap
/// API gets the groups of a user besides, with at most as much over HTTP/2.
pub const MAX_HEADERS: usize = 16 * 1024;

/// The streams of a connection, of some KB each. API servers open further connections.
pub const MAX_STREAMS: u32 = 100;

/// The deadline of a response. The API server waits 10 s (`timeoutSeconds` of the chart), and its
/// error would not contain the cause.
const DEADLINE: Duration = Duration::from_secs(8);

/// How long a response may take to be sent. No API server waits for it any longer then.
const SENDING: Duration = Duration::from_secs(8);

/// Each API server opens a few connections.
const MAX_CONNECTIONS: usize = 256;

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
    WebhookServer::new(serving, reviewer, drain)
        .serve(listener)
        .await;
}

impl WebhookServer {
    fn new(
        serving: Arc<ServingCertificate>,
        reviewer: Arc<dyn Reviewer>,
        drain: drain::Watch,
    ) -> Self {
        Self {
            acceptor: Acceptor::new(serving),
            reviewer,
            drain,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            memory: MemoryPool::default(),
        }
    }

    async fn serve(self, listener: TcpListener) {
        let serve = |stream, peer, activity| {
            let connection = Connection {
                server: self.clone(),
                activity,
                overdue: Arc::default(),
            };
            Some(connection.serve(stream, peer))
        };
        tokio::select! {
            () = accept(listener, MAX_CONNECTIONS, SERVER, serve) => {}
            () = self.stopping() => {}
        }
    }

    /// Waits until connections are closed during shutdown.
    async fn stopping(&self) {
        self.drain.draining().await;
        tokio::time::sleep(LINGER).await;
    }
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: SocketAddr) {
        let Some(stream) = handshake(&self.server.acceptor, stream, peer, SERVER).await else {
            return;
        };
        let overdue = self.overdue.clone();
        tokio::select! {
            ended = self.serve_requests(stream) => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "Webhook connection failed");
                }
            }
            () = overdue.notified() => {
                tracing::debug!(%peer, "Closed a webhook connection whose client does not read");
            }
        }
    }

    async fn serve_requests(self, stream: tls::TlsStream) -> hyper::Result<()> {
        let http2 = stream.is_http2();
        let io = TokioIo::new(stream);
        let server = self.server.clone();
        let service = service_fn(move |request| {
            let connection = self.clone();
            async move { connection.respond(request).await }
        });
        if http2 {
            let serving = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(MAX_HEADERS as u32)
                .serve_connection(io, service);
            let mut serving = std::pin::pin!(serving);
            tokio::select! {
                ended = serving.as_mut() => ended,
                () = server.stopping() => {
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
                () = server.stopping() => {
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            }
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let active = self.activity.request();
        let Ok(permit) = self.server.requests.clone().try_acquire_owned() else {
            let body = Bytes::from_static(TOO_MANY_REQUESTS.as_bytes());
            return Ok(reply(StatusCode::SERVICE_UNAVAILABLE, "text/plain", body));
        };
        let memory = self.server.memory.review();
        let (status, content_type, body) = match self.answer(request.into_body(), &memory).await {
            Ok(body) => (StatusCode::OK, "application/json", body),
            Err((status, problem)) => {
                let problem = review::shortened(problem);
                tracing::warn!(
                    status = status.as_u16(),
                    problem,
                    "Rejected invalid webhook request"
                );
                (status, "text/plain", format!("{problem}\n").into_bytes())
            }
        };
        let unsent = Unsent::new(body, (active, permit, memory));
        let body = unsent.into_bytes(SENDING, self.overdue.clone());
        Ok(reply(status, content_type, body))
    }

    /// Returns the body of the response.
    async fn answer(
        &self,
        body: Incoming,
        memory: &Arc<ReviewMemory>,
    ) -> Result<Vec<u8>, Rejected> {
        let deadline = Instant::now() + DEADLINE;
        let read = timeout_at(deadline, read_body(body, memory)).await;
        let late = || {
            let problem = format!("the body was not received within {} s", DEADLINE.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, problem))
        };
        let body = read.unwrap_or_else(|_elapsed| late())?;
        if body.is_empty() {
            // A probe.
            return Ok(Vec::new());
        }
        let response = self.review(body, memory, deadline).await?;
        memory.charge(response.len()).map_err(refused)?;
        Ok(response)
    }

    async fn review(
        &self,
        body: Bytes,
        memory: &Arc<ReviewMemory>,
        deadline: Instant,
    ) -> Result<Vec<u8>, Rejected> {
        let (review, header) =
            review::parse(body, memory.clone()).map_err(|error| match error {
                ReviewError::Memory(refusal) => refused(refusal),
                error => (StatusCode::BAD_REQUEST, chain(&error)),
            })?;
        let reviewer = &self.server.reviewer;
        let reviewed = timeout_at(deadline, reviewer.review(review)).await;
        let late = || Err(format!("no response within {} s", DEADLINE.as_secs()));
        let decision = reviewed
            .unwrap_or_else(|_elapsed| late())
            .unwrap_or_else(|problem| {
                tracing::warn!(problem, "Cannot review object");
                reviewer.failed(problem)
            });
        review::encode_response(&header, &decision).map_err(|error| {
            let problem = format!("cannot encode the response: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, problem)
        })
    }
}

/// Receives a body within the limits.
async fn read_body(mut body: Incoming, memory: &ReviewMemory) -> Result<Bytes, Rejected> {
    let mut received = Vec::new();
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
        if length > received.capacity() {
            let capacity = length.max(2 * received.capacity()).min(MAX_BODY);
            memory
                .charge(capacity - received.capacity())
                .map_err(refused)?;
            received.reserve_exact(capacity - received.len());
        }
        received.extend_from_slice(&data);
    }
    Ok(received.into())
}

fn refused(refusal: Refusal) -> Rejected {
    let status = match refusal {
        Refusal::Review => StatusCode::PAYLOAD_TOO_LARGE,
        Refusal::Pool => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, format!("cannot read the review: {refusal}"))
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
