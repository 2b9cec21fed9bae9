//! Services that have the endpoints of other Services, their members.

use std::collections::BTreeMap;
use std::sync::Arc;

use mesh_core::locality::{Failover, Level};
use mesh_objects::model::Members;
use mesh_objects::store::Store;

use super::placement::{Place, PlacedEndpoint};
use super::selection::EndpointsKey;

/// The members of a Service, and how a client chooses from their endpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Membership {
    pub(crate) members: Arc<Members>,
    /// `None` if the client uses all of them.
    pub(crate) preference: Option<Preference>,
}

/// The localities that a client prefers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Preference {
    pub(crate) failover: Arc<Failover>,
    pub(crate) client: Place,
    /// The regions of this cluster's zones. Other clusters' zones of the same names are in the same
    /// regions.
    regions: BTreeMap<Arc<str>, Arc<str>>,
}

impl Membership {
    /// Returns `None` for a Service that does not exist or has its own endpoints.
    pub(super) fn new(store: &Store, key: &EndpointsKey) -> Option<Self> {
        let service = store.service(&key.service)?;
        let preference = service.failover.as_ref().map(|failover| Preference {
            client: Place::of_client(store, key.node.as_ref(), Some(failover)),
            regions: if failover.has(Level::Region) {
                let cloned =
                    |(zone, region): (&Arc<str>, &Arc<str>)| (zone.clone(), region.clone());
                store.regions().map(cloned).collect()
            } else {
                BTreeMap::new()
            },
            failover: failover.clone(),
        });
        Some(Self {
            members: service.members.clone()?,
            preference,
        })
    }
}

impl Preference {
    /// Returns the same for clients on any node without an endpoint, which are then equal.
    pub(crate) fn without_node(&self) -> Self {
        let mut preference = self.clone();
        preference.client.node = None;
        preference
    }

    /// Returns an endpoint with the region that this cluster knows of its zone.
    pub(crate) fn placed(&self, endpoint: &PlacedEndpoint) -> PlacedEndpoint {
        let mut placed = endpoint.clone();
        let Place { zone, region, .. } = &mut placed.place;
        if region.is_none() {
            let known = zone.as_ref().and_then(|zone| self.regions.get(zone));
            *region = known.cloned();
        }
        placed
    }
}
