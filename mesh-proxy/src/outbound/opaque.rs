//! Opaque outbound connections: each is forwarded to one endpoint of one backend.
//!
//! If an endpoint cannot be reached, another is tried, because nothing has been sent yet.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_core::endpoint::{AddressFamily, Endpoint};
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, OutboundProtocol, RouteBackend, TcpRoute, TcpVerdict,
};
use mesh_core::resilience::{PeakEwma, Queue};
use mesh_core::route::HostMatch;
use mesh_runtime::metrics::Labels;
use tokio::time::Instant;

use self::backends::pick_by_weight;
pub(super) use self::error::OpaqueError;
use super::dial::EndpointDial;
use crate::balance::{BalanceQueue, BalanceSettings, PickedEndpoint, QueueError};
use crate::context::ProxyContext;
use crate::discovery::OutboundTarget;
use crate::limits::idle::IdleCache;
use crate::telemetry::labels;
use crate::telemetry::tcp::{TcpRouteError, TcpRouteFamilies};
use crate::transport::Io;
use crate::transport::header::SessionProtocol;

mod backends;
mod error;

/// Opens the opaque connections of one data thread. Balancers are kept for the idle time after
/// their last connection.
pub(super) struct Opaque {
    context: Rc<ProxyContext>,
    balancers: IdleCache<BalancerKey, BalanceQueue<EndpointDial>>,
}

/// A connection to an endpoint, and its guard.
pub(crate) struct Connected {
    pub(crate) io: Io,
    pub(crate) guard: ConnectionGuard,
}

/// Counts a connection on its endpoint and its route until it is dropped.
pub(crate) struct ConnectionGuard {
    families: TcpRouteFamilies,
    labels: Labels,
    error: Option<TcpRouteError>,
    /// Counts the connection on its endpoint.
    _in_use: InUse,
}

/// The picked endpoint and its balancer. `None` for traffic that is forwarded to a fixed address.
type InUse = Option<(Rc<BalanceQueue<EndpointDial>>, PickedEndpoint<EndpointDial>)>;

/// The route of a connection.
struct ConnectionRoute<'a> {
    kind: TrafficKind,
    parent: &'a Meta,
    /// The family of the address of the destination.
    family: Option<AddressFamily>,
    meta: &'a Meta,
    backends: &'a Distribution,
    verdict: &'a TcpVerdict,
}

/// The key of a balancer. The same destination has separate metric series for each route.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct BalancerKey {
    authority: Arc<str>,
    family: Option<AddressFamily>,
    load: PeakEwma,
    queue: Queue,
    parent: Meta,
    backend: Meta,
    kind: TrafficKind,
}

/// The kind of traffic, for the names of metric families.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum TrafficKind {
    Tcp,
    Tls,
}

/// Whether the policy forwards opaque connections.
pub(super) fn is_forwarded(protocol: &OutboundProtocol) -> bool {
    opaque_route(protocol).is_some_and(|route| route.verdict == TcpVerdict::Forward)
}

fn opaque_route(protocol: &OutboundProtocol) -> Option<&TcpRoute> {
    match protocol {
        OutboundProtocol::Opaque(route) | OutboundProtocol::Detect { opaque: route, .. } => {
            route.as_ref()
        }
        OutboundProtocol::Http1(_)
        | OutboundProtocol::Http2(_)
        | OutboundProtocol::Grpc(_)
        | OutboundProtocol::Tls(_) => None,
    }
}

impl Opaque {
    pub(super) fn new(context: Rc<ProxyContext>) -> Self {
        Self {
            balancers: IdleCache::new(context.config.discovery.outbound_idle),
            context,
        }
    }

    /// The balancers, for evictions.
    pub(super) fn balancers(&self) -> &IdleCache<BalancerKey, BalanceQueue<EndpointDial>> {
        &self.balancers
    }

    /// Opens a connection by the target's opaque route. Fails without such a route: the target's
    /// address may belong to a Service, or to a proxy that expects TLS.
    pub(super) async fn connect(&self, target: &OutboundTarget) -> Result<Connected, OpaqueError> {
        let parent = &target.policy.parent;
        let route = opaque_route(&target.policy.protocol).ok_or_else(|| OpaqueError::NoRoute {
            parent: parent.clone(),
        })?;
        let route = ConnectionRoute {
            kind: TrafficKind::Tcp,
            parent,
            family: target.destination.family(),
            meta: &route.meta,
            backends: &route.backends,
            verdict: &route.verdict,
        };
        self.open(route, None).await
    }

