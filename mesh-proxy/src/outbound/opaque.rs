//! Connections whose bytes nobody interprets: a backend is chosen, one of its endpoints is reached,
//! and that is where all bytes go.
//!
//! An endpoint that cannot be reached is exchanged for another, as nothing has been sent yet.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    BackendTarget, Distribution, OutboundProtocol, RouteBackend, TcpVerdict,
};
use mesh_core::resilience::PeakEwma;
use mesh_core::route::HostMatch;
use mesh_runtime::metrics::Labels;
use tokio::time::Instant;

use self::backends::pick_by_weight;
pub(super) use self::error::OpaqueError;
use super::dial::EndpointDial;
use crate::balance::{Picked, Refusal, Service, Settings};
use crate::discovery::OutboundTarget;
use crate::idle::IdleCache;
use crate::telemetry::labels;
use crate::telemetry::tcp::{TcpRouteError, TcpRouteFamilies};
use crate::transport::Io;
use crate::transport::header::Session;
use crate::worker::Worker;

mod backends;
mod error;

/// The opaque side of one data thread: its balancers, which live while connections use them and a
/// little longer.
pub(super) struct Opaque {
    worker: Rc<Worker>,
    services: IdleCache<ServiceKey, Service<EndpointDial>>,
}

/// A connection to an endpoint, and what must be kept as long as it lasts.
pub(super) struct Connected {
    pub(super) io: Io,
    pub(super) guard: Guard,
}

/// Counts a connection against its endpoint and its route until it is dropped.
pub(super) struct Guard {
    families: TcpRouteFamilies,
    labels: Labels,
    error: Option<TcpRouteError>,
    /// Never looked at: the balancer counts the endpoint's connections by it.
    _in_use: InUse,
}

/// The endpoint that was picked, and the balancer it belongs to. Absent when there was no choice.
type InUse = Option<(Rc<Service<EndpointDial>>, Picked<EndpointDial>)>;

/// A route, and what a connection is on it.
struct Leg<'a> {
    kind: Kind,
    parent: &'a Meta,
    route: &'a Meta,
    backends: &'a Distribution,
    verdict: &'a TcpVerdict,
}

/// Which balancer: the same destination behind different routes has different series.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ServiceKey {
    authority: Arc<str>,
    load: PeakEwma,
    parent: Meta,
    backend: Meta,
    kind: Kind,
}

/// What is carried, as the names of the metrics have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Tcp,
    Tls,
}

impl Opaque {
    pub(super) fn new(worker: Rc<Worker>) -> Self {
        Self {
            services: IdleCache::new(worker.config.discovery.outbound_idle),
            worker,
        }
    }

    /// A connection by the target's opaque route. A target without one is not connected to in
    /// another way: its address may be that of a Service, or of a proxy that expects TLS.
    pub(super) async fn connect(&self, target: &OutboundTarget) -> Result<Connected, OpaqueError> {
        let parent = &target.policy.parent;
        let (OutboundProtocol::Opaque(Some(route))
        | OutboundProtocol::Detect {
            opaque: Some(route),
            ..
        }) = &target.policy.protocol
        else {
            return Err(OpaqueError::NoRoute {
                parent: parent.clone(),
            });
        };
        let leg = Leg {
            kind: Kind::Tcp,
            parent,
            route: &route.meta,
            backends: &route.backends,
            verdict: &route.verdict,
        };
        self.enter(leg, None).await
    }

