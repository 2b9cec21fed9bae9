//! Sends requests to one backend, and retries them on another endpoint when the first has certainly
//! not processed them.
//!
//! Retries without a retry policy (docs/adr/0030): a request for which no connection could be made,
//! always; a request that the peer declares unprocessed, if it has no body; a request whose
//! connection failed before any response, once, if it is idempotent and has no body.

use std::rc::Rc;
use std::sync::Arc;

use mesh_core::policy::outbound::{Backend as PolicyBackend, BackendTarget, RouteBackend};
use mesh_core::route::filter::Filter;
use tokio::time::Instant;

use super::endpoint::{EndpointResponse, HttpEndpoint};
use super::observe::RequestObserver;
use crate::balance::{BalanceQueue, BalanceSettings, PickedEndpoint, QueueError};
use crate::context::ProxyContext;
use crate::error::{DialError, Error, Kind, chain};
use crate::http::client::{MAX_DEAD_CONNECTIONS, SendError};
use crate::http::delivery_failure::DeliveryFailure;
use crate::http::{Request, Response, filter, upgrade};
use crate::telemetry::http::{Exchange, ExchangeMetrics, StreamError};
use crate::telemetry::{RouteMetrics, labels};

/// A backend, shared by all rules of a target that refer to it.
pub(super) struct Backend {
    source: PolicyBackend,
    dispatch: Dispatch,
}

/// How requests to a backend are dispatched.
enum Dispatch {
    Balance(Box<BalanceQueue<HttpEndpoint>>),
    Forward(Box<HttpEndpoint>),
    Fail,
}

/// A backend with the filters and metrics of one rule.
pub(super) struct RuleBackend {
    backend: Rc<Backend>,
    source: Arc<RouteBackend>,
    metrics: Option<Rc<RouteMetrics>>,
}

/// A response and the state that is needed until its body ends.
pub(super) struct BackendResponse {
    pub(super) response: Response,
    pub(super) backend: Rc<RuleBackend>,
    pub(super) attempt: Exchange,
    pub(super) picked: Option<PickedEndpoint<HttpEndpoint>>,
}

/// The result of one attempt at one endpoint.
enum AttemptOutcome {
    Response {
        response: Response,
        attempt: Exchange,
    },
    /// No connection can be made. The request is unchanged.
    Unreachable(DialError),
    /// The peer's proxy cannot reach the application. The request can be retried, or the response
    /// be returned.
    Undelivered {
        response: Response,
        attempt: Exchange,
    },
    /// The connection failed during the request, which may be retried.
    Lost {
        /// Whether the endpoint may have received the request.
        was_sent: bool,
    },
    Failed(Error),
}

/// The failed attempts of a request. Bounds its retries.
#[derive(Default)]
struct AttemptHistory {
    dead_connections: usize,
    is_retried: bool,
}

impl AttemptHistory {
    /// Returns whether a request without a body that the peer's proxy could not deliver may be sent
    /// to another endpoint. Allows one retry of a request that may have been processed.
    fn allow_other_endpoint(&mut self, request: &Request, how: DeliveryFailure) -> bool {
        match how {
            DeliveryFailure::NotSent => true,
            DeliveryFailure::Indeterminate => request.method().is_idempotent() && self.take_retry(),
        }
    }

    /// Returns whether a request without a body may be retried after its connection failed, which
    /// is allowed once.
    fn allow_retry(&mut self, request: &Request, error: &SendError) -> bool {
        let is_repeatable = error.reset().is_none() && request.method().is_idempotent();
        (error.is_unprocessed() || is_repeatable) && self.take_retry()
    }

    fn take_retry(&mut self) -> bool {
        !std::mem::replace(&mut self.is_retried, true)
    }
}