    /// Opens a connection by the route of a TLS server name.
    pub(super) async fn connect_tls(
        &self,
        target: &OutboundTarget,
        name: &Arc<str>,
    ) -> Result<Connected, OpaqueError> {
        let parent = &target.policy.parent;
        let none = || OpaqueError::NoTlsRoute {
            parent: parent.clone(),
            name: name.clone(),
        };
        let OutboundProtocol::Tls(routes) = &target.policy.protocol else {
            return Err(none());
        };
        let names = routes.iter().map(|route| route.snis.as_slice());
        let route = &routes[HostMatch::most_specific(names, Some(name)).ok_or_else(none)?];
        let route = ConnectionRoute {
            kind: TrafficKind::Tls,
            parent,
            family: target.destination.family(),
            meta: &route.meta,
            backends: &route.backends,
            verdict: &route.verdict,
        };
        self.open(route, Some(name.clone())).await
    }

    /// Opens one connection by a route. The close is counted when the guard is dropped, or here if
    /// the connection fails.
    async fn open(
        &self,
        route: ConnectionRoute<'_>,
        server_name: Option<Arc<str>>,
    ) -> Result<Connected, OpaqueError> {
        let mut labels = labels::tcp_route(route.parent, route.meta, route.fixed_address());
        if let Some(name) = server_name {
            labels.push_outside("hostname", name);
        }
        let families = match route.kind {
            TrafficKind::Tcp => &self.context.families.tcp_route,
            TrafficKind::Tls => &self.context.families.tls_route,
        };
        families.opened(&labels);
        match self.connect_by(&route).await {
            Ok((io, in_use)) => Ok(Connected {
                io,
                guard: ConnectionGuard {
                    families: families.clone(),
                    labels,
                    error: None,
                    _in_use: in_use,
                },
            }),
            Err(error) => {
                families.closed(&labels, Some(error.route_error()));
                Err(error)
            }
        }
    }

    async fn connect_by(&self, route: &ConnectionRoute<'_>) -> Result<(Io, InUse), OpaqueError> {
        route.check(route.verdict)?;
        let backend = self.choose(route)?;
        route.check(&backend.verdict)?;
        let meta = &backend.backend.meta;
        match &backend.backend.target {
            BackendTarget::None => Err(OpaqueError::NoBackend {
                backend: meta.clone(),
            }),
            BackendTarget::Forward(endpoint) => {
                let endpoint = Arc::new(Endpoint::clone(endpoint));
                let io = self
                    .dial(&EndpointDial::new(self.context.clone(), endpoint, None))
                    .await?;
                Ok((io, None))
            }
            BackendTarget::Balance {
                authority,
                load,
                queue,
            } => {
                let balancer = self.balancer(route, authority, *load, *queue, meta);
                let (io, picked) = self.balance(&balancer, meta).await?;
                Ok((io, Some((balancer, picked))))
            }
        }
    }

    /// Chooses the first available backend, or a random available one by weight. If none is, the
    /// connection may be the one that finds out whether an endpoint can be reached again.
    fn choose(&self, route: &ConnectionRoute<'_>) -> Result<Arc<RouteBackend>, OpaqueError> {
        self.find(route, BalanceQueue::is_available)
            .or_else(|| self.find(route, BalanceQueue::is_trial_due))
            .ok_or_else(|| OpaqueError::Unavailable {
                route: route.meta.clone(),
            })
    }

    fn find(
        &self,
        route: &ConnectionRoute<'_>,
        is_suitable: impl Fn(&BalanceQueue<EndpointDial>) -> bool,
    ) -> Option<Arc<RouteBackend>> {
        let is_suitable = |backend: &RouteBackend| match &backend.backend.target {
            BackendTarget::Balance {
                authority,
                load,
                queue,
            } => {
                is_suitable(&self.balancer(route, authority, *load, *queue, &backend.backend.meta))
            }
            BackendTarget::Forward(_) | BackendTarget::None => true,
        };
        let chosen = match route.backends {
            Distribution::Empty => None,
            Distribution::FirstAvailable(backends) => {
                backends.iter().find(|backend| is_suitable(backend))
            }
            Distribution::RandomAvailable(backends) => {
                let suitable: Vec<_> = backends
                    .iter()
                    .filter(|(backend, _)| is_suitable(backend))
                    .collect();
                pick_by_weight(&suitable)
            }
        };
        chosen.cloned()
    }

