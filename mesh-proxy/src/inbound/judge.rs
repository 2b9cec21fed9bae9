//! Judges the connections and requests of one kind of client to one port, by the newest policy, and
//! counts the verdicts.
//!
//! The decisions are pure functions of `mesh-core`; here they meet the snapshot in force and the
//! metric handles, which are made once per policy.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use http::HeaderMap;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    Authorization, Client, InboundRule, ServerPolicy, ServerProtocol, authorize,
    default_http_route, http_rule,
};
use mesh_core::route::filter::Filter;
use mesh_core::route::http::RequestHead;
use mesh_core::route::{Found, grpc};
use mesh_runtime::metrics::{Counter, Labels};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::peer::{Peer, client_tls};
use super::rate_limit::{Exceeded, Limiter};
use crate::discovery::{Basis, Current, PortPolicy, TooManyPorts};
use crate::error::{Error, Kind};
use crate::http::admitted::{Admission, Admits, Admitted, Facts};
use crate::telemetry::http::Observers;
use crate::telemetry::labels::{self, Direction, Permit, ServerTls, Target};
use crate::telemetry::tcp::Transport;
use crate::transport::Io;
use crate::transport::detect::HttpDetected;
use crate::worker::Worker;

/// Judges for one address and one client identity (or kind of missing identity).
pub(super) struct Judge {
    worker: Rc<Worker>,
    target: Target,
    tls: ServerTls,
    port: PortPolicy,
    /// Newest policy. Looked at before each verdict, which costs one atomic load when nothing has
    /// changed.
    policies: RefCell<watch::Receiver<Current>>,
    law: RefCell<Rc<Law>>,
    /// How many hold an [`ActiveJudge`].
    active: Cell<usize>,
    /// The requests that it has let through and that are not over.
    admitted: Admitted,
    /// Reviews them when the policy changes. There from the first request on.
    reviewing: OnceCell<AbortOnDropHandle<()>>,
}

/// A judge with something to judge. While there is one, the policy of its port is watched.
pub(super) struct ActiveJudge(Rc<Judge>);

/// One policy with what was resolved for it.
pub(super) struct Law {
    pub(super) policy: Arc<ServerPolicy>,
    limiter: Option<Arc<Limiter>>,
    transport: Arc<Transport>,
    /// Handles of the verdicts that occurred, by route, authorization and `authority` label.
    grants: RefCell<AHashMap<GrantKey, Rc<Grant>>>,
    /// Whether rules look at headers, so that they are kept of the requests that are let through.
    reads_headers: bool,
}

/// A request may pass.
pub(super) struct Granted {
    law: Rc<Law>,
    found: Found,
    handles: Rc<Grant>,
}

/// Nothing allows this connection.
#[derive(Debug, thiserror::Error)]
#[error("client {client}: server: {server}: unauthorized connection")]
pub(super) struct Unauthorized {
    client: SocketAddr,
    server: SocketAddr,
}

#[derive(PartialEq, Eq, Hash)]
struct GrantKey {
    route: usize,
    /// Address of the authorization inside the policy, which lives as long as the key.
    authorization: usize,
    authority: Option<Box<str>>,
}

struct Grant {
    allowed: Counter,
    observers: Observers,
}

/// Clients choose the authority, so where it is a label the handles kept for it are bounded. Losing
/// some costs resolving them again.
const MAX_GRANTS: usize = 1024;