impl Backend {
    pub(super) fn new(
        context: &Rc<ProxyContext>,
        parent: &mesh_core::meta::Meta,
        source: &PolicyBackend,
    ) -> Self {
        let dispatch = match &source.target {
            BackendTarget::None => Dispatch::Fail,
            BackendTarget::Forward(endpoint) => {
                let endpoint = Arc::new((**endpoint).clone());
                Dispatch::Forward(Box::new(HttpEndpoint::new(context, &endpoint, None)))
            }
            BackendTarget::Balance { authority, load } => {
                let outbound = &context.config.outbound;
                let settings = BalanceSettings {
                    queue_capacity: outbound.http_queue.capacity,
                    failfast: outbound.http_queue.failfast,
                    backoff: outbound.connect_backoff,
                };
                let labels = labels::balancer(parent, &source.meta);
                let metrics = context.families.http_balancer.balancer(&labels);
                let name = authority_label(authority).to_owned();
                let new_endpoint = {
                    let context = context.clone();
                    move |endpoint: &Arc<_>| HttpEndpoint::new(&context, endpoint, Some(&name))
                };
                let sets = context.discovery.endpoints(authority);
                Dispatch::Balance(Box::new(BalanceQueue::new(
                    sets,
                    *load,
                    &settings,
                    metrics,
                    new_endpoint,
                )))
            }
        };
        Self {
            source: source.clone(),
            dispatch,
        }
    }

    pub(super) fn is_compiled_from(&self, source: &PolicyBackend) -> bool {
        self.source == *source
    }

    fn is_available(&self) -> bool {
        match &self.dispatch {
            Dispatch::Balance(queue) => queue.is_available(),
            Dispatch::Forward(_) | Dispatch::Fail => true,
        }
    }
}

/// Returns the `authority` label, in which Linkerd omits port 80.
fn authority_label(authority: &str) -> &str {
    authority.strip_suffix(":80").unwrap_or(authority)
}

impl RuleBackend {
    pub(super) fn new(
        backend: Rc<Backend>,
        source: Arc<RouteBackend>,
        metrics: Option<Rc<RouteMetrics>>,
    ) -> Self {
        Self {
            backend,
            source,
            metrics,
        }
    }

    pub(super) fn filters(&self) -> &[Filter] {
        &self.source.filters
    }

    pub(super) fn is_available(&self) -> bool {
        self.backend.is_available()
    }

    /// Sends a request to an endpoint of the backend. `required` is the identity that the
    /// application requires of the endpoint.
    pub(super) async fn send(
        self: &Rc<Self>,
        request: &mut Request,
        prefix: Option<usize>,
        required: Option<&http::HeaderValue>,
    ) -> Result<BackendResponse, Error> {
        filter::apply(self.filters(), request, prefix)?;
        let sent = match &self.backend.dispatch {
            Dispatch::Balance(queue) => self.balance(queue, request, required).await,
            Dispatch::Forward(endpoint) => return self.forward(endpoint, request, required).await,
            Dispatch::Fail => Err(Error::new(Kind::NoDispatcher, "has no dispatcher")),
        };
        sent.map_err(|error| error.within(format_args!("backend {}", self.source.backend.meta)))
    }

    async fn balance(
        self: &Rc<Self>,
        queue: &BalanceQueue<HttpEndpoint>,
        request: &mut Request,
        required: Option<&http::HeaderValue>,
    ) -> Result<BackendResponse, Error> {
        let mut started = Instant::now();
        let mut history = AttemptHistory::default();
        let mut avoid = None;
        loop {
            let picked = queue
                .acquire_other(started, avoid)
                .await
                .map_err(queue_error)?;
            picked.value.check_identity(required)?;
            avoid = Some(picked.endpoint.addr);
            match self
                .attempt(&picked.value, Some(&picked), request, &mut history)
                .await
            {
                AttemptOutcome::Response { response, attempt } => {
                    queue.mark_reached(&picked);
                    return Ok(self.response(response, attempt, Some(picked)));
                }
                AttemptOutcome::Undelivered { response, attempt } => {
                    queue.mark_failed(&picked);
                    if !queue.has_available() {
                        return Ok(self.response(response, attempt, Some(picked)));
                    }
                }
                AttemptOutcome::Unreachable(error) => {
                    queue.mark_failed(&picked);
                    tracing::info!(addr = %picked.endpoint.addr, error = %chain(&error), "Failed to connect");
                }
                AttemptOutcome::Lost { was_sent } => {
                    if was_sent {
                        queue.mark_failed(&picked);
                        // The fail-fast timeout restarts: detecting that a pod has vanished takes
                        // seconds, which were not spent waiting for an endpoint. This happens once
                        // per request, so the wait stays bounded.
                        started = Instant::now();
                    }
                }
                AttemptOutcome::Failed(error) => return Err(error),
            }
        }
    }

