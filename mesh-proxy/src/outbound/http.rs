//! Outbound HTTP: selects the rule, backend and endpoint of each request, and applies timeouts and
//! retries.
//!
//! [`HttpTarget`] responds to the requests of all connections of one data thread to one original
//! destination. Its [`Routes`] are compiled when discovery publishes a change, and hold everything
//! that a request needs: balancers, timeouts, metric handles. A request locks nothing, and waits
//! only for endpoints.
//!
//! The path of a request: [`HttpTarget::respond`] selects the rule and [`HttpTarget::send`]
//! applies it, [`PolicyRetries::send`] repeats it if the rule has a retry policy,
//! [`RuleBackend::send`](backend::RuleBackend::send) selects endpoints,
//! [`HttpEndpoint::send`](endpoint::HttpEndpoint::send) sends, and [`HttpTarget::finish`] completes
//! the response.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use mesh_core::trace::{SpanContext, SpanKind};
use mesh_http2::ErrorCode;
use mesh_planted::Bug;
use mesh_runtime::drain::{Part, Watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::backend::{BackendResponse, Delivery, EarlierAttempts, RuleBackend, Sent};
use self::ingress::IngressConnection;
use self::observe::{RequestObserver, ResponseObserver};
use self::owner::{AcceptedFor, AddressOwner};
use self::routes::{Routes, Rule};
use crate::context::ProxyContext;
use crate::discovery::{Destination, DiscoveryError, OutboundTarget};
use crate::error::{Error, Kind, Side, UNEXPECTED};
use crate::http::body::{ExchangeTimeouts, GrpcErrorTrailers, TimeoutError};
use crate::http::headers::{DST_CANONICAL, REQUIRE_ID};
use crate::http::request_head::opens_tunnel;
use crate::http::synthetic_response::{self, ErrorDetail, RequestContext};
use crate::http::{HttpHandler, Request, Reset, Response, grpc, orig_proto, uri};
use crate::limits::idle::IdleCache;
use crate::local_reply::LocalReply;
use crate::retry::{AttemptLimit, PolicyRetries, RetryPolicy, overrides};
use crate::telemetry::http::{Exchange, ExchangeMetrics, StreamError};
use crate::telemetry::labels::Direction;
use crate::{filter, random, trace, watch};

mod backend;
mod endpoint;
mod ingress;
mod mirror;
mod observe;
mod outcome;
mod owner;
mod profile;
mod route_metrics;
mod route_protocol;
mod routes;

/// The HTTP targets of one data thread, shared by the connections to them.
pub(crate) struct Http {
    context: Rc<ProxyContext>,
    /// A target and its connections to endpoints are kept for the idle time after the last
    /// connection of the application.
    targets: IdleCache<Destination, HttpTarget>,
}

/// Responds to the requests of one connection of the application.
pub(crate) struct ClientConnection {
    target: ConnectionTarget,
    client: SocketAddr,
    original_dst: SocketAddr,
}

/// Where the requests of a connection are sent.
enum ConnectionTarget {
    /// To its original destination.
    Original(Rc<HttpTarget>, AcceptedFor),
    /// In ingress mode, to the destinations that they select. Drained by itself.
    Requested(IngressConnection, Part),
}

/// One original destination, or a name in ingress mode.
pub(crate) struct HttpTarget {
    context: Rc<ProxyContext>,
    destination: Destination,
    updates: RefCell<watch::Receiver<Arc<OutboundTarget>>>,
    routes: RefCell<Rc<Routes>>,
    owner: AddressOwner,
    /// Follows `updates` for idle connections.
    following: RefCell<Option<AbortOnDropHandle<()>>>,
}

impl Http {
    pub(crate) fn new(context: Rc<ProxyContext>) -> Self {
        Self {
            targets: IdleCache::new(context.config.discovery.outbound_idle),
            context,
        }
    }

    /// The targets, for evictions.
    pub(super) fn targets(&self) -> &IdleCache<Destination, HttpTarget> {
        &self.targets
    }

    /// Returns the handler of a connection of `client` to `addr`. `updates` are discovery's
    /// snapshots of `addr`.
    pub(crate) fn connection(
        &self,
        client: SocketAddr,
        addr: SocketAddr,
        updates: watch::Receiver<Arc<OutboundTarget>>,
    ) -> ClientConnection {
        let target = self.target(addr.into(), updates);
        let accepted = target.owner.accept();
        ClientConnection {
            target: ConnectionTarget::Original(target, accepted),
            client,
            original_dst: addr,
        }
    }

    /// Returns the handler of a connection in ingress mode. Its requests look up their
    /// destinations.
    pub(crate) fn ingress_connection(
        self: &Rc<Self>,
        client: SocketAddr,
        addr: SocketAddr,
    ) -> ClientConnection {
        ClientConnection {
            target: ConnectionTarget::Requested(
                IngressConnection::new(self.clone(), addr),
                self.context.drain.part(),
            ),
            client,
            original_dst: addr,
        }
    }

    /// Looks up a target, unless this thread has it.
    async fn target_of(&self, destination: Destination) -> Result<Rc<HttpTarget>, DiscoveryError> {
        if let Some(target) = self.targets.get(&destination)
            && target.is_followed()
        {
            return Ok(target);
        }
        let updates = self.context.discovery.outbound(destination.clone()).await?;
        Ok(self.target(destination, updates))
    }

    fn target(
        &self,
        destination: Destination,
        updates: watch::Receiver<Arc<OutboundTarget>>,
    ) -> Rc<HttpTarget> {
        let target = self.targets.get_or_insert_with(destination, |destination| {
            let source = updates.borrow().clone();
            HttpTarget {
                context: self.context.clone(),
                destination: destination.clone(),
                updates: RefCell::new(updates.clone()),
                owner: AddressOwner::new(&self.context.drain, &source),
                routes: RefCell::new(Rc::new(Routes::compile(&self.context, source, None))),
                following: RefCell::default(),
            }
        });
        // Discovery may have evicted the destination and looked it up again.
        if !updates.same_channel(&target.updates.borrow()) {
            target.follow(updates);
        } else if target.following.borrow().is_none() {
            target.follow_owner(updates);
        }
        target
    }
}

impl HttpHandler for ClientConnection {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        match &self.target {
            ConnectionTarget::Original(target, accepted) => {
                let routes = target.routes();
                if !target.owner.is_current(accepted) {
                    return Err(Reset(ErrorCode::REFUSED_STREAM));
                }
                let (client, dst) = (self.client, self.original_dst);
                target.handle(client, dst, routes, request).await
            }
            // Boxed, so that it does not enlarge the futures of other modes.
            ConnectionTarget::Requested(ingress, drain) => {
                Box::pin(ingress.handle(self.client, drain, request)).await
            }
        }
    }
}

