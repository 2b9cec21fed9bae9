//! Authorizes the connections and requests of one kind of client to one port by the current policy,
//! and counts the decisions.
//!
//! The decisions are pure functions of `mesh-core`. This module applies them to the current
//! snapshot and resolves the metric handles once per policy.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use ahash::AHashMap;
use http::HeaderMap;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authorization, Client, Served, ServerPolicy, ServerProtocol, authorize,
};
use mesh_core::route::RuleIndex;
use mesh_core::route::filter::Filter;
use mesh_core::route::http::RequestHead;
use mesh_planted::Bug;
use mesh_runtime::metrics::{Counter, Labels};
use tokio_util::task::AbortOnDropHandle;

use super::peer::{Peer, client_tls};
use crate::context::ProxyContext;
use crate::discovery::{CurrentPolicy, PolicySource, PortPolicy, TooManyPorts};
use crate::error::{Error, Kind};
use crate::http::revocable::{
    RequestAttributes, RequestTracker, RevocableRequest, RevocableRequests,
};
use crate::limits::rate_limit::{Exceeded, Limiter};
use crate::telemetry::http::ExchangeMetrics;
use crate::telemetry::labels::{self, PermitLabels, ServerTls, TargetAddr};
use crate::telemetry::tcp::TransportMetrics;
use crate::transport::Io;
use crate::watch;

/// Enforces the policy of one address for one client identity (or kind of missing identity).
pub(super) struct PolicyEnforcer {
    context: Rc<ProxyContext>,
    target: TargetAddr,
    tls: ServerTls,
    port: PortPolicy,
    /// Policy updates. Polled before each decision, which costs one atomic load when nothing has
    /// changed.
    policies: RefCell<watch::Receiver<CurrentPolicy>>,
    compiled: RefCell<Rc<CompiledPolicy>>,
    /// The number of [`ActiveEnforcer`]s.
    active: Cell<usize>,
    /// The authorized requests that are in flight.
    revocable: RevocableRequests,
    /// Authorizes them again when the policy changes. Started by the first request.
    review_task: OnceCell<AbortOnDropHandle<()>>,
}

/// An enforcer that has connections. While one exists, the policy of its port is watched.
pub(super) struct ActiveEnforcer(Rc<PolicyEnforcer>);

/// One policy with its rate limiter and metric handles.
pub(super) struct CompiledPolicy {
    pub(super) server: Arc<ServerPolicy>,
    limiter: Option<Arc<Limiter>>,
    transport: Arc<TransportMetrics>,
    /// Metric handles of the permits issued so far.
    permit_metrics: RefCell<AHashMap<PermitKey, Rc<PermitMetrics>>>,
    /// Whether rules match headers. The headers of authorized requests are then kept for later
    /// reviews.
    reads_headers: bool,
}

/// The result of a successful request authorization.
pub(super) struct RoutePermit {
    policy: Rc<CompiledPolicy>,
    found: RuleIndex,
    metrics: Rc<PermitMetrics>,
}

/// No authorization allows this connection.
#[derive(Debug, thiserror::Error)]
#[error("client {client}: server: {server}: unauthorized connection")]
pub(crate) struct Unauthorized {
    client: SocketAddr,
    server: SocketAddr,
}

#[derive(PartialEq, Eq, Hash)]
struct PermitKey {
    route: usize,
    /// Address of the authorization inside the policy, which outlives the key.
    authorization: usize,
    authority: Option<Box<str>>,
}

struct PermitMetrics {
    allowed: Counter,
    authorization: Meta,
    observers: ExchangeMetrics,
}

/// Clients choose the authority, so the cached handles are bounded where it is a label. Evicted
/// handles are resolved again.
const MAX_PERMIT_METRICS: usize = 1024;

impl PolicyEnforcer {
    pub(super) fn new(
        context: &Rc<ProxyContext>,
        target: SocketAddr,
        tls: ServerTls,
    ) -> Result<Self, TooManyPorts> {
        let port = context.discovery.inbound(target.port())?;
        let mut policies = port.updates();
        let server = policies.borrow_and_update().policy.clone();
        let target = TargetAddr::new(target, &context.config.inbound.ports);
        let compiled = CompiledPolicy::new(context, target, &tls, server);
        Ok(Self {
            context: context.clone(),
            target,
            tls,
            port,
            policies: RefCell::new(policies),
            compiled: RefCell::new(Rc::new(compiled)),
            active: Cell::new(0),
            revocable: RevocableRequests::default(),
            review_task: OnceCell::new(),
        })
    }