    async fn forward(
        self: &Rc<Self>,
        endpoint: &HttpEndpoint,
        request: &mut Request,
        required: Option<&http::HeaderValue>,
    ) -> Result<BackendResponse, Error> {
        endpoint.check_identity(required)?;
        let mut history = AttemptHistory::default();
        loop {
            match self.attempt(endpoint, None, request, &mut history).await {
                AttemptOutcome::Response { response, attempt }
                | AttemptOutcome::Undelivered { response, attempt } => {
                    return Ok(self.response(response, attempt, None));
                }
                AttemptOutcome::Lost { .. } => {}
                AttemptOutcome::Unreachable(error) => {
                    let kind = if error.is_timeout() {
                        Kind::ConnectTimeout
                    } else {
                        Kind::Io
                    };
                    let error = Error::new(kind, chain(&error));
                    return Err(error.within(format_args!("endpoint {}", endpoint.addr())));
                }
                AttemptOutcome::Failed(error) => return Err(error),
            }
        }
    }

    fn response(
        self: &Rc<Self>,
        response: Response,
        attempt: Exchange,
        picked: Option<PickedEndpoint<HttpEndpoint>>,
    ) -> BackendResponse {
        BackendResponse {
            response,
            backend: self.clone(),
            attempt,
            picked,
        }
    }

    /// Sends the request to one endpoint. Unless the outcome is a response, the request can be sent
    /// to another endpoint: only hop-by-hop headers of the client's connection have been removed.
    async fn attempt(
        &self,
        endpoint: &HttpEndpoint,
        picked: Option<&PickedEndpoint<HttpEndpoint>>,
        request: &mut Request,
        history: &mut AttemptHistory,
    ) -> AttemptOutcome {
        let is_retryable = request.body().is_empty() && !upgrade::is_requested(request);
        let rewrite = endpoint.rewrite(request);
        let connection = match endpoint.connect(request).await {
            Ok(connection) => connection,
            Err(error) => {
                rewrite.undo(request);
                return AttemptOutcome::Unreachable(error);
            }
        };
        if let Some(picked) = picked {
            picked.record_send();
        }
        let mut attempt = self.start(endpoint, request);
        let observer = RequestObserver::new(attempt.request_body(), None);
        observer.attach(request.body_mut());
        let received = endpoint.send(connection, request, &rewrite).await;
        if !matches!(received, Ok(EndpointResponse::Response(_))) {
            rewrite.undo(request);
        }
        match received {
            Ok(EndpointResponse::Response(response)) => {
                attempt.response_headers(response.status(), response.headers());
                AttemptOutcome::Response { response, attempt }
            }
            Ok(EndpointResponse::Undelivered(response, how)) => {
                attempt.response_headers(response.status(), response.headers());
                if is_retryable && history.allow_other_endpoint(request, how) {
                    AttemptOutcome::Undelivered { response, attempt }
                } else {
                    AttemptOutcome::Response { response, attempt }
                }
            }
            Err(SendError::Dial(error)) => {
                attempt.failed(StreamError::GoAway);
                history.dead_connections += 1;
                if history.dead_connections > MAX_DEAD_CONNECTIONS {
                    AttemptOutcome::Unreachable(error)
                } else {
                    AttemptOutcome::Lost { was_sent: false }
                }
            }
            Err(error) => {
                attempt.failed(StreamError::from(&error));
                let is_unprocessed = error.is_unprocessed();
                if is_retryable && history.allow_retry(request, &error) {
                    AttemptOutcome::Lost {
                        was_sent: !is_unprocessed,
                    }
                } else {
                    let kind = error.reset().map_or(Kind::Io, Kind::Reset);
                    AttemptOutcome::Failed(Error::new(kind, chain(&error)))
                }
            }
        }
    }

    fn start(&self, endpoint: &HttpEndpoint, request: &Request) -> Exchange {
        let observers = ExchangeMetrics {
            endpoint: Some(endpoint.metrics.clone()),
            route: None,
            backend: self.metrics.clone(),
        };
        Exchange::start(observers, request.headers(), !request.body().is_empty())
    }
}

fn queue_error(error: QueueError) -> Error {
    match error {
        QueueError::FailFast => Error::new(Kind::FailFast, "service in fail-fast"),
        QueueError::LoadShed => Error::new(Kind::LoadShed, "service unavailable"),
    }
}
