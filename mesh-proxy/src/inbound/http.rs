//! Inbound requests: restores, authorizes, filters and rate-limits a request, sends it to the
//! application and records its metrics.

use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;

use http::{HeaderName, HeaderValue, Version};
use mesh_core::route::http::RequestHead;
use mesh_core::tap::{TapContext, TapDirection};
use mesh_core::trace::SpanKind;
use mesh_planted::Bug;
use mesh_runtime::admin::Admin;
use mesh_runtime::drain::Watch;

use self::observe::{RequestObserver, ResponseObserver};
use super::Inbound;
use super::app::AppPort;
use super::gateway::GatewayTarget;
use super::peer::Peer;
use super::policy::{ActiveEnforcer, RoutePermit};
use super::profile::LastName;
use crate::access_log::OpenEntry;
use crate::config::ClientTrust;
use crate::context::ProxyContext;
use crate::error::{Error, Kind, Side, UNEXPECTED};
use crate::filter::{self, FilterState};
use crate::http::body::GrpcErrorTrailers;
use crate::http::client::{Client, SendError};
use crate::http::headers::{
    CLIENT_ID, ORIG_PROTO, PROXY_CONNECTION, PROXY_ERROR, PROXY_UNDELIVERED,
};
use crate::http::synthetic_response::{ErrorDetail, RequestContext};
use crate::http::{
    ErrorCode, HttpHandler, Protocol, Request, Reset, Response, grpc, headers, orig_proto,
    synthetic_response, uri,
};
use crate::local_reply::LocalReply;
use crate::random;
use crate::retry::{self, Failure, Report, Requester, unsent};
use crate::tap::TapRecorder;
use crate::telemetry::http::{EndpointMetrics, Exchange, ExchangeMetrics};
use crate::telemetry::labels::{self, Direction};
use crate::trace::{self, OpenSpan};
use crate::transport::Io;

mod admin;
mod observe;

/// Response headers that proxies act upon. The proxy removes them from the application's responses.
static PROXY_RESPONSE_HEADERS: [HeaderName; 4] =
    [ORIG_PROTO, PROXY_CONNECTION, PROXY_ERROR, PROXY_UNDELIVERED];

/// Responds to the requests of one connection.
struct RequestHandler {
    inbound: Rc<Inbound>,
    peer: Peer,
    enforcer: ActiveEnforcer,
    to: Destination,
    /// `l5d-client-id` for the application.
    client_id: Option<HeaderValue>,
    /// Whether the destination has responded to a request of this connection.
    has_responded: Cell<bool>,
    last_name: LastName,
}

/// The destination of authorized requests.
pub(super) enum Destination {
    App(Rc<Client<AppPort>>),
    Admin(Admin, Rc<ProxyContext>),
    /// A Service, for a proxy of another cluster.
    Gateway(Box<GatewayTarget>),
}

impl Inbound {
    /// Serves the application's HTTP on a connection until it ends.
    pub(super) async fn serve_http(
        self: &Rc<Self>,
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        protocol: Protocol,
    ) {
        let app = self.apps.client(peer.target);
        let open = app.dial().connection();
        app.dial().follow_termination(enforcer.policy_updates());
        let to = Destination::App(app);
        self.serve_requests(io, peer, enforcer, protocol, to, open.drain())
            .await;
    }

    pub(super) async fn serve_requests(
        self: &Rc<Self>,
        io: Io,
        peer: Peer,
        enforcer: ActiveEnforcer,
        protocol: Protocol,
        to: Destination,
        drain: Watch,
    ) {
        let client = peer.client;
        let identity = peer.identity();
        let trust = match identity {
            Some(_) => ClientTrust::Known,
            None => ClientTrust::Unknown,
        };
        let handler = RequestHandler {
            client_id: identity.and_then(|id| HeaderValue::from_str(id.as_str()).ok()),
            to,
            inbound: self.clone(),
            peer,
            enforcer,
            has_responded: Cell::new(false),
            last_name: LastName::default(),
        };
        let served = self
            .server
            .serve_client(io, protocol, Rc::new(handler), trust, drain);
        if let Err(error) = served.await {
            tracing::debug!(%client, error = &error as &dyn std::error::Error, "HTTP connection failed");
        }
    }
}

impl HttpHandler for RequestHandler {
    async fn handle(&self, request: &mut Request) -> Result<Response, Reset> {
        // Before the original protocol is removed, which the span reports.
        let span = self.open_span(SpanKind::Server, request);
        // Only peers of the mesh may declare the original protocol of a request. For other clients
        // it would be a way to choose how the application parses it.
        let downgraded = if self.peer.identity().is_some() {
            orig_proto::downgrade(request)
        } else {
            orig_proto::strip(request.headers_mut());
            None
        };
        let log = self.inbound.context.shared.access_log.as_ref();
        let entry = log.map(|log| log.open(self.peer.client, self.peer.identity(), request));
        // Pinned here for both cases: the future is large, and each function that it is moved into
        // costs a copy of it.
        let responding = pin!(self.respond_to(request, downgraded, span.is_some()));
        let response = match entry {
            None => responding.await?,
            Some(entry) => log_response(entry, responding).await?,
        };
        trace::end(span, response.status());
        Ok(response)
    }
}

