//! Sends requests to one backend: each attempt at an endpoint, and its retries as
//! [`retry::decide`] allows.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt as _;
use http::HeaderValue;
use http_body_util::BodyExt as _;
use mesh_core::endpoint::AddressFamily;
use mesh_core::policy::outbound::{Backend as PolicyBackend, BackendTarget, RouteBackend};
use mesh_core::resilience::FailureAccrual;
use mesh_core::route::filter::Filter;
use tokio::time::Instant;

use super::endpoint::HttpEndpoint;
use super::observe::RequestObserver;
use super::outcome::{self, Unanswered};
use super::{record_error, record_reply};
use crate::balance::{BalanceQueue, BalanceSettings, CircuitBreaking, PickedEndpoint, QueueError};
use crate::context::ProxyContext;
use crate::error::{Error, Kind};
use crate::filter::{self, FilterState};
use crate::http::body::{BodyEnd, ExchangeTimeouts};
use crate::http::client::SendError;
use crate::http::{Request, Response};
use crate::local_reply::LocalReply;
use crate::random;
use crate::retry::{self, Action, Answer, AttemptLimit, Failure, History, Replay};
use crate::telemetry::http::{Exchange, ExchangeMetrics, StreamError};
use crate::telemetry::labels;
use crate::trace::{self, OpenSpan};

/// A backend with the filters and metrics of one rule.
pub(super) struct RuleBackend {
    backend: Rc<Backend>,
    source: Arc<RouteBackend>,
    /// The labels of an attempt, besides the endpoint's.
    metrics: ExchangeMetrics,
}

/// What the delivery of a request depends on besides the request. Its attempts only read it.
pub(super) struct Delivery {
    /// The application's connection.
    pub(super) client: SocketAddr,
    /// The state of the rule's filters.
    pub(super) filters: FilterState,
    /// The identity that the application requires of the endpoint.
    pub(super) required_id: Option<HeaderValue>,
    /// Whether the request may have a sampled trace context. False saves a look at its headers.
    pub(super) is_traced: bool,
    /// The time limits of the exchange.
    timeouts: Option<ExchangeTimeouts>,
}

/// What the next attempt of a request has to know of those before. Nothing else is passed on.
#[derive(Default)]
pub(super) struct EarlierAttempts {
    /// What bounds the retries that need no policy.
    history: History,
    /// The endpoint of the last attempt.
    avoid: Option<SocketAddr>,
}

/// What a request that was sent has received.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would cost every response an allocation"
)]
pub(super) enum Sent {
    Response(BackendResponse),
    /// A filter of the rule or the backend has replied, and nothing was sent.
    Reply(Box<LocalReply>),
}

/// A response and the state that is needed until its body ends.
pub(super) struct BackendResponse {
    pub(super) response: Response,
    pub(super) backend: Rc<RuleBackend>,
    pub(super) attempt: Exchange,
    pub(super) picked: Option<PickedEndpoint<HttpEndpoint>>,
}

/// A backend, shared by all rules of a target that refer to it.
pub(super) struct Backend {
    source: PolicyBackend,
    accrual: Option<FailureAccrual>,
    dispatch: Dispatch,
}

/// How requests to a backend are dispatched.
enum Dispatch {
    Balance(Box<BalanceQueue<HttpEndpoint>>),
    Forward(Box<HttpEndpoint>),
    Fail,
}

/// The result of one attempt at one endpoint.
struct Attempt {
    /// `None` if the application has responded.
    failure: Option<Failure>,
    /// The response, of the application or of the peer's proxy.
    result: Result<Answered, Error>,
}

type Answered = (Response, Exchange);

/// Most of a response that is read in order to keep its connection, if it is not forwarded.
const MAX_DISCARDED: usize = 64 * 1024;

impl Delivery {
    pub(super) fn new(
        client: SocketAddr,
        prefix: Option<usize>,
        required_id: Option<HeaderValue>,
        timeouts: Option<ExchangeTimeouts>,
    ) -> Self {
        Self {
            client,
            filters: FilterState::new(prefix),
            required_id,
            is_traced: true,
            timeouts,
        }
    }
}

