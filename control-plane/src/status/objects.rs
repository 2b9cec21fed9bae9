//! The objects that decide about statuses. Without I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ipnet::IpNet;
use mesh_objects::model::{
    EgressNetwork, Key, Kind, Name, Object, ParentKind, ParentRef, ReportedKind, ReportedObject,
    ReportedSpec, Server, Service,
};

use crate::source::Change;

/// The objects that decide about statuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusObjects {
    pub(super) services: BTreeMap<Name, Arc<Service>>,
    pub(super) servers: BTreeMap<Name, Arc<Server>>,
    pub(super) reported: BTreeMap<ReportedKey, Arc<ReportedObject>>,
    pub(super) cluster_networks: Arc<[IpNet]>,
    claims: Claims,
}

/// The name of an object with a status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReportedKey {
    pub(crate) kind: ReportedKind,
    pub(crate) name: Name,
}

/// The precedence of kinds of routes with the same parent (GEP-1426): the first kind that a parent
/// has wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteRank {
    Grpc,
    Http,
    Tls,
    Tcp,
}

/// The routes that reference each parent.
#[derive(Clone, Debug, Default)]
struct Claims(Arc<HashMap<ParentKey, Vec<Claim>>>);

/// A parent as in a reference: routes for all ports do not conflict with those for one port.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ParentKey {
    egress: bool,
    name: Name,
    port: Option<u16>,
    section: Option<Arc<str>>,
}

#[derive(Debug)]
struct Claim {
    rank: RouteRank,
    route: ReportedKey,
}

impl StatusObjects {
    pub(crate) fn new(cluster_networks: &[IpNet]) -> Self {
        Self {
            cluster_networks: cluster_networks.into(),
            ..Self::default()
        }
    }

    /// Returns whether a status may depend on one of the changes.
    pub(crate) fn may_depend_on(batch: &[Change]) -> bool {
        batch.iter().any(|change| match change {
            Change::Apply(object) => is_relevant(object.key().kind),
            Change::Delete(key) => is_relevant(key.kind),
            Change::Replace(_) => true,
        })
    }

    /// Applies changes and returns whether a status may depend on one of them.
    pub(crate) fn apply(&mut self, batch: &[Change]) -> bool {
        let mut changed = false;
        for change in batch {
            changed |= match change {
                Change::Apply(object) => self.insert(object),
                Change::Delete(key) => self.remove(key),
                Change::Replace(objects) => {
                    *self = Self {
                        cluster_networks: self.cluster_networks.clone(),
                        ..Self::default()
                    };
                    for object in objects {
                        self.insert(object);
                    }
                    true
                }
            };
        }
        if changed {
            self.claims = Claims::new(self.reported.values());
        }
        changed
    }

    fn insert(&mut self, object: &Object) -> bool {
        let Key { name, .. } = object.key();
        match object {
            Object::Service(service) => {
                self.services.insert(name, service.clone());
            }
            Object::Server(server) => {
                self.servers.insert(name, server.clone());
            }
            Object::Reported(object) => {
                let kind = object.kind;
                self.reported
                    .insert(ReportedKey { kind, name }, object.clone());
            }
            _ => return false,
        }
        true
    }

    fn remove(&mut self, key: &Key) -> bool {
        match key.kind {
            Kind::Service => self.services.remove(&key.name).is_some(),
            Kind::Server => self.servers.remove(&key.name).is_some(),
            Kind::Reported(kind) => {
                let name = key.name.clone();
                self.reported.remove(&ReportedKey { kind, name }).is_some()
            }
            _ => false,
        }
    }

    /// Returns an EgressNetwork, or `None` inside if it is invalid.
    pub(super) fn egress_network(&self, name: &Name) -> Option<Option<&EgressNetwork>> {
        let key = ReportedKey {
            kind: ReportedKind::EgressNetwork,
            name: name.clone(),
        };
        match &self.reported.get(&key)?.spec {
            ReportedSpec::EgressNetwork(network) => Some(network.as_deref()),
            _ => None,
        }
    }

    /// Returns the route that takes precedence over this one for a parent: a route of another kind
    /// with the same reference, which applies to the same clients. Those of the parent's namespace
    /// apply to all clients, others only to clients of their own namespace.
    pub(super) fn conflicting(
        &self,
        route: &ReportedObject,
        parent: &ParentRef,
    ) -> Option<&ReportedKey> {
        let rank = rank(route.kind)?;
        let clients = [&parent.name.namespace, &route.name.namespace];
        let claims = self.claims.0.get(&ParentKey::new(parent)?)?;
        claims
            .iter()
            .filter(|claim| claim.rank < rank && clients.contains(&&claim.route.name.namespace))
            .min_by_key(|claim| (claim.rank, &claim.route))
            .map(|claim| &claim.route)
    }
}

fn is_relevant(kind: Kind) -> bool {
    matches!(kind, Kind::Service | Kind::Server | Kind::Reported(_))
}

/// Returns the rank of a kind of routes.
pub(super) fn rank(kind: ReportedKind) -> Option<RouteRank> {
    match kind {
        ReportedKind::GatewayGrpcRoute => Some(RouteRank::Grpc),
        ReportedKind::PolicyHttpRoute | ReportedKind::GatewayHttpRoute => Some(RouteRank::Http),
        ReportedKind::GatewayTlsRoute => Some(RouteRank::Tls),
        ReportedKind::GatewayTcpRoute => Some(RouteRank::Tcp),
        ReportedKind::RateLimitPolicy | ReportedKind::EgressNetwork => None,
    }
}

impl ReportedKey {
    pub(crate) fn new(object: &ReportedObject) -> Self {
        Self {
            kind: object.kind,
            name: object.name.clone(),
        }
    }
}

impl Claims {
    /// Routes that have no effect take precedence over none.
    fn new<'a>(objects: impl Iterator<Item = &'a Arc<ReportedObject>>) -> Self {
        let mut claims: HashMap<ParentKey, Vec<Claim>> = HashMap::new();
        for object in objects.filter(|object| object.problem.is_none()) {
            let (Some(rank), ReportedSpec::Route(route)) = (rank(object.kind), &object.spec) else {
                continue;
            };
            for parent in &route.parents {
                if let Some(key) = ParentKey::new(parent) {
                    claims.entry(key).or_default().push(Claim {
                        rank,
                        route: ReportedKey::new(object),
                    });
                }
            }
        }
        Self(Arc::new(claims))
    }
}

impl ParentKey {
    /// Returns `None` for a parent that has routes of several kinds: which of them apply to a
    /// Server depends on its protocol.
    fn new(parent: &ParentRef) -> Option<Self> {
        let egress = match parent.kind {
            ParentKind::Service => false,
            ParentKind::EgressNetwork => true,
            ParentKind::Server | ParentKind::Other => return None,
        };
        Some(Self {
            egress,
            name: parent.name.clone(),
            port: parent.port,
            section: parent.section.clone(),
        })
    }
}