    /// Marks the enforcer as in use. Returns `None` when its port is no longer watched and a new
    /// enforcer is needed.
    pub(super) fn activate(self: &Rc<Self>) -> Option<ActiveEnforcer> {
        let active = self.active.get();
        if active == 0 && !self.port.try_acquire() {
            return None;
        }
        self.active.set(active + 1);
        Some(ActiveEnforcer(self.clone()))
    }

    /// Whether the port's policy comes from the policy service.
    pub(super) fn has_received_policy(&self) -> bool {
        self.policies.borrow().borrow().source == PolicySource::Received
    }

    /// Waits, for a bounded time, for the policy service's response about the port. Counts a
    /// connection that proceeds without one.
    pub(super) async fn wait_for_policy(&self) {
        let source = self.port.wait_for_policy().await;
        if let Some(policy) = source.unanswered_label() {
            self.context.families.authz.unanswered(policy);
        }
    }

    /// Returns the policy in force, recompiled if it has changed.
    pub(super) fn current_policy(&self) -> Rc<CompiledPolicy> {
        let mut policies = self.policies.borrow_mut();
        // An error means that the policy is no longer updated; the last one stays in force.
        if policies.has_changed().unwrap_or(false) && !Bug::StalePolicy.is_planted() {
            let server = policies.borrow_and_update().policy.clone();
            let mut compiled = self.compiled.borrow_mut();
            // The policy is the same when the policy service confirms the one used before its
            // response.
            if !Arc::ptr_eq(&compiled.server, &server) {
                let new = CompiledPolicy::new(&self.context, self.target, &self.tls, server);
                *compiled = Rc::new(new);
            }
        }
        self.compiled.borrow().clone()
    }

    /// Returns the updates of the port's policy.
    pub(super) fn policy_updates(&self) -> watch::Receiver<CurrentPolicy> {
        self.port.updates()
    }

    /// Counts a connection of this kind until it closes.
    pub(super) fn measure(&self, io: Io) -> Io {
        io.measured(self.current_policy().transport.open())
    }

    /// Returns the labels of the detection metrics.
    pub(super) fn detection_labels(&self) -> Labels {
        labels::server(&self.current_policy().server.meta, self.target)
    }

    /// Authorizes a connection that is not HTTP, and counts the decision.
    pub(super) fn authorize_connection(&self, peer: &Peer) -> Result<(), Unauthorized> {
        let policy = self.current_policy();
        let authz = &self.context.families.authz;
        match policy.authorize_connection(peer) {
            Some(authorization) => {
                let labels = self.authz_labels(&policy, None, Some(&authorization.meta));
                authz.tcp_allow.with(&labels).inc();
                Ok(())
            }
            None => {
                authz
                    .tcp_deny
                    .with(&self.authz_labels(&policy, None, None))
                    .inc();
                Err(Unauthorized {
                    client: peer.client,
                    server: peer.dialled,
                })
            }
        }
    }

    /// Whether the current policy allows a connection that is not HTTP. Counts nothing.
    pub(super) fn is_authorized(&self, peer: &Peer) -> bool {
        self.current_policy().authorize_connection(peer).is_some()
    }

    /// Completes when the policy no longer allows a connection that it allowed before, and counts
    /// the revocation.
    pub(super) async fn revoked(&self, peer: &Peer) {
        let mut policies = self.policies.borrow().clone();
        loop {
            if !self.is_authorized(peer) && !Bug::RevocationLost.is_planted() {
                let labels = self.authz_labels(&self.current_policy(), None, None);
                self.context
                    .families
                    .authz
                    .tcp_terminate
                    .with(&labels)
                    .inc();
                return;
            }
            if policies.changed().await.is_err() {
                break;
            }
        }
        // The policy is no longer updated.
        std::future::pending::<()>().await;
    }

    /// Authorizes a request, and counts the decision.
    pub(super) fn authorize_request(
        &self,
        peer: &Peer,
        head: &RequestHead<'_>,
    ) -> Result<RoutePermit, Error> {
        let policy = self.current_policy();
        let authz = &self.context.families.authz;
        let Some(found) = policy.server.find(head) else {
            authz
                .http_route_not_found
                .with(&self.authz_labels(&policy, None, None))
                .inc();
            return Err(policy_error(
                peer,
                Kind::RouteNotFound,
                "no route found for request",
            ));
        };
        let (route, rule) = policy.server.rule(found);
        let Some(authorization) = policy.server.authorize(rule, &peer.as_client()) else {
            authz
                .http_deny
                .with(&self.authz_labels(&policy, Some(route), None))
                .inc();
            return Err(policy_error(
                peer,
                Kind::Unauthorized,
                "unauthorized request on route",
            ));
        };
        let metrics = self.permit_metrics(&policy, &found, route, authorization, head);
        metrics.allowed.inc();
        Ok(RoutePermit {
            found,
            metrics,
            policy: policy.clone(),
        })
    }