impl Answer for Sent {
    fn response(&mut self) -> Option<&mut Response> {
        match self {
            Self::Response(sent) => Some(&mut sent.response),
            Self::Reply(_) => None,
        }
    }

    fn discard(self) {
        if let Self::Response(sent) = self {
            sent.discard();
        }
    }
}

impl BackendResponse {
    /// Reads the part that has arrived, so that the connection is reused or the stream needs no
    /// reset; nothing waits for the rest.
    fn discard(self) {
        let Self {
            response,
            mut attempt,
            picked,
            ..
        } = self;
        let mut body = response.into_body();
        let mut read = 0;
        let mut trailers = None;
        while read <= MAX_DISCARDED
            && let Some(Some(Ok(frame))) = body.frame().now_or_never()
        {
            match frame.into_data() {
                Ok(data) => {
                    attempt.response_frame(data.len());
                    read += data.len();
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        if let Some(picked) = &picked {
            outcome::record_end(picked, BodyEnd::Complete(trailers.as_ref()));
        }
        attempt.response_end(trailers.as_ref());
    }
}

impl RuleBackend {
    pub(super) fn new(
        backend: Rc<Backend>,
        source: Arc<RouteBackend>,
        metrics: ExchangeMetrics,
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

    /// Whether a request may try it although it is not available.
    pub(super) fn is_trial_due(&self) -> bool {
        match &self.backend.dispatch {
            Dispatch::Balance(queue) => queue.is_trial_due(),
            Dispatch::Forward(_) | Dispatch::Fail => false,
        }
    }

    /// Sends a request to an endpoint of the backend, each attempt at one within `limit`. The
    /// request comes from the rule; the filters of the backend change it.
    pub(super) async fn send(
        self: &Rc<Self>,
        request: &mut Request,
        delivery: &Delivery,
        earlier: &mut EarlierAttempts,
        limit: Option<&AttemptLimit>,
    ) -> Result<Sent, Error> {
        let mut filters = delivery.filters.for_attempt();
        let applied = filter::apply(self.filters(), request, &mut filters, random::random);
        if let Some(delay) = filters.take_delay() {
            delay.await;
        }
        // A request that ends here has no attempt, which would count it.
        match applied {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(reply)) => {
                record_reply(&mut self.unsent(request), &reply);
                return Ok(Sent::Reply(reply));
            }
            Err(error) => {
                record_error(&mut self.unsent(request), &error.kind);
                return Err(error);
            }
        }
        let sent = match &self.backend.dispatch {
            Dispatch::Balance(queue) => {
                let sent = self.balance(queue, request, delivery, earlier, limit).await;
                sent.map_err(|error| self.name(error))?
            }
            Dispatch::Forward(endpoint) => {
                let sent = self.forward(endpoint, request, delivery, earlier, limit);
                (sent.await?, None)
            }
            Dispatch::Fail => {
                let error = Error::new(Kind::NoDispatcher, "has no dispatcher");
                return Err(self.name(error));
            }
        };
        let ((response, attempt), picked) = sent;
        Ok(Sent::Response(BackendResponse {
            response,
            backend: self.clone(),
            attempt,
            picked,
        }))
    }

    /// Starts the exchange of a request that is not sent.
    fn unsent(&self, request: &Request) -> Exchange {
        Exchange::start(self.metrics.clone(), request.headers(), false)
    }

    fn name(&self, error: Error) -> Error {
        error.within(format_args!("backend {}", self.source.backend.meta))
    }

    /// Sends it to endpoints that the balancer selects.
    async fn balance(
        &self,
        queue: &BalanceQueue<HttpEndpoint>,
        request: &mut Request,
        delivery: &Delivery,
        earlier: &mut EarlierAttempts,
        limit: Option<&AttemptLimit>,
    ) -> Result<(Answered, Option<PickedEndpoint<HttpEndpoint>>), Error> {
        let replay = Replay::of(request);
        let mut started = Instant::now();
        loop {
            let picked = queue
                .acquire_other(started, earlier.avoid)
                .await
                .map_err(queue_error)?;
            picked.value.check_identity(delivery.required_id.as_ref())?;
            earlier.avoid = Some(picked.endpoint.addr);
            let Attempt { failure, result } = self
                .attempt(&picked.value, Some(&picked), request, delivery, limit)
                .await;
            match (&result, failure) {
                (Ok((response, _)), _) => outcome::record_headers(&picked, response),
                (Err(_), Some(failure)) => outcome::record_failure(&picked, failure),
                (Err(_), None) => {}
            }
            match failure.map_or(Some(true), Failure::reached) {
                Some(true) => queue.mark_reached(&picked),
                Some(false) => queue.mark_failed(&picked),
                None => {}
            }
            let Some(failure) = failure else {
                return Ok((result?, Some(picked)));
            };
            let history = &mut earlier.history;
            let replay = replay.after_attempt(request);
            let action = retry::decide(failure, replay, retry::Dispatch::Balanced, history);
            match action {
                Action::Return => return Ok((result?, Some(picked))),
                Action::OtherEndpointIfAvailable if !queue.has_other(&picked) => {
                    return Ok((result?, Some(picked)));
                }
                Action::OtherEndpoint if failure.may_be_processed() => {
                    // The fail-fast timeout restarts: detecting that a pod has vanished takes
                    // seconds, which were not spent waiting for an endpoint. This happens once per
                    // request, so the wait stays bounded.
                    started = Instant::now();
                }
                Action::OtherEndpoint | Action::OtherEndpointIfAvailable | Action::SameEndpoint => {
                    if let Err(error) = result
                        && failure.reached() == Some(false)
                    {
                        tracing::info!(addr = %picked.endpoint.addr, %error, "Failed to connect");
                    }
                }
            }
        }
    }

    /// Sends it to the one address of the backend.
    async fn forward(
        &self,
        endpoint: &HttpEndpoint,
        request: &mut Request,
        delivery: &Delivery,
        earlier: &mut EarlierAttempts,
        limit: Option<&AttemptLimit>,
    ) -> Result<Answered, Error> {
        endpoint.check_identity(delivery.required_id.as_ref())?;
        let replay = Replay::of(request);
        loop {
            let attempt = self.attempt(endpoint, None, request, delivery, limit);
            let Attempt { failure, result } = attempt.await;
            let action = failure.map_or(Action::Return, |failure| {
                let history = &mut earlier.history;
                let replay = replay.after_attempt(request);
                retry::decide(failure, replay, retry::Dispatch::Fixed, history)
            });
            if action == Action::Return {
                return match result {
                    Err(error) if failure.is_some_and(Failure::is_unsent) => {
                        Err(error.within(format_args!("endpoint {}", endpoint.addr())))
                    }
                    result => result,
                };
            }
        }
    }

    /// Sends the request to one endpoint. If the attempt fails, the request can be sent again: only
    /// hop-by-hop headers of the client's connection have been removed.
    async fn attempt(
        &self,
        endpoint: &HttpEndpoint,
        picked: Option<&PickedEndpoint<HttpEndpoint>>,
        request: &mut Request,
        delivery: &Delivery,
        limit: Option<&AttemptLimit>,
    ) -> Attempt {
        let span = if delivery.is_traced {
            endpoint.open_span(request)
        } else {
            None
        };
        let rewrite = endpoint.rewrite(request);
        let connection = match endpoint.connect(request).await {
            Ok(connection) => connection,
            Err(error) => {
                rewrite.undo(request);
                restore_parent(span.as_deref(), request);
                return Attempt {
                    failure: Some(Failure::NoConnection),
                    result: Err(SendError::Dial(error).into()),
                };
            }
        };
        if let Some(picked) = picked {
            picked.record_send();
        }
        let metrics = ExchangeMetrics {
            endpoint: Some(endpoint.metrics.clone()),
            ..self.metrics.clone()
        };
        let has_body = !request.body().is_empty();
        let mut exchange = Exchange::start(metrics, request.headers(), has_body)
            .with_tap(endpoint.tap(request, delivery.client))
            .with_span(trace::context(span.as_deref()));
        let unanswered = picked.map(|picked| Unanswered::new(picked, delivery.timeouts.as_ref()));
        let sent = match limit {
            None => {
                let observer = RequestObserver::new(exchange.request_body(), None);
                observer.attach(request.body_mut());
                endpoint.send(connection, request, &rewrite).await
            }
            Some(limit) => {
                let timeouts = limit.start();
                let observer = RequestObserver::new(
                    exchange.request_body(),
                    Some(timeouts.progress().clone()),
                );
                observer.attach(request.body_mut());
                let sending = endpoint.send(connection, request, &rewrite);
                let sent = limit.apply(&timeouts, sending);
                Box::pin(sent).await
            }
        };
        if let Some(unanswered) = unanswered {
            unanswered.end();
        }
        if !matches!(sent, Ok((_, false))) {
            request.body_mut().unobserve();
            rewrite.undo(request);
            restore_parent(span.as_deref(), request);
        }
        match sent {
            Ok((response, is_unsent)) => {
                trace::end(span, response.status());
                exchange.response_headers(response.status(), response.headers());
                Attempt {
                    failure: is_unsent.then_some(Failure::UnsentByPeer),
                    result: Ok((response, exchange)),
                }
            }
            Err(error) => {
                exchange.failed(match &error {
                    SendError::Dial(_) => StreamError::GoAway,
                    error => StreamError::from(error),
                });
                Attempt {
                    failure: Some((&error).into()),
                    result: Err(error.into()),
                }
            }
        }
    }
}

impl Backend {
    pub(super) fn new(
        context: &Rc<ProxyContext>,
        parent: &mesh_core::meta::Meta,
        family: Option<AddressFamily>,
        source: &PolicyBackend,
        accrual: Option<FailureAccrual>,
    ) -> Self {
        let dispatch = match &source.target {
            BackendTarget::None => Dispatch::Fail,
            BackendTarget::Forward(endpoint) => {
                let endpoint = Arc::new((**endpoint).clone());
                Dispatch::Forward(Box::new(HttpEndpoint::new(context, &endpoint, None)))
            }
            BackendTarget::Balance {
                authority,
                load,
                queue,
            } => {
                let outbound = &context.config.outbound;
                let queue = outbound.http_queue.for_policy(*queue);
                let settings = BalanceSettings {
                    queue_capacity: queue.capacity,
                    failfast: queue.failfast,
                    backoff: outbound.connect_backoff,
                };
                let labels = labels::balancer(parent, &source.meta);
                let metrics = context.families.http_balancer.balancer(&labels);
                let name = authority_label(authority).to_owned();
                let new_endpoint = {
                    let context = context.clone();
                    move |endpoint: &Arc<_>| HttpEndpoint::new(&context, endpoint, Some(&name))
                };
                let circuit = accrual.and_then(|accrual| {
                    let breakers = context.shared.breakers.backend(authority, &accrual)?;
                    let metrics = context.families.breaker.balancer(&labels);
                    Some(CircuitBreaking::new(breakers, metrics))
                });
                let sets = context.discovery.endpoints(authority, family);
                Dispatch::Balance(Box::new(BalanceQueue::new(
                    sets,
                    *load,
                    &settings,
                    circuit,
                    metrics,
                    new_endpoint,
                )))
            }
        };
        Self {
            source: source.clone(),
            accrual,
            dispatch,
        }
    }

    pub(super) fn is_compiled_from(
        &self,
        source: &PolicyBackend,
        accrual: Option<FailureAccrual>,
    ) -> bool {
        self.source == *source && self.accrual == accrual
    }

    fn is_available(&self) -> bool {
        match &self.dispatch {
            Dispatch::Balance(queue) => queue.is_available(),
            Dispatch::Forward(_) | Dispatch::Fail => true,
        }
    }
}

/// Makes the next attempt's span a child of the failed attempt's parent.
fn restore_parent(span: Option<&OpenSpan>, request: &mut Request) {
    if let Some(span) = span {
        span.restore_parent(request.headers_mut());
    }
}

/// Returns the `authority` label. Linkerd omits port 80 in it.
fn authority_label(authority: &str) -> &str {
    authority.strip_suffix(":80").unwrap_or(authority)
}

fn queue_error(error: QueueError) -> Error {
    match error {
        QueueError::FailFast => Error::new(Kind::FailFast, "service in fail-fast"),
        QueueError::LoadShed => Error::new(Kind::LoadShed, "service unavailable"),
    }
}
