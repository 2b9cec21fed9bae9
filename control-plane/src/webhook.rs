//! Admission webhooks: an HTTPS server that hands the API server's reviews to a function, and the
//! certificate it serves with.
//!
//! Every review is answered with a review. What goes wrong here must not decide about an object:
//! the webhook's `failurePolicy` does (docs/adr/0080). What is not a review gets an HTTP error.

use std::{
    convert::Infallible, future::Future, net::SocketAddr, pin::Pin, sync::Arc, time::Duration,
};

use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mesh_runtime::drain;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

pub(crate) mod certificate;
pub(crate) mod managed;
pub(crate) mod mounted;
pub(crate) mod review;
mod tls;

pub(crate) use self::{
    review::{Review, Verdict},
    tls::Serving,
};

/// Decides about objects.
pub(crate) trait Reviewer: Send + Sync {
    /// An error is a fault of ours, in a sentence.
    fn review(&self, review: Review) -> Answer<'_>;

    /// What becomes of an object that could not be reviewed, as the webhook's `failurePolicy` says.
    fn failed(&self, problem: String) -> Verdict;
}

pub(crate) type Answer<'a> = Pin<Box<dyn Future<Output = Result<Verdict, String>> + Send + 'a>>;

/// What a connection needs.
#[derive(Clone)]
struct Endpoint {
    acceptor: tls::Acceptor,
    reviewer: Arc<dyn Reviewer>,
    drain: drain::Watch,
}

/// An object is at most 1.5 MiB in etcd; a review holds up to two of them and their text grows in
/// JSON.
const MAX_BODY: usize = 10 * 1024 * 1024;

/// The whole answer: the API server waits 10 s by the chart's `timeoutSeconds` and then takes it
/// for a failure, without a word of what was wrong.
const DEADLINE: Duration = Duration::from_secs(8);

/// A client that takes longer is none.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// API servers open a handful of connections each.
const MAX_CONNECTIONS: usize = 1024;

/// How long new connections are still taken when the process is to end: so long may kube-proxy send
/// the API server here.
const LINGER: Duration = Duration::from_secs(5);

/// How long to leave the listener alone when it has failed, most likely because there are no file
/// descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until the process is told to stop, and a little longer.
pub(crate) async fn serve(
    listener: TcpListener,
    serving: Arc<Serving>,
    reviewer: Arc<dyn Reviewer>,
    drain: drain::Watch,
) {
    let endpoint = Endpoint {
        acceptor: tls::Acceptor::new(serving),
        reviewer,
        drain: drain.clone(),
    };
    // Counts connections; what waits for a permit waits in the kernel's queue.
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accept = async {
        loop {
            let Ok(slot) = slots.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let endpoint = endpoint.clone();
                    tokio::spawn(async move {
                        endpoint.connection(stream, peer).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "The webhook's server failed to accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    let stop = async {
        drain.draining().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        () = accept => {}
        () = stop => {}
    }
}

impl Endpoint {
    async fn connection(self, stream: TcpStream, peer: SocketAddr) {
        let accepted = timeout(HANDSHAKE_TIMEOUT, self.acceptor.accept(stream)).await;
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                // The API server does not trust the certificate: the first thing to know when no
                // pod is injected.
                tracing::warn!(%peer, %error, "A TLS handshake with the webhook's server failed");
                return;
            }
            Err(_elapsed) => {
                tracing::debug!(%peer, "A TLS handshake with the webhook's server was not finished in time");
                return;
            }
        };
        let http2 = stream.is_http2();
        let io = TokioIo::new(stream);
        let endpoint = self.clone();
        let service = service_fn(move |request| {
            let endpoint = endpoint.clone();
            async move { endpoint.respond(request).await }
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
            tracing::debug!(%peer, %error, "A connection to the webhook's server failed");
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let deadline = Instant::now() + DEADLINE;
        let read = timeout_at(deadline, read_body(request.into_body())).await;
        let late = || {
            let problem = format!("the body did not arrive within {} s", DEADLINE.as_secs());
            Err((StatusCode::REQUEST_TIMEOUT, problem))
        };
        let answered = match read.unwrap_or_else(|_elapsed| late()) {
            // A probe, not a review.
            Ok(body) if body.is_empty() => Ok(body),
            Ok(body) => self.review(&body, deadline).await,
            Err(refused) => Err(refused),
        };
        Ok(match answered {
            Ok(body) => reply(StatusCode::OK, "application/json", body),
            Err((status, problem)) => {
                tracing::warn!(
                    status = status.as_u16(),
                    problem,
                    "A request to the webhook was not a review"
                );
                reply(status, "text/plain", format!("{problem}\n").into())
            }
        })
    }

    async fn review(&self, body: &Bytes, deadline: Instant) -> Result<Bytes, (StatusCode, String)> {
        let (review, head) =
            review::read(body).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        let reviewed = timeout_at(deadline, self.reviewer.review(review)).await;
        let late = || Err(format!("no answer within {} s", DEADLINE.as_secs()));
        let verdict = reviewed
            .unwrap_or_else(|_elapsed| late())
            .unwrap_or_else(|problem| {
                tracing::warn!(problem, "Could not review an object");
                self.reviewer.failed(problem)
            });
        let unwritten = |error| {
            let problem = format!("cannot write the answer: {error}");
            (StatusCode::INTERNAL_SERVER_ERROR, problem)
        };
        review::answer(&head, &verdict)
            .map(Bytes::from)
            .map_err(unwritten)
    }
}

async fn read_body(body: Incoming) -> Result<Bytes, (StatusCode, String)> {
    let collected = Limited::new(body, MAX_BODY).collect().await;
    let collected = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let problem = format!("the review is larger than {} MiB", MAX_BODY >> 20);
            (StatusCode::PAYLOAD_TOO_LARGE, problem)
        } else {
            let problem = format!("the body ended early: {error}");
            (StatusCode::BAD_REQUEST, problem)
        }
    })?;
    Ok(collected.to_bytes())
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