    /// Authorizes the requests in flight again, and ends those that the policy no longer allows.
    fn review(&self) {
        let policy = self.current_policy();
        let revoked = self
            .revocable
            .revoke_denied(|facts| policy.allows_admitted(facts, &self.tls));
        if revoked > 0 {
            let labels = self.authz_labels(&policy, None, None);
            let terminated = self.context.families.authz.http_terminate.with(&labels);
            terminated.inc_by(revoked as u64);
            tracing::info!(
                port = self.target.port(),
                requests = revoked,
                "Requests ended: the policy no longer allows them"
            );
        }
    }

    /// Takes one request from the rate limits. Filters that respond themselves run before.
    pub(super) fn check_rate_limits(&self, peer: &Peer, permit: &RoutePermit) -> Result<(), Error> {
        let Some(limiter) = &permit.policy.limiter else {
            return Ok(());
        };
        let Err(exceeded) = limiter.take(peer.identity()) else {
            return Ok(());
        };
        let (scope, rate) = match exceeded {
            Exceeded::Total(rate) => ("total", rate),
            Exceeded::Identity(rate) => ("identity", rate),
        };
        let meta = limiter.meta();
        let mut labels = Labels::new()
            .with("ratelimit_group", meta.group())
            .with("ratelimit_kind", meta.kind())
            .with("ratelimit_name", meta.name())
            .with("ratelimit_scope", scope);
        labels::push_server(&mut labels, &permit.policy.server.meta, self.target);
        labels::push_route(&mut labels, permit.route());
        self.context
            .families
            .authz
            .http_rate_limit
            .with(&labels)
            .inc();
        let message = format!("{scope} rate limit exceeded: {rate}rps");
        Err(policy_error(peer, Kind::RateLimited, &message))
    }

    fn permit_metrics(
        &self,
        policy: &CompiledPolicy,
        found: &RuleIndex,
        route: &Meta,
        authorization: &Authorization,
        head: &RequestHead<'_>,
    ) -> Rc<PermitMetrics> {
        let wants_authority = self.context.config.inbound.authority_labels;
        let key = PermitKey {
            route: found.route,
            authorization: std::ptr::from_ref(authorization).addr(),
            authority: head
                .authority
                .filter(|_| wants_authority)
                .map(labels::authority_value)
                .map(Into::into),
        };
        if let Some(metrics) = policy.permit_metrics.borrow().get(&key) {
            return metrics.clone();
        }
        let permit = PermitLabels {
            server: &policy.server.meta,
            route,
            authz: &authorization.meta,
        };
        let families = &self.context.families;
        let endpoint =
            labels::inbound_endpoint(self.target, key.authority.as_deref(), &self.tls, permit);
        let route_metrics = labels::inbound_route(&policy.server.meta, self.target, route);
        let route_metrics = match &policy.server.protocol {
            ServerProtocol::Grpc(_) => families.inbound_route.grpc(route_metrics),
            _ => families.inbound_route.http(route_metrics),
        };
        let allowed = self.authz_labels(policy, Some(route), Some(&authorization.meta));
        let metrics = Rc::new(PermitMetrics {
            allowed: families.authz.http_allow.with(&allowed),
            authorization: authorization.meta.clone(),
            observers: ExchangeMetrics {
                endpoint: Some(Rc::new(families.endpoint.endpoint(endpoint))),
                route: Some(Rc::new(route_metrics)),
                ..ExchangeMetrics::default()
            },
        });
        let mut permit_metrics = policy.permit_metrics.borrow_mut();
        if permit_metrics.len() >= MAX_PERMIT_METRICS {
            permit_metrics.clear();
        }
        permit_metrics.insert(key, metrics.clone());
        drop(permit_metrics);
        metrics
    }

    fn authz_labels(
        &self,
        policy: &CompiledPolicy,
        route: Option<&Meta>,
        authz: Option<&Meta>,
    ) -> Labels {
        labels::inbound_authz(self.target, &self.tls, &policy.server.meta, route, authz)
    }
}

impl ActiveEnforcer {
    /// Registers an authorized request, so that it ends when the policy no longer allows it.
    pub(super) fn track(&self, peer: &Peer, head: &RequestHead<'_>) -> RevocableRequest {
        let enforcer = &self.0;
        enforcer.review_task.get_or_init(|| {
            let mut policies = enforcer.policies.borrow().clone();
            let enforcer = Rc::downgrade(enforcer);
            let review_task = async move {
                while policies.changed().await.is_ok() {
                    let Some(enforcer) = enforcer.upgrade() else {
                        return;
                    };
                    enforcer.review();
                }
            };
            AbortOnDropHandle::new(tokio::task::spawn_local(review_task))
        });
        let keeps_headers = enforcer.compiled.borrow().reads_headers;
        RevocableRequest::new(enforcer.clone(), peer.client.ip(), head, keeps_headers)
    }
}

