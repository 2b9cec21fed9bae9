//! The routes attached to a parent.

use std::sync::Arc;

use mesh_objects::model::{ConnectionRoute, GrpcRoute, HttpRoute, ParentKind, ParentRef, Route};

use super::parent::{ParentObject, RouteParent, accepts_routes};
use crate::index::inbound::age_order;
use crate::index::store;

/// The routes of each kind that are accepted for a parent, the oldest first.
pub(super) struct AttachedRoutes<'a> {
    pub(super) grpc: Vec<&'a GrpcRoute>,
    pub(super) http: Vec<&'a HttpRoute>,
    pub(super) tls: Vec<&'a ConnectionRoute>,
    pub(super) tcp: Vec<&'a ConnectionRoute>,
}

impl<'a> AttachedRoutes<'a> {
    /// Of routes of different kinds with the same parent reference, only those of the first kind
    /// are accepted, in the order of the fields.
    pub(super) fn find(parent: &RouteParent<'a>) -> Self {
        let store = parent.store;
        let mut taken = Vec::new();
        let grpc = attached(parent, &mut taken, |namespace| {
            store.grpc_routes_in(namespace)
        });
        let http = attached(parent, &mut taken, |namespace| {
            store.http_routes_in(namespace)
        });
        let tls = attached(parent, &mut taken, |namespace| {
            store.tls_routes_in(namespace)
        });
        let tcp = attached(parent, &mut taken, |namespace| {
            store.tcp_routes_in(namespace)
        });
        Self {
            grpc,
            http,
            tls,
            tcp,
        }
    }
}

/// Returns the routes of a kind whose references are not taken by another kind, and adds their
/// references. Routes of the parent's namespace apply to every client, those of the client's
/// namespace only to that client.
fn attached<'a, M: 'a, I: Iterator<Item = &'a Route<M>>>(
    parent: &RouteParent<'a>,
    taken: &mut Vec<&'a ParentRef>,
    routes_in: impl Fn(&'a Arc<str>) -> I,
) -> Vec<&'a Route<M>> {
    if !accepts_routes(parent) {
        return Vec::new();
    }
    let own = &parent.name().namespace;
    let client = parent.client_namespace;
    let namespaces = std::iter::once(own).chain((client != own).then_some(client));
    let references = |route: &'a Route<M>| {
        let references = route.parents.iter();
        references.filter(|reference| references_parent(reference, parent))
    };
    let is_free = |reference: &ParentRef| {
        !taken
            .iter()
            .any(|other| other.port == reference.port && other.section == reference.section)
    };
    let mut routes: Vec<_> = namespaces
        .flat_map(routes_in)
        .filter(|route| references(route).any(is_free))
        .collect();
    routes.sort_by_key(|route| (age_order(route.created), store::route_order(&route.id)));
    taken.extend(routes.iter().flat_map(|route| references(route)));
    routes
}

/// Without port a reference is to all ports of a Service. An EgressNetwork has no ports, so its
/// routes have to name theirs.
fn references_parent(reference: &ParentRef, parent: &RouteParent<'_>) -> bool {
    let port = match reference.port {
        Some(port) => port == parent.port,
        None => parent.kind() == ParentKind::Service,
    };
    let section = reference.section.is_none() || is_port_name(reference.section.as_ref(), parent);
    port && section && reference.kind == parent.kind() && reference.name == *parent.name()
}

/// A section of a Service is the name of a port.
fn is_port_name(section: Option<&Arc<str>>, parent: &RouteParent<'_>) -> bool {
    let ParentObject::Service {
        service: Some(service),
        ..
    } = parent.object
    else {
        return false;
    };
    let mut ports = service.ports.iter();
    ports.any(|entry| entry.number == parent.port && entry.name.as_ref() == section)
}