/// Waits for a response and logs it.
async fn log_response(
    mut entry: Box<OpenEntry>,
    responding: Pin<&mut impl Future<Output = Result<Response, Reset>>>,
) -> Result<Response, Reset> {
    let mut response = entry.measure(responding).await?;
    entry.response_headers(response.status());
    response.body_mut().observe(entry);
    Ok(response)
}

impl Destination {
    async fn send(&self, request: &mut Request, client: SocketAddr) -> Result<Response, SendError> {
        match self {
            Self::App(app) => send_to_app(app, request).await,
            Self::Admin(admin, context) => {
                let memory = &context.shared.limits.memory;
                Ok(admin::respond(admin, memory, request, client).await)
            }
            // Boxed, so that it does not enlarge the futures of other destinations.
            Self::Gateway(target) => Box::pin(target.send(request, client)).await,
        }
    }
}

async fn send_to_app(app: &Client<AppPort>, request: &mut Request) -> Result<Response, SendError> {
    let sent = app.send(request).await;
    if app.dial().is_probing() {
        // If the connection is to be drained, this response announces it to the client.
        Box::pin(app.dial().probed()).await;
    }
    sent
}

/// What ends an authorized request.
enum Answer {
    /// The destination's response.
    Response(Response),
    /// A filter has replied in its place.
    Reply(Box<LocalReply>),
}

/// A request without a response from its destination.
struct RequestFailure {
    error: Error,
    /// How sending it failed, if it was sent, and whether its method is idempotent.
    sending: Option<(Failure, bool)>,
}

impl RequestHandler {
    /// Responds in the protocol of the client.
    async fn respond_to(
        &self,
        request: &mut Request,
        downgraded: Option<Version>,
        is_traced: bool,
    ) -> Result<Response, Reset> {
        let request_context = RequestContext::new(request, downgraded);
        match self.respond(request, is_traced).await {
            Ok(Answer::Response(mut response)) => {
                if let Some(version) = downgraded {
                    orig_proto::upgrade_response(&mut response, version);
                }
                if request_context.is_grpc() && grpc::has_status_in_trailers(response.headers()) {
                    // The library of the client reports a lost connection with this status. A reset
                    // would be an internal error to it.
                    let errors = GrpcErrorTrailers { with_message: true };
                    return Ok(response.map(|body| body.with_grpc_error_trailers(errors)));
                }
                Ok(response)
            }
            Ok(Answer::Reply(reply)) => Ok(self.reply(request_context, &reply)),
            Err(failure) => self.error_response(request_context, &failure),
        }
    }

    async fn respond(
        &self,
        request: &mut Request,
        is_traced: bool,
    ) -> Result<Answer, RequestFailure> {
        // Held until the response's headers have arrived.
        let _in_flight = self
            .inbound
            .context
            .shared
            .limits
            .inbound_in_flight
            .try_acquire()
            .map_err(|_full| {
                Error::new(
                    Kind::LoadShed,
                    "service unavailable: too many requests in flight",
                )
            })?;
        self.prepare(request)?;
        let mut head = RequestHead::from(&*request);
        head.is_raw = uri::raw_path(request).is_some();
        let permit = self.enforcer.authorize_request(&self.peer, &head)?;
        let revocable = self.enforcer.track(&self.peer, &head);
        // Inbound policies have only filters of the API, which leave no state for the response.
        let mut filters = FilterState::new(permit.prefix());
        let applied = filter::apply(permit.filters(), request, &mut filters, random::random)?;
        if let ControlFlow::Break(reply) = applied {
            return Ok(Answer::Reply(reply));
        }
        self.enforcer.check_rate_limits(&self.peer, &permit)?;
        if let Destination::Gateway(target) = &self.to {
            target.admit(request, self.peer.identity())?;
        }
        let mut response = tokio::select! {
            biased;
            sent = self.send(request, &permit, is_traced) => sent?,
            () = revocable.revoked() => {
                let message = "the policy no longer allows the request";
                return Err(Error::new(Kind::Unauthorized, message).into());
            }
        };
        filter::apply_to_response(permit.filters(), response.headers_mut());
        let response = response.map(|body| body.with_revocable(revocable));
        Ok(Answer::Response(response))
    }

    /// Brings a request into its final form for authorization and forwarding.
    fn prepare(&self, request: &mut Request) -> Result<(), Error> {
        let headers = request.headers_mut();
        headers::strip_for_application(headers);
        match &self.client_id {
            Some(id) => {
                headers.insert(CLIENT_ID, id.clone());
            }
            None if Bug::ClientIdForwarded.is_planted() => {}
            None => {
                headers.remove(CLIENT_ID);
            }
        }
        let is_gateway = matches!(self.to, Destination::Gateway(_));
        if !is_gateway {
            uri::replace_unsent_authority(request, self.peer.target);
        }
        // A peer that names the target in a transport header must send the authority too.
        let fallback = (!is_gateway && !self.peer.is_direct()).then_some(self.peer.target);
        if !uri::set_authority(request, fallback) {
            return Err(Error::new(Kind::Unexpected, "the request has no authority"));
        }
        Ok(())
    }