/// Routes of either kind, as one place to look rules up.
enum Routes<'a> {
    Http(&'a [mesh_core::policy::inbound::HttpRoute]),
    Grpc(&'a [mesh_core::policy::inbound::GrpcRoute]),
}

impl Judge {
    pub(super) fn new(
        worker: &Rc<Worker>,
        target: SocketAddr,
        tls: ServerTls,
    ) -> Result<Self, TooManyPorts> {
        let port = worker.discovery.inbound(target.port())?;
        let mut policies = port.updates();
        let policy = policies.borrow_and_update().policy.clone();
        let target = Target::new(target, &worker.config.inbound.ports);
        let law = Law::new(worker, target, &tls, policy);
        Ok(Self {
            worker: worker.clone(),
            target,
            tls,
            port,
            policies: RefCell::new(policies),
            law: RefCell::new(Rc::new(law)),
            active: Cell::new(0),
            admitted: Admitted::default(),
            reviewing: OnceCell::new(),
        })
    }

    /// The judge, to be used. `None` when its port is watched no more: another one has to be made.
    pub(super) fn activate(self: &Rc<Self>) -> Option<ActiveJudge> {
        let active = self.active.get();
        if active == 0 && !self.port.enter() {
            return None;
        }
        self.active.set(active + 1);
        Some(ActiveJudge(self.clone()))
    }

    /// Whether the policy service has answered for the port.
    pub(super) fn is_answered(&self) -> bool {
        self.policies.borrow().borrow().basis == Basis::Answer
    }

    /// Waits, for a moment only, until the policy service has answered for the port. Counts a
    /// connection for which it has not.
    pub(super) async fn settled(&self) {
        let basis: Basis = self.port.settled().await;
        if let Some(policy) = basis.unanswered() {
            self.worker.families.authz.unanswered(policy);
        }
    }

    /// What is in force now.
    pub(super) fn law(&self) -> Rc<Law> {
        let mut policies = self.policies.borrow_mut();
        // An error means that nothing updates the policy any more; the last one stays.
        if policies.has_changed().unwrap_or(false) {
            let policy = policies.borrow_and_update().policy.clone();
            let mut law = self.law.borrow_mut();
            // Not so when the policy service confirms what held before it answered.
            if !Arc::ptr_eq(&law.policy, &policy) {
                *law = Rc::new(Law::new(&self.worker, self.target, &self.tls, policy));
            }
        }
        self.law.borrow().clone()
    }

    /// Counts a connection of this kind from now to its close.
    pub(super) fn measure(&self, io: Io) -> Io {
        io.measured(self.law().transport.open())
    }

    /// Counts what HTTP detection found.
    pub(super) fn detected(&self, result: &std::io::Result<HttpDetected>, took: Duration) {
        let labels = labels::server(&self.law().policy.meta, self.target);
        let families = &self.worker.families.detect;
        families.detected(Direction::Inbound, &labels, result, took);
    }

    /// Judges a connection that is not HTTP, and counts the verdict.
    pub(super) fn connection(&self, peer: &Peer) -> Result<(), Unauthorized> {
        let law = self.law();
        let authz = &self.worker.families.authz;
        match law.admits(peer) {
            Some(authorization) => {
                let labels = self.verdict(&law, None, Some(&authorization.meta));
                authz.tcp_allow.with(&labels).inc();
                Ok(())
            }
            None => {
                authz.tcp_deny.with(&self.verdict(&law, None, None)).inc();
                Err(Unauthorized {
                    client: peer.client,
                    server: peer.dialled,
                })
            }
        }
    }

    /// Whether a connection that is not HTTP would pass now. Counts nothing.
    pub(super) fn would_admit(&self, peer: &Peer) -> bool {
        self.law().admits(peer).is_some()
    }

    /// Returns when the policy no longer allows a connection that it allowed before, and counts
    /// that.
    pub(super) async fn revoked(&self, peer: &Peer) {
        let mut policies = self.policies.borrow().clone();
        loop {
            if !self.would_admit(peer) {
                let labels = self.verdict(&self.law(), None, None);
                self.worker.families.authz.tcp_terminate.with(&labels).inc();
                return;
            }
            if policies.changed().await.is_err() {
                break;
            }
        }
        // Nobody updates the policy any more.
        std::future::pending::<()>().await;
    }

    /// Judges a request, and counts the verdict.
    pub(super) fn request(&self, peer: &Peer, head: &RequestHead<'_>) -> Result<Granted, Error> {
        let law = self.law();
        let authz = &self.worker.families.authz;
        let Some((found, route, rule)) = law.find(head) else {
            authz
                .http_route_not_found
                .with(&self.verdict(&law, None, None))
                .inc();
            return Err(refusal(
                peer,
                Kind::RouteNotFound,
                "no route found for request",
            ));
        };
        let client = peer.as_client();
        let authorization = authorize(&rule.authorizations, &client)
            .or_else(|| authorize(&law.policy.authorizations, &client));
        let Some(authorization) = authorization else {
            authz
                .http_deny
                .with(&self.verdict(&law, Some(route), None))
                .inc();
            return Err(refusal(
                peer,
                Kind::Unauthorized,
                "unauthorized request on route",
            ));
        };
        let handles = self.grant(&law, &found, route, authorization, head);
        handles.allowed.inc();
        Ok(Granted {
            found,
            handles,
            law: law.clone(),
        })
    }

    /// Judges again what was let through before, and ends what would not be now.
    fn review(&self) {
        let law = self.law();
        let revoked = self
            .admitted
            .review(|facts| law.still_allows(facts, &self.tls));
        if revoked > 0 {
            let labels = self.verdict(&law, None, None);
            let terminated = self.worker.families.authz.http_terminate.with(&labels);
            terminated.inc_by(revoked as u64);
            tracing::info!(
                port = self.target.port(),
                requests = revoked,
                "Requests ended: the policy no longer allows them"
            );
        }
    }

    /// Takes a request's worth from the rate limits. Filters that answer by themselves come first.
    pub(super) fn limit(&self, peer: &Peer, granted: &Granted) -> Result<(), Error> {
        let Some(limiter) = &granted.law.limiter else {
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
        labels::push_server(&mut labels, &granted.law.policy.meta, self.target);
        labels::push_route(&mut labels, granted.route());
        self.worker
            .families
            .authz
            .http_rate_limit
            .with(&labels)
            .inc();
        let what = format!("{scope} rate limit exceeded: {rate}rps");
        Err(refusal(peer, Kind::RateLimited, &what))
    }

    fn grant(
        &self,
        law: &Law,
        found: &Found,
        route: &Meta,
        authorization: &Authorization,
        head: &RequestHead<'_>,
    ) -> Rc<Grant> {
        let wants_authority = self.worker.config.inbound.authority_labels;
        let key = GrantKey {
            route: found.route,
            authorization: std::ptr::from_ref(authorization).addr(),
            authority: head
                .authority
                .filter(|_| wants_authority)
                .map(labels::authority_value)
                .map(Into::into),
        };
        if let Some(grant) = law.grants.borrow().get(&key) {
            return grant.clone();
        }
        let permit = Permit {
            server: &law.policy.meta,
            route,
            authz: &authorization.meta,
        };
        let families = &self.worker.families;
        let endpoint =
            labels::inbound_endpoint(self.target, key.authority.as_deref(), &self.tls, permit);
        let of_route = labels::inbound_route(&law.policy.meta, self.target, route);
        let of_route = match &law.policy.protocol {
            ServerProtocol::Grpc(_) => families.inbound_route.grpc(of_route),
            _ => families.inbound_route.http(of_route),
        };
        let allowed = self.verdict(law, Some(route), Some(&authorization.meta));
        let grant = Rc::new(Grant {
            allowed: families.authz.http_allow.with(&allowed),
            observers: Observers {
                endpoint: Some(Rc::new(families.endpoint.endpoint(endpoint))),
                route: Some(Rc::new(of_route)),
                backend: None,
            },
        });
        let mut grants = law.grants.borrow_mut();
        if grants.len() >= MAX_GRANTS {
            grants.clear();
        }
        grants.insert(key, grant.clone());
        drop(grants);
        grant
    }

    fn verdict(&self, law: &Law, route: Option<&Meta>, authz: Option<&Meta>) -> Labels {
        labels::inbound_verdict(self.target, &self.tls, &law.policy.meta, route, authz)
    }
}

impl ActiveJudge {
    /// Lists a request that was let through, so that it ends when the policy no longer allows it.
    pub(super) fn admit(&self, peer: &Peer, head: &RequestHead<'_>) -> Admission {
        let judge = &self.0;
        judge.reviewing.get_or_init(|| {
            let mut policies = judge.policies.borrow().clone();
            let judge = Rc::downgrade(judge);
            let reviewing = async move {
                while policies.changed().await.is_ok() {
                    let Some(judge) = judge.upgrade() else {
                        return;
                    };
                    judge.review();
                }
            };
            AbortOnDropHandle::new(tokio::task::spawn_local(reviewing))
        });
        let keeps_headers = judge.law.borrow().reads_headers;
        Admission::new(judge.clone(), peer.client.ip(), head, keeps_headers)
    }
}

impl Deref for ActiveJudge {
    type Target = Judge;

    fn deref(&self) -> &Judge {
        &self.0
    }
}

impl Drop for ActiveJudge {
    fn drop(&mut self) {
        self.0.ended();
    }
}

/// A tunnel outlives the connection that it began on, and with it that connection's judge.
impl Admits for Judge {
    fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    fn begun(&self) {
        self.active.set(self.active.get() + 1);
    }

    fn ended(&self) {
        let active = self.active.get() - 1;
        self.active.set(active);
        if active == 0 {
            self.port.leave();
        }
    }
}

impl Law {
    fn new(worker: &Worker, target: Target, tls: &ServerTls, policy: Arc<ServerPolicy>) -> Self {
        let accept = labels::inbound_accept(target, tls, &policy.meta);
        Self {
            reads_headers: reads_headers(&policy.protocol),
            limiter: worker.shared.rate_limits.of(target.port(), &policy),
            transport: worker.families.tcp.transport(accept),
            policy,
            grants: RefCell::default(),
        }
    }

    /// The authorization that lets a connection pass that is not HTTP. None does on a port that is
    /// HTTP by policy: its routes could not be enforced.
    fn admits(&self, peer: &Peer) -> Option<&Authorization> {
        match &self.policy.protocol {
            ServerProtocol::Detect { .. } | ServerProtocol::Opaque | ServerProtocol::Tls => {
                authorize(&self.policy.authorizations, &peer.as_client())
            }
            ServerProtocol::Http1(_) | ServerProtocol::Http2(_) | ServerProtocol::Grpc(_) => None,
        }
    }

    /// Whether a request that was let through before would be now. If its rule depends on headers
    /// that were not kept, only what the server allows whatever the rule counts.
    fn still_allows(&self, facts: &Facts, tls: &ServerTls) -> bool {
        let Some(ip) = facts.client else {
            return false;
        };
        let client = Client {
            ip,
            tls: client_tls(tls),
        };
        let by_server = authorize(&self.policy.authorizations, &client).is_some();
        if self.reads_headers && !facts.has_headers() {
            return by_server;
        }
        let none = HeaderMap::new();
        let found = self.find(&facts.head(&none));
        found.is_some_and(|(_, _, rule)| {
            by_server || authorize(&rule.authorizations, &client).is_some()
        })
    }

    fn find(&self, head: &RequestHead<'_>) -> Option<(Found, &Meta, &InboundRule)> {
        match self.routes() {
            Routes::Http(routes) => {
                let found = http_rule(routes, head)?;
                let route = &routes[found.route];
                let rule = &route.rules[found.rule].then;
                Some((found, &route.meta, rule))
            }
            Routes::Grpc(routes) => {
                let found = grpc::find(routes, head)?;
                let route = &routes[found.route];
                let rule = &route.rules[found.rule].then;
                Some((found, &route.meta, rule))
            }
        }
    }

    fn routes(&self) -> Routes<'_> {
        match &self.policy.protocol {
            ServerProtocol::Detect { http, .. }
            | ServerProtocol::Http1(http)
            | ServerProtocol::Http2(http) => Routes::Http(&http.routes),
            ServerProtocol::Grpc(routes) => Routes::Grpc(routes),
            // A peer may say that it sends HTTP to a port that we take for opaque; the server's
            // authorizations then judge each request.
            ServerProtocol::Opaque | ServerProtocol::Tls => Routes::Http(opaque_routes()),
        }
    }
}

/// Whether a rule of any route looks at headers.
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

/// The routes of a port without HTTP policy.
fn opaque_routes() -> &'static [mesh_core::policy::inbound::HttpRoute] {
    static ROUTES: std::sync::LazyLock<[mesh_core::policy::inbound::HttpRoute; 1]> =
        std::sync::LazyLock::new(|| [default_http_route()]);
    &*ROUTES
}

impl Granted {
    pub(super) fn observers(&self) -> Observers {
        self.handles.observers.clone()
    }

    /// How much of the path the route's match took; redirects need it.
    pub(super) fn prefix(&self) -> Option<usize> {
        self.found.prefix
    }

    pub(super) fn filters(&self) -> &[Filter] {
        let Found { route, rule, .. } = self.found;
        match self.law.routes() {
            Routes::Http(routes) => &routes[route].rules[rule].then.filters,
            Routes::Grpc(routes) => &routes[route].rules[rule].then.filters,
        }
    }

    fn route(&self) -> &Meta {
        match self.law.routes() {
            Routes::Http(routes) => &routes[self.found.route].meta,
            Routes::Grpc(routes) => &routes[self.found.route].meta,
        }
    }
}

fn refusal(peer: &Peer, kind: Kind, what: &str) -> Error {
    let (client, server) = (peer.client, peer.dialled);
    Error::new(kind, format!("client {client}: server: {server}: {what}"))
}
