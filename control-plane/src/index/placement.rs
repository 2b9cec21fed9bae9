//! Where clients and endpoints are, for the choice by locality.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use mesh_core::locality::{Failover, Level, Locality, Placed};
use mesh_objects::store::Store;

/// Where a client or an endpoint is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: Option<Arc<str>>,
    pub(crate) zone: Option<Arc<str>>,
    pub(crate) region: Option<Arc<str>>,
    pub(crate) in_other_cluster: bool,
}

/// An endpoint that is ready, or that is expected to become ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedEndpoint {
    pub(crate) place: Place,
    pub(crate) ready: bool,
}

/// The endpoints that a client uses.
pub(crate) struct Chosen {
    /// The level that they share with the client, or `all`; `None` without fail-over.
    pub(crate) level: Option<&'static str>,
    pub(crate) used: HashSet<SocketAddr>,
}

/// The level of all endpoints.
const ALL: &str = "all";

/// The endpoints of one Service or several, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(BTreeMap<SocketAddr, PlacedEndpoint>);

impl Place {
    /// Returns the place of a client in this cluster, as far as the levels of `failover` need it.
    /// Clients with the same place have the same choice.
    pub(crate) fn of_client(
        store: &Store,
        node: Option<&Arc<str>>,
        failover: Option<&Failover>,
    ) -> Self {
        let has = |level| failover.is_some_and(|failover| failover.has(level));
        let zone = node.and_then(|node| store.zone_of_node(node)).cloned();
        Self {
            region: node
                .filter(|_| has(Level::Region))
                .and_then(|node| region(store, Some(node), zone.as_ref())),
            node: node.filter(|_| has(Level::Node)).cloned(),
            zone,
            in_other_cluster: false,
        }
    }

    fn locality(&self) -> Locality<'_> {
        Locality {
            node: self.node.as_deref(),
            zone: self.zone.as_deref(),
            region: self.region.as_deref(),
            in_other_cluster: self.in_other_cluster,
        }
    }
}

/// Returns the region of a node of this cluster, or else of a zone that one of its nodes is in.
pub(super) fn region(
    store: &Store,
    node: Option<&Arc<str>>,
    zone: Option<&Arc<str>>,
) -> Option<Arc<str>> {
    let of_node = node.and_then(|node| store.node(node)?.region.as_ref());
    let of_zone = || store.region_of_zone(zone?);
    of_node.or_else(of_zone).cloned()
}

impl PlacedEndpoint {
    fn placed(&self) -> Placed<'_> {
        Placed {
            locality: self.place.locality(),
            ready: self.ready,
        }
    }
}

impl Places {
    /// Adds an endpoint. Of an address in two clusters the ready endpoint counts, or the first.
    pub(crate) fn add(&mut self, addr: SocketAddr, endpoint: PlacedEndpoint) {
        let known = self.0.entry(addr).or_insert_with(|| endpoint.clone());
        if endpoint.ready && !known.ready {
            *known = endpoint;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SocketAddr, &PlacedEndpoint)> {
        self.0.iter().map(|(addr, placed)| (*addr, placed))
    }

    /// Returns whether one of the endpoints is on a node of this cluster.
    pub(crate) fn have_node(&self, node: &Arc<str>) -> bool {
        let mut places = self.0.values().map(|placed| &placed.place);
        places.any(|place| place.node.as_ref() == Some(node))
    }

    pub(super) fn set_not_ready(&mut self, addr: SocketAddr) {
        if let Some(placed) = self.0.get_mut(&addr) {
            placed.ready = false;
        }
    }

    /// Returns the endpoints that a client uses; without fail-over all ready ones.
    pub(crate) fn choose(&self, failover: Option<&Failover>, client: &Place) -> Chosen {
        let Some(failover) = failover else {
            let ready = self.0.iter().filter(|(_, placed)| placed.ready);
            return Chosen {
                level: None,
                used: ready.map(|(addr, _)| *addr).collect(),
            };
        };
        let endpoints: Vec<Placed<'_>> = self.0.values().map(PlacedEndpoint::placed).collect();
        let choice = failover.choose(client.locality(), &endpoints);
        let used = self.0.keys().zip(choice.used);
        let used = used.filter(|(_, used)| *used).map(|(addr, _)| *addr);
        Chosen {
            level: Some(choice.level.map_or(ALL, Level::as_str)),
            used: used.collect(),
        }
    }
}

impl FromIterator<(SocketAddr, PlacedEndpoint)> for Places {
    fn from_iter<I: IntoIterator<Item = (SocketAddr, PlacedEndpoint)>>(endpoints: I) -> Self {
        Self(endpoints.into_iter().collect())
    }
}
