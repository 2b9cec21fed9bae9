//! Inbound connections: authorizes clients and forwards their traffic to the application.
//!
//! Runs on the data threads. [`accept`] resolves the port, TLS and protocol of a connection. Then
//! [`tcp`] authorizes it once and ends it when the policy changes, or [`http`] authorizes each
//! request. Connections to the proxy's own inbound port come from other proxies, which name the
//! target port in a transport header ([`direct`]), or a Service if this proxy is a gateway
//! ([`gateway`]). [`policy`] makes all policy decisions.

use std::net::SocketAddr;
use std::rc::Rc;

use mesh_runtime::metrics::OTHER;

use self::app::Apps;
use self::error::ConnectionError;
use self::peer::Peer;
use self::policy::{ActiveEnforcer, PolicyEnforcer};
use self::profile::Profiles;
use crate::classify::Classifier;
use crate::context::ProxyContext;
use crate::http::server::Server;
use crate::limits::idle::IdleCache;
use crate::outbound::Outbound;
use crate::telemetry::labels::{self, Direction, ServerTls, TargetAddr};

mod accept;
mod admin;
mod app;
mod direct;
mod error;
mod gateway;
mod http;
mod peer;
mod policy;
mod profile;
mod tcp;

/// Serves the inbound connections of one data thread.
pub struct Inbound {
    context: Rc<ProxyContext>,
    classifier: Classifier,
    server: Server,
    apps: Apps,
    /// Connections of the same client identity to the same address share an enforcer and its metric
    /// handles.
    enforcers: IdleCache<(SocketAddr, ServerTls), PolicyEnforcer>,
    profiles: Profiles,
    /// Reaches the Services of this cluster, if this proxy is a gateway for others.
    gateway: Option<Rc<Outbound>>,
}

/// The most enforcers of one data thread, and the most HTTP clients of the application. A client
/// needs no authorization to have one made: a scan of all ports makes one for each. An enforcer
/// takes a few kilobytes, so all of them 16 MiB; a pod with more kinds of clients at a time (port
/// and identity) is not known.
pub(crate) const MAX_ENFORCERS: usize = 4096;

/// From this number of enforcers on, clients with opaque TLS and a new server name share one per
/// address. An enforcer takes a few kilobytes until the idle time after its last connection.
pub(crate) const MAX_SNI_ENFORCERS: usize = 1024;

impl Inbound {
    pub(crate) fn new(context: Rc<ProxyContext>) -> Self {
        let keep = context.config.discovery.inbound_idle;
        let to_app = context.families.tcp.transport(labels::inbound_connect());
        Self {
            classifier: Classifier::new(Direction::Inbound, &context),
            server: context.http_server(Direction::Inbound),
            apps: Apps::new(&context, to_app),
            enforcers: IdleCache::with_limit(keep, MAX_ENFORCERS),
            profiles: Profiles::new(context.clone()),
            gateway: None,
            context,
        }
    }

    /// Lets proxies of other clusters reach Services through `outbound`, if this is a gateway.
    #[must_use]
    pub(crate) fn with_gateway(mut self, outbound: &Rc<Outbound>) -> Self {
        let is_gateway = self.context.config.inbound.is_gateway();
        self.gateway = is_gateway.then(|| outbound.clone());
        self
    }

    /// Returns the policy enforcer for this peer.
    fn enforcer(&self, peer: &Peer) -> Result<ActiveEnforcer, ConnectionError> {
        let mut key = (peer.target, peer.tls.clone());
        // Clients choose the name before they are authorized, and no decision depends on it.
        let is_named = matches!(key.1, ServerTls::Opaque { sni: Some(_) });
        if is_named && self.enforcers.count() >= MAX_SNI_ENFORCERS && !self.enforcers.contains(&key)
        {
            key.1 = ServerTls::Opaque {
                sni: Some(OTHER.into()),
            };
        }
        if let Some(enforcer) = self
            .enforcers
            .get(&key)
            .and_then(|enforcer| enforcer.activate())
        {
            return Ok(enforcer);
        }
        if !self.enforcers.contains(&key) && !self.enforcers.has_room() {
            return Err(ConnectionError::TooManyKindsOfClients);
        }
        loop {
            let enforcer = PolicyEnforcer::new(&self.context, key.0, key.1.clone())?;
            // Fails only if the port's watch has been closed since.
            if let Some(enforcer) = self.enforcers.insert(key.clone(), enforcer).activate() {
                return Ok(enforcer);
            }
        }
    }

    /// As [`Inbound::enforcer`], for a new connection: waits for the first policy of its port.
    async fn enforcer_with_policy(&self, peer: &Peer) -> Result<ActiveEnforcer, ConnectionError> {
        let enforcer = self.enforcer(peer)?;
        if !enforcer.has_received_policy() {
            // Boxed because it is rare, and each connection's future would reserve memory for it.
            Box::pin(enforcer.wait_for_policy()).await;
        }
        Ok(enforcer)
    }

    /// Evicts idle values, on a timer, until the proxy ends: after a scan of ports, no connection
    /// may follow that would do so.
    pub(crate) async fn evict_idle(self: Rc<Self>) {
        loop {
            tokio::time::sleep(self.enforcers.eviction_interval()).await;
            self.enforcers.evict_idle();
            self.apps.clients().evict_idle();
            self.profiles.names().evict_idle();
        }
    }

    /// Evicts all that is not in use, because memory is short.
    pub(crate) fn evict_unused(&self) {
        self.enforcers.evict_unused();
        self.apps.clients().evict_unused();
        self.profiles.names().evict_unused();
    }

    /// Makes `count` enforcers that are in use: of one port, and clients with different names.
    #[cfg(test)]
    pub(crate) fn hold_enforcers(&self, count: usize) -> Vec<impl Sized + use<>> {
        use mesh_core::identity::Identity;
        let addr: SocketAddr = ([10, 77, 0, 1], 9).into();
        let client = |n| {
            let id = Identity::parse(&format!("client-{n}.shop.test")).unwrap();
            self.enforcer(&Peer {
                client: addr,
                target: addr,
                dialled: addr,
                tls: ServerTls::Established { client: Some(id) },
            })
        };
        (0..count).map(|n| client(n).ok().unwrap()).collect()
    }

    #[cfg(test)]
    pub(crate) fn enforcers(&self) -> usize {
        self.enforcers.count()
    }

    /// Makes an HTTP client of the application for each of `count` ports, as requests do.
    #[cfg(test)]
    pub(crate) fn make_app_clients(&self, count: u16) {
        for port in 1..=count {
            self.apps.client(([10, 77, 0, 1], port).into());
        }
    }

    #[cfg(test)]
    pub(crate) fn app_clients(&self) -> usize {
        self.apps.clients().count()
    }

    #[cfg(test)]
    pub(crate) fn profiles(&self) -> usize {
        self.profiles.count()
    }

    /// Returns the label values of an address that a client has dialled.
    fn labelled(&self, target: SocketAddr) -> TargetAddr {
        TargetAddr::new(target, &self.context.config.inbound.ports)
    }
}