    /// Opens the span of a sampled request.
    fn open_span(&self, kind: SpanKind, request: &mut Request) -> Option<Box<OpenSpan>> {
        let tracer = self.inbound.context.shared.tracer.as_ref();
        trace::open(tracer, kind, Direction::Inbound, request)
    }

    /// Reports the request to observers.
    fn tap(&self, request: &Request, permit: &RoutePermit) -> Option<Box<TapRecorder>> {
        let tap = &self.inbound.context.shared.tap;
        if !tap.is_active() {
            return None;
        }
        let peer = &self.peer;
        tap.record(
            request,
            TapContext {
                direction: TapDirection::Inbound,
                source: peer.client,
                source_labels: labels::tap_server_tls(&peer.tls),
                destination: peer.target,
                destination_labels: permit.tap_labels(),
                route_labels: mesh_core::labels::Labels::default(),
            },
        )
    }

    async fn send(
        &self,
        request: &mut Request,
        permit: &RoutePermit,
        is_traced: bool,
    ) -> Result<Response, RequestFailure> {
        let span = if is_traced {
            self.open_span(SpanKind::Client, request)
        } else {
            None
        };
        let observers = ExchangeMetrics {
            profile: self.profile_route(request),
            ..permit.observers()
        };
        let mut exchange =
            Exchange::start(observers, request.headers(), !request.body().is_empty())
                .with_tap(self.tap(request, permit))
                .with_span(trace::context(span.as_deref()));
        if let Some(observer) = exchange.request_body() {
            let observer = Box::new(RequestObserver(observer));
            request.body_mut().observe(observer);
        }
        match self.to.send(request, self.peer.client).await {
            Ok(mut response) => {
                trace::end(span, response.status());
                self.has_responded.set(true);
                headers::remove_all(response.headers_mut(), &PROXY_RESPONSE_HEADERS);
                exchange.response_headers(response.status(), response.headers());
                Ok(response.map(|body| body.observed(Box::new(ResponseObserver(exchange)))))
            }
            Err(error) => {
                exchange.failed((&error).into());
                Err(RequestFailure {
                    sending: Some(((&error).into(), request.method().is_idempotent())),
                    error: error.into(),
                })
            }
        }
    }

    /// Returns the metrics of the route of a ServiceProfile that a request to the application has.
    fn profile_route(&self, request: &Request) -> Option<Rc<EndpointMetrics>> {
        match &self.to {
            Destination::App(_) => self.inbound.profiles.route(&self.last_name, request),
            Destination::Admin(..) | Destination::Gateway(_) => None,
        }
    }

    /// Counts an error.
    fn count_error(&self, reason: &'static str) {
        let policy = self.enforcer.current_policy();
        let server = labels::server(&policy.server.meta, self.inbound.labelled(self.peer.target));
        let errors = &self.inbound.context.families.errors;
        errors.inbound_http(self.inbound.labelled(self.peer.dialled), &server, reason);
    }

    /// Returns the response to a request that a filter has replied to.
    fn reply(&self, request_context: RequestContext, reply: &LocalReply) -> Response {
        if reply.is_failure() {
            self.count_error(UNEXPECTED);
        }
        tracing::debug!(client = %self.peer.client, %reply, "A filter has replied");
        let detail = ErrorDetail {
            informational: self.peer.identity().is_some(),
        };
        synthetic_response::reply(request_context, reply, detail)
    }

    fn error_response(
        &self,
        request_context: RequestContext,
        failure: &RequestFailure,
    ) -> Result<Response, Reset> {
        let RequestFailure { error, sending } = failure;
        let meshed = self.peer.identity().is_some();
        if let Some(reason) = error.kind.reason(Side::Inbound) {
            self.count_error(reason);
        }
        match error.kind {
            Kind::Unauthorized | Kind::RouteNotFound | Kind::RateLimited => {
                tracing::info!(client = %self.peer.client, tls = self.peer.identity().map(tracing::field::display), %error, "Request denied");
            }
            _ => tracing::debug!(client = %self.peer.client, %error, "Request failed"),
        }
        let report = sending.map_or(Report::Response, |(failure, is_idempotent)| {
            let to = Requester {
                is_meshed: meshed,
                has_response: self.has_responded.get(),
                may_repeat: is_idempotent && request_context.is_http1(),
            };
            retry::report(failure, to)
        });
        if report == Report::Refusal {
            return Err(Reset(ErrorCode::REFUSED_STREAM));
        }
        let detail = ErrorDetail {
            informational: meshed,
        };
        let mut response = synthetic_response::error(request_context, error, detail)?;
        if report == Report::Unsent {
            unsent::report(response.headers_mut());
        }
        Ok(response)
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            sending: None,
        }
    }
}
