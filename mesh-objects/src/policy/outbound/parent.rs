//! The parent of routes.

use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::meta::Meta;

use super::{egress_network_meta, service_meta};
use crate::model::{EgressNetwork, Name, ParentKind, Service, TrafficSettings};
use crate::policy::settings::PolicySettings;
use crate::store::Store;

/// A port of a Service, or an address of an EgressNetwork.
#[derive(Clone, Copy)]
pub(super) struct RouteParent<'a> {
    pub(super) store: &'a Store,
    pub(super) settings: &'a PolicySettings,
    pub(super) object: ParentObject<'a>,
    pub(super) port: u16,
    pub(super) client_namespace: &'a Arc<str>,
}

#[derive(Clone, Copy)]
pub(super) enum ParentObject<'a> {
    Service {
        name: &'a Name,
        /// `None` if the Service does not exist. A target by name is balanced anyway.
        service: Option<&'a Service>,
    },
    EgressNetwork {
        network: &'a EgressNetwork,
        /// The original destination.
        addr: SocketAddr,
    },
}

impl<'a> RouteParent<'a> {
    pub(super) fn name(&self) -> &'a Name {
        match self.object {
            ParentObject::Service { name, .. } => name,
            ParentObject::EgressNetwork { network, .. } => &network.name,
        }
    }

    pub(super) fn kind(&self) -> ParentKind {
        match self.object {
            ParentObject::Service { .. } => ParentKind::Service,
            ParentObject::EgressNetwork { .. } => ParentKind::EgressNetwork,
        }
    }

    pub(super) fn meta(&self) -> Meta {
        match self.object {
            ParentObject::Service { name, .. } => service_meta(name, self.port),
            ParentObject::EgressNetwork { network, .. } => {
                egress_network_meta(&network.name, self.port)
            }
        }
    }

    /// The settings of the parent's annotations, which are the defaults of its routes.
    pub(super) fn traffic(&self) -> Option<&'a TrafficSettings> {
        match self.object {
            ParentObject::Service { service, .. } => service.map(|service| &service.traffic),
            ParentObject::EgressNetwork { network, .. } => Some(&network.traffic),
        }
    }
}

/// A Service without a cluster IP has no traffic that a route could apply to. The networks of an
/// EgressNetwork with routes may not be in the cluster.
pub(super) fn accepts_routes(parent: &RouteParent<'_>) -> bool {
    match parent.object {
        ParentObject::Service { service, .. } => service.is_some_and(Service::has_traffic),
        ParentObject::EgressNetwork { network, .. } => {
            network.overlap(&parent.settings.cluster_networks).is_none()
        }
    }
}