impl ClientConnection {
    /// Returns the drain of the connection, which also begins when its address belongs to another
    /// object.
    pub(super) fn drain(&self) -> Watch {
        match &self.target {
            ConnectionTarget::Original(_, accepted) => accepted.drain(),
            ConnectionTarget::Requested(_, drain) => drain.watch(),
        }
    }
}

impl HttpTarget {
    /// Handles a request of `client` on a connection to `original_dst`.
    async fn handle(
        &self,
        client: SocketAddr,
        original_dst: SocketAddr,
        routes: Rc<Routes>,
        request: &mut Request,
    ) -> Result<Response, Reset> {
        let tracer = self.context.shared.tracer.as_ref();
        let span = trace::open(tracer, SpanKind::Server, Direction::Outbound, request);
        let request_context = RequestContext::new(request, None);
        let span_context = trace::context(span.as_deref());
        let required_id = prepare(request, original_dst);
        let responding = self.respond(
            client,
            routes,
            required_id,
            request_context,
            span_context,
            request,
        );
        let response = match responding.await {
            Ok(response) => response,
            Err(error) => error_response(&self.context, &self.destination, request_context, error)?,
        };
        trace::end(span, response.status());
        Ok(response)
    }

    /// Handles a request from its rule to the response headers.
    async fn respond(
        &self,
        client: SocketAddr,
        routes: Rc<Routes>,
        required_id: Option<http::HeaderValue>,
        request_context: RequestContext,
        span: Option<SpanContext>,
        request: &mut Request,
    ) -> Result<Response, Error> {
        // Held until the response's headers have arrived.
        let in_flight = self.context.shared.limits.outbound_in_flight.try_acquire();
        let in_flight = in_flight
            .map_err(|_full| Error::new(Kind::LoadShed, "too many requests are in flight"))?;
        let within_target =
            |error: Error| error.within(format_args!("logical service {}", self.destination));
        let found = routes.find(request);
        drop(routes);
        let (rule, prefix) = found.map_err(within_target)?;
        let metrics = ExchangeMetrics {
            route: rule.metrics(request),
            profile: rule.profile_metrics.clone(),
            ..ExchangeMetrics::default()
        };
        let has_body = !request.body().is_empty();
        let mut route = Exchange::start(metrics, request.headers(), has_body).with_span(span);
        let (mut limits, mut retry) = (rule.timeouts, rule.retry.clone());
        if rule.allows_request_headers {
            overrides::timeouts(&mut limits, request.headers_mut());
            retry = overrides::retry(retry, request.headers_mut());
        }
        let timeouts = ExchangeTimeouts::new(limits, Instant::now());
        let mut delivery = Delivery::new(client, prefix, required_id, timeouts.clone());
        delivery.is_traced = span.is_some();
        let progress = timeouts.as_ref().map(|t| t.progress().clone());
        RequestObserver::new(route.request_body(), progress).attach(request.body_mut());
        let sent = self
            .send(
                &rule,
                retry.as_deref(),
                timeouts.as_ref(),
                request,
                &mut delivery,
            )
            .await;
        if Bug::RequestPermitLeak.is_planted() {
            in_flight.forget();
        } else {
            drop(in_flight);
        }
        match sent {
            Ok(Sent::Response(mut sent)) => {
                let filters = delivery.filters;
                filters.apply_to_response(sent.response.headers_mut());
                Ok(self.finish(request_context, &rule, route, timeouts, sent))
            }
            Ok(Sent::Reply(reply)) => {
                record_reply(&mut route, &reply);
                let reply = reply
                    .within(format_args!("route {}", rule.name))
                    .within(format_args!("logical service {}", self.destination));
                Ok(self.reply(request_context, &reply))
            }
            Err(error) => {
                record_error(&mut route, &error.kind);
                Err(within_target(
                    error.within(format_args!("route {}", rule.name)),
                ))
            }
        }
    }