    /// Tries endpoints until one can be reached, for up to the fail-fast timeout.
    async fn balance(
        &self,
        balancer: &BalanceQueue<EndpointDial>,
        backend: &Meta,
    ) -> Result<(Io, PickedEndpoint<EndpointDial>), OpaqueError> {
        let started = Instant::now();
        loop {
            let picked = balancer
                .acquire(started)
                .await
                .map_err(|error| match error {
                    QueueError::FailFast => OpaqueError::FailFast {
                        backend: backend.clone(),
                    },
                    QueueError::LoadShed => OpaqueError::Unavailable {
                        route: backend.clone(),
                    },
                })?;
            match self.dial(&picked.value).await {
                Ok(io) => {
                    balancer.mark_reached(&picked);
                    // The load of an endpoint is its connect time, multiplied by its open
                    // connections.
                    picked.record_latency();
                    return Ok((io, picked));
                }
                Err(error) => {
                    balancer.mark_failed(&picked);
                    tracing::info!(
                        error = &error as &dyn std::error::Error,
                        "Failed to connect"
                    );
                }
            }
        }
    }

    async fn dial(&self, dial: &EndpointDial) -> Result<Io, OpaqueError> {
        dial.connect(SessionProtocol::Opaque)
            .await
            .map_err(|source| OpaqueError::Dial {
                addr: dial.endpoint().addr,
                source,
            })
    }

    fn balancer(
        &self,
        route: &ConnectionRoute<'_>,
        authority: &Arc<str>,
        load: PeakEwma,
        queue: Queue,
        backend: &Meta,
    ) -> Rc<BalanceQueue<EndpointDial>> {
        let key = BalancerKey {
            authority: authority.clone(),
            family: route.family,
            load,
            queue,
            parent: route.parent.clone(),
            backend: backend.clone(),
            kind: route.kind,
        };
        self.balancers
            .get_or_insert_with(key, |key| self.new_balancer(key))
    }

    fn new_balancer(&self, key: &BalancerKey) -> BalanceQueue<EndpointDial> {
        let context = self.context.clone();
        let families = match key.kind {
            TrafficKind::Tcp => &context.families.tcp_balancer,
            TrafficKind::Tls => &context.families.tls_balancer,
        };
        let metrics = families.balancer(&labels::balancer(&key.parent, &key.backend));
        let outbound = &context.config.outbound;
        let queue = outbound.tcp_queue.for_policy(key.queue);
        let settings = BalanceSettings {
            queue_capacity: queue.capacity,
            failfast: queue.failfast,
            backoff: outbound.connect_backoff,
        };
        let sets = context.discovery.endpoints(&key.authority, key.family);
        let authority = key.authority.clone();
        BalanceQueue::new(sets, key.load, &settings, None, metrics, move |endpoint| {
            EndpointDial::new(context.clone(), endpoint.clone(), Some(&authority))
        })
    }
}

impl AsMut<Io> for Connected {
    fn as_mut(&mut self) -> &mut Io {
        &mut self.io
    }
}

impl ConnectionRoute<'_> {
    fn check(&self, verdict: &TcpVerdict) -> Result<(), OpaqueError> {
        let route = || self.meta.clone();
        match verdict {
            TcpVerdict::Forward => Ok(()),
            TcpVerdict::Forbidden => Err(OpaqueError::Forbidden { route: route() }),
            TcpVerdict::Invalid(message) => Err(OpaqueError::Invalid {
                route: route(),
                message: message.clone(),
            }),
        }
    }

    /// Returns the address of traffic that is forwarded to a fixed address.
    fn fixed_address(&self) -> Option<SocketAddr> {
        let Distribution::FirstAvailable(backends) = self.backends else {
            return None;
        };
        match &backends.first()?.backend.target {
            BackendTarget::Forward(endpoint) => Some(endpoint.addr),
            BackendTarget::Balance { .. } | BackendTarget::None => None,
        }
    }
}

impl ConnectionGuard {
    /// Records that the connection failed instead of closing normally.
    pub(crate) fn set_aborted(&mut self) {
        self.error = Some(TcpRouteError::Unexpected);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.families.closed(&self.labels, self.error);
    }
}