    /// A connection by the route of this server name.
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
        let route = &routes[HostMatch::closest(names, Some(name)).ok_or_else(none)?];
        let leg = Leg {
            kind: Kind::Tls,
            parent,
            route: &route.meta,
            backends: &route.backends,
            verdict: &route.verdict,
        };
        self.enter(leg, Some(name.clone())).await
    }

    /// Takes one connection through a route. The close is counted when its guard goes, or here when
    /// nothing could be connected.
    async fn enter(
        &self,
        leg: Leg<'_>,
        server_name: Option<Arc<str>>,
    ) -> Result<Connected, OpaqueError> {
        let mut labels = labels::tcp_route(leg.parent, leg.route, leg.fixed_address());
        if let Some(name) = server_name {
            labels.push_outside("hostname", name);
        }
        let families = match leg.kind {
            Kind::Tcp => &self.worker.families.tcp_route,
            Kind::Tls => &self.worker.families.tls_route,
        };
        families.opened(&labels);
        match self.connect_leg(&leg).await {
            Ok((io, in_use)) => Ok(Connected {
                io,
                guard: Guard {
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

    async fn connect_leg(&self, leg: &Leg<'_>) -> Result<(Io, InUse), OpaqueError> {
        leg.check(leg.verdict)?;
        let backend = self.choose(leg)?;
        leg.check(&backend.verdict)?;
        let meta = &backend.backend.meta;
        match &backend.backend.target {
            BackendTarget::None => Err(OpaqueError::NoBackend {
                backend: meta.clone(),
            }),
            BackendTarget::Forward(endpoint) => {
                let endpoint = Arc::new(Endpoint::clone(endpoint));
                let io = self
                    .dial(&EndpointDial::new(self.worker.clone(), endpoint, None))
                    .await?;
                Ok((io, None))
            }
            BackendTarget::Balance { authority, load } => {
                let service = self.service(leg, authority, *load, meta);
                let (io, picked) = self.balance(&service, meta).await?;
                Ok((io, Some((service, picked))))
            }
        }
    }

    /// The first backend that is available, or a random one of them by weight.
    fn choose(&self, leg: &Leg<'_>) -> Result<Arc<RouteBackend>, OpaqueError> {
        let is_available = |backend: &RouteBackend| match &backend.backend.target {
            BackendTarget::Balance { authority, load } => self
                .service(leg, authority, *load, &backend.backend.meta)
                .is_available(),
            BackendTarget::Forward(_) | BackendTarget::None => true,
        };
        let chosen = match leg.backends {
            Distribution::Empty => None,
            Distribution::FirstAvailable(backends) => {
                backends.iter().find(|backend| is_available(backend))
            }
            Distribution::RandomAvailable(backends) => {
                let available: Vec<_> = backends
                    .iter()
                    .filter(|(backend, _)| is_available(backend))
                    .collect();
                pick_by_weight(&available)
            }
        };
        chosen.cloned().ok_or_else(|| OpaqueError::Unavailable {
            route: leg.route.clone(),
        })
    }

    /// Tries endpoints until one can be reached, for as long as fail-fast allows.
    async fn balance(
        &self,
        service: &Service<EndpointDial>,
        backend: &Meta,
    ) -> Result<(Io, Picked<EndpointDial>), OpaqueError> {
        let began = Instant::now();
        loop {
            let mut picked = service
                .acquire(began)
                .await
                .map_err(|refusal| match refusal {
                    Refusal::FailFast => OpaqueError::FailFast {
                        backend: backend.clone(),
                    },
                    Refusal::Shed => OpaqueError::Unavailable {
                        route: backend.clone(),
                    },
                })?;
            match self.dial(&picked.value).await {
                Ok(io) => {
                    service.reached(&picked);
                    // The load of an endpoint is the time it takes to connect, times its open
                    // connections.
                    picked.measure();
                    return Ok((io, picked));
                }
                Err(error) => {
                    service.failed(&picked);
                    tracing::info!(
                        error = &error as &dyn std::error::Error,
                        "Failed to connect"
                    );
                }
            }
        }
    }

    async fn dial(&self, dial: &EndpointDial) -> Result<Io, OpaqueError> {
        dial.connect(Session::Opaque)
            .await
            .map_err(|source| OpaqueError::Dial {
                addr: dial.endpoint().addr,
                source,
            })
    }

    fn service(
        &self,
        leg: &Leg<'_>,
        authority: &Arc<str>,
        load: PeakEwma,
        backend: &Meta,
    ) -> Rc<Service<EndpointDial>> {
        let key = ServiceKey {
            authority: authority.clone(),
            load,
            parent: leg.parent.clone(),
            backend: backend.clone(),
            kind: leg.kind,
        };
        self.services.find_or(key, |key| self.new_service(key))
    }

    fn new_service(&self, key: &ServiceKey) -> Service<EndpointDial> {
        let worker = self.worker.clone();
        let families = match key.kind {
            Kind::Tcp => &worker.families.tcp_balancer,
            Kind::Tls => &worker.families.tls_balancer,
        };
        let metrics = families.balancer(&labels::balancer(&key.parent, &key.backend));
        let outbound = &worker.config.outbound;
        let settings = Settings {
            queue_capacity: outbound.tcp_queue.capacity,
            failfast: outbound.tcp_queue.failfast,
            backoff: outbound.connect_backoff,
        };
        let sets = worker.discovery.endpoints(&key.authority);
        let authority = key.authority.clone();
        Service::new(sets, key.load, &settings, metrics, move |endpoint| {
            EndpointDial::new(worker.clone(), endpoint.clone(), Some(&authority))
        })
    }
}

impl Leg<'_> {
    fn check(&self, verdict: &TcpVerdict) -> Result<(), OpaqueError> {
        let route = || self.route.clone();
        match verdict {
            TcpVerdict::Forward => Ok(()),
            TcpVerdict::Forbidden => Err(OpaqueError::Forbidden { route: route() }),
            TcpVerdict::Invalid(message) => Err(OpaqueError::Invalid {
                route: route(),
                message: message.clone(),
            }),
        }
    }

    /// The address of traffic that is not balanced.
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

impl Guard {
    /// The connection did not end by itself.
    pub(super) fn broke_off(&mut self) {
        self.error = Some(TcpRouteError::Unexpected);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.families.closed(&self.labels, self.error);
    }
}