impl Deref for ActiveEnforcer {
    type Target = PolicyEnforcer;

    fn deref(&self) -> &PolicyEnforcer {
        &self.0
    }
}

impl Drop for ActiveEnforcer {
    fn drop(&mut self) {
        self.0.request_ended();
    }
}

/// A tunnel outlives the connection that it began on, and keeps that connection's enforcer active.
impl RequestTracker for PolicyEnforcer {
    fn revocable(&self) -> &RevocableRequests {
        &self.revocable
    }

    fn request_started(&self) {
        self.active.set(self.active.get() + 1);
    }

    fn request_ended(&self) {
        let active = self.active.get() - 1;
        self.active.set(active);
        if active == 0 {
            self.port.release();
        }
    }
}

impl CompiledPolicy {
    fn new(
        context: &ProxyContext,
        target: TargetAddr,
        tls: &ServerTls,
        server: Arc<ServerPolicy>,
    ) -> Self {
        let accept = labels::inbound_accept(target, tls, &server.meta);
        Self {
            reads_headers: reads_headers(&server.protocol),
            limiter: context.shared.limits.rates.limiter(target.port(), &server),
            transport: context.families.tcp.transport(accept),
            server,
            permit_metrics: RefCell::default(),
        }
    }

    /// Returns the authorization that allows a connection that is not HTTP. On a port that serves
    /// HTTP only none does, because its routes and limits could not be enforced.
    fn authorize_connection(&self, peer: &Peer) -> Option<&Authorization> {
        match self.server.protocol.served() {
            Served::Detected(_) | Served::Opaque | Served::Tls => {
                authorize(&self.server.authorizations, &peer.as_client())
            }
            Served::Http(_) => None,
        }
    }

    /// Whether the policy still allows a request that was authorized before. If rules match headers
    /// and the request's headers were not kept, only the server's own authorizations count.
    fn allows_admitted(&self, facts: &RequestAttributes, tls: &ServerTls) -> bool {
        let Some(ip) = facts.client else {
            return false;
        };
        let client = Client {
            ip,
            tls: client_tls(tls),
        };
        if self.reads_headers && !facts.has_headers() {
            return authorize(&self.server.authorizations, &client).is_some();
        }
        let none = HeaderMap::new();
        let found = self.server.find(&facts.to_head(&none));
        found.is_some_and(|at| {
            self.server
                .authorize(self.server.rule(at).1, &client)
                .is_some()
        })
    }
}

/// Whether a rule of any route matches headers.
fn reads_headers(protocol: &ServerProtocol) -> bool {
    match protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => {
            let rules = http.routes.iter().flat_map(|route| &route.rules);
            let mut matches = rules.flat_map(|rule| &rule.matches);
            matches.any(|entry| !entry.headers.is_empty())
        }
        ServerProtocol::Grpc(routes) => {
            let rules = routes.iter().flat_map(|route| &route.rules);
            let mut matches = rules.flat_map(|rule| &rule.matches);
            matches.any(|entry| !entry.headers.is_empty())
        }
        ServerProtocol::Opaque | ServerProtocol::Tls => false,
    }
}

impl RoutePermit {
    pub(super) fn observers(&self) -> ExchangeMetrics {
        self.metrics.observers.clone()
    }

    /// The objects that admitted the request, as taps name them.
    pub(super) fn tap_labels(&self) -> mesh_core::labels::Labels {
        labels::tap_permit(PermitLabels {
            server: &self.policy.server.meta,
            route: self.route(),
            authz: &self.metrics.authorization,
        })
    }

    /// Length of the path prefix that the route matched; redirects need it.
    pub(super) fn prefix(&self) -> Option<usize> {
        self.found.prefix
    }

    pub(super) fn filters(&self) -> &[Filter] {
        let (_, rule) = self.policy.server.rule(self.found);
        &rule.filters
    }

    fn route(&self) -> &Meta {
        let (route, _) = self.policy.server.rule(self.found);
        route
    }
}

fn policy_error(peer: &Peer, kind: Kind, message: &str) -> Error {
    let (client, server) = (peer.client, peer.dialled);
    Error::new(
        kind,
        format!("client {client}: server: {server}: {message}"),
    )
}