    /// Applies the rule and sends the request. Returns when the response headers have arrived.
    async fn send(
        &self,
        rule: &Rule,
        retry: Option<&RetryPolicy>,
        timeouts: Option<&ExchangeTimeouts>,
        request: &mut Request,
        delivery: &mut Delivery,
    ) -> Result<Sent, Error> {
        let filters = rule.filters();
        let applied = if rule.mirrors.is_empty() {
            filter::apply(filters, request, &mut delivery.filters, random::random)?
        } else {
            mirror::apply(&self.context, filters, &rule.mirrors, request, delivery)?
        };
        let delay = delivery.filters.take_delay();
        if let Some(name) = &rule.canonical {
            request.headers_mut().insert(DST_CANONICAL, name.clone());
        }
        // From here on attempts change only what they have of their own.
        let delivery = &*delivery;
        let mut earlier = EarlierAttempts::default();
        let sending = async {
            if let Some(delay) = delay {
                delay.await;
            }
            if let ControlFlow::Break(reply) = applied {
                return Ok(Sent::Reply(reply));
            }
            match retry {
                Some(policy) if !opens_tunnel(request) => {
                    let retries = PolicyRetries {
                        policy,
                        memory: &self.context.shared.limits.replay_memory,
                        metrics: rule.retry_metrics.as_deref(),
                    };
                    let choose = || rule.backends.choose();
                    let attempt =
                        async |backend: Rc<RuleBackend>,
                               request: &mut Request,
                               limit: Option<&AttemptLimit>| {
                            backend.send(request, delivery, &mut earlier, limit).await
                        };
                    Box::pin(retries.send(request, choose, attempt)).await
                }
                _ => {
                    let backend = rule.backends.choose()?;
                    backend.send(request, delivery, &mut earlier, None).await
                }
            }
        };
        match (rule.head_timeout, timeouts) {
            (None, None) => sending.await,
            (Some(limit), _) => match tokio::time::timeout(limit, sending).await {
                Ok(sent) => sent,
                Err(_elapsed) => Err(timed_out(
                    Kind::ProfileTimeout,
                    TimeoutError::Request(limit),
                )),
            },
            (None, Some(timeouts)) => tokio::select! {
                biased;
                sent = sending => sent,
                overrun = timeouts.expired() => Err(timed_out(Kind::ResponseTimeout, overrun)),
            },
        }
    }

    /// Returns the response to a request that a filter has replied to.
    fn reply(&self, request_context: RequestContext, reply: &LocalReply) -> Response {
        if reply.is_failure() {
            self.context.families.errors.outbound_http(UNEXPECTED);
            tracing::info!(dst = %self.destination, error = %reply, "HTTP request failed");
        }
        synthetic_response::reply(request_context, reply, error_detail(&self.context))
    }

