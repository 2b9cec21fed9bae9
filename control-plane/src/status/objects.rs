//! The objects that decide about statuses. Without I/O.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ipnet::IpNet;
use mesh_objects::model::{
    EgressNetwork, Key, Kind, Name, Object, ParentRef, ReportedKind, ReportedObject, ReportedSpec,
    Server, Service,
};
use mesh_objects::policy::attachment::{Claim, RouteParents, conflict, grpc_route_of_server};

use mesh_cluster::source::Change;

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

/// The routes that reference each parent.
#[derive(Clone, Debug, Default)]
struct Claims(Arc<HashMap<ParentRef, Vec<Claimant>>>);

/// A route that references a parent, and the place of the reference.
#[derive(Debug)]
struct Claimant {
    route: Arc<ReportedObject>,
    at: usize,
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

    /// Returns the claim of another route that takes precedence over a reference.
    pub(super) fn conflicting(&self, own: Claim<'_>) -> Option<Claim<'_>> {
        let claims = self.claims.0.get(own.parent)?;
        let claims = claims
            .iter()
            .filter_map(|claim| parents(&claim.route)?.claims().nth(claim.at));
        let clients = [&*own.parent.name.namespace, &*own.route.namespace];
        conflict(own.rank, own.parent, clients, claims)
    }

    /// Returns the GRPCRoute of a Server. Routes that have no effect do not count.
    pub(super) fn grpc_route_of(&self, server: &Server) -> Option<&Name> {
        let namespace = &server.name.namespace;
        let first = ReportedKey {
            kind: ReportedKind::GatewayGrpcRoute,
            name: Name::new(namespace, ""),
        };
        let usable = self
            .reported
            .range(first..)
            .take_while(|(key, _)| {
                key.kind == ReportedKind::GatewayGrpcRoute && key.name.namespace == *namespace
            })
            .filter(|(_, route)| route.problem.is_none());
        grpc_route_of_server(server, usable.filter_map(|(_, route)| parents(route)))
    }
}

fn is_relevant(kind: Kind) -> bool {
    matches!(kind, Kind::Service | Kind::Server | Kind::Reported(_))
}

/// Returns the parents of a route.
pub(super) fn parents(object: &ReportedObject) -> Option<RouteParents<'_>> {
    match &object.spec {
        ReportedSpec::Route(route) => Some(RouteParents {
            kind: object.kind.indexed(),
            name: &object.name,
            parents: &route.parents,
        }),
        _ => None,
    }
}

impl Claims {
    /// Routes that have no effect take precedence over none.
    fn new<'a>(objects: impl Iterator<Item = &'a Arc<ReportedObject>>) -> Self {
        let mut claims: HashMap<ParentRef, Vec<Claimant>> = HashMap::new();
        for object in objects.filter(|object| object.problem.is_none()) {
            let references = parents(object).into_iter().flat_map(RouteParents::claims);
            for (at, claim) in references.enumerate() {
                let route = object.clone();
                let claimants = claims.entry(claim.parent.clone()).or_default();
                claimants.push(Claimant { route, at });
            }
        }
        Self(Arc::new(claims))
    }
}