    /// Applies the response filters, and attaches metrics and timeouts to the body.
    fn finish(
        &self,
        request_context: RequestContext,
        rule: &Rule,
        mut route: Exchange,
        timeouts: Option<ExchangeTimeouts>,
        sent: BackendResponse,
    ) -> Response {
        let mut response = sent.response;
        filter::apply_to_response(sent.backend.filters(), response.headers_mut());
        filter::apply_to_response(rule.filters(), response.headers_mut());
        route.response_headers(response.status(), response.headers());
        let observer = ResponseObserver::new(route, sent.attempt, sent.picked);
        let with_message = self.context.config.outbound.informational_headers;
        let timeouts = timeouts.filter(|_| !request_context.is_tunnel(response.status()));
        let has_status_in_trailers =
            request_context.is_grpc() && grpc::has_status_in_trailers(response.headers());
        response.map(|body| {
            let mut body = body.observed(Box::new(observer));
            if has_status_in_trailers {
                body = body.with_grpc_error_trailers(GrpcErrorTrailers { with_message });
            }
            match timeouts {
                Some(timeouts) => body.with_timeouts(timeouts),
                None => body,
            }
        })
    }

    /// Returns the current routes, recompiled if discovery has published a change.
    fn routes(&self) -> Rc<Routes> {
        let mut updates = self.updates.borrow_mut();
        if updates.has_changed().unwrap_or(false) {
            let source = updates.borrow_and_update().clone();
            self.owner.update(&source);
            let routes = Routes::compile(&self.context, source, Some(&self.routes.borrow()));
            self.routes.replace(Rc::new(routes));
        }
        self.routes.borrow().clone()
    }

    /// Whether discovery still publishes changes.
    fn is_followed(&self) -> bool {
        self.updates.borrow().has_changed().is_ok()
    }

    fn follow(self: &Rc<Self>, mut updates: watch::Receiver<Arc<OutboundTarget>>) {
        updates.mark_changed();
        self.follow_owner(updates.clone());
        self.updates.replace(updates);
    }

    fn follow_owner(self: &Rc<Self>, updates: watch::Receiver<Arc<OutboundTarget>>) {
        let task = apply_owners(Rc::downgrade(self), updates);
        let following = AbortOnDropHandle::new(tokio::task::spawn_local(task));
        self.following.replace(Some(following));
    }
}

/// Applies changes of the owner of an address also while no request reads them.
async fn apply_owners(target: Weak<HttpTarget>, mut updates: watch::Receiver<Arc<OutboundTarget>>) {
    while updates.changed().await.is_ok() {
        let now = updates.borrow_and_update().clone();
        let Some(target) = target.upgrade() else {
            return;
        };
        target.owner.update(&now);
    }
}

/// Logs and counts an error, and returns the response.
fn error_response(
    context: &ProxyContext,
    dst: &Destination,
    request_context: RequestContext,
    error: Error,
) -> Result<Response, Reset> {
    if let Some(reason) = error.kind.reason(Side::Outbound) {
        context.families.errors.outbound_http(reason);
        if error.kind == Kind::LoadShed {
            // The request whose wait failed has logged the outage already. An outage must not
            // fill the log at the rate of the requests.
            tracing::debug!(%dst, %error, "HTTP request failed");
        } else {
            tracing::info!(%dst, %error, "HTTP request failed");
        }
    }
    synthetic_response::error(request_context, &error, error_detail(context))
}

fn error_detail(context: &ProxyContext) -> ErrorDetail {
    ErrorDetail {
        informational: context.config.outbound.informational_headers,
    }
}

/// Normalizes a request. Returns the identity that the application requires of the endpoint.
fn prepare(request: &mut Request, original_dst: SocketAddr) -> Option<http::HeaderValue> {
    uri::set_authority(request, Some(original_dst));
    // Only the proxy itself may declare the original protocol of a request.
    orig_proto::strip(request.headers_mut());
    request.headers_mut().remove(REQUIRE_ID)
}

fn timed_out(kind: Kind, overrun: TimeoutError) -> Error {
    let message = format!("timed out waiting for response headers: {overrun}");
    Error::new(kind, message)
}

/// Counts a request that was not sent, or that has no response, in the metrics of a route or of a
/// backend.
fn record_error(exchange: &mut Exchange, kind: &Kind) {
    exchange.failed(stream_error(kind));
}

/// Counts a request that a filter of the route or of a backend has replied to.
fn record_reply(exchange: &mut Exchange, reply: &LocalReply) {
    exchange.synthesized(reply.status(), reply.grpc_code());
}

/// Returns the label value of an error in the route's metrics.
fn stream_error(kind: &Kind) -> StreamError {
    match kind {
        Kind::FailFast => StreamError::FailFast,
        Kind::LoadShed => StreamError::LoadShed,
        Kind::ResponseTimeout | Kind::ProfileTimeout => StreamError::ResponseHeadersTimeout,
        Kind::Reset(reason) => (*reason).into(),
        Kind::Io | Kind::ConnectTimeout => StreamError::Io,
        _ => StreamError::Unknown,
    }
}
