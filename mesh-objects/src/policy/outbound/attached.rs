//! The routes attached to a parent.

use std::sync::Arc;

use super::parent::{ParentObject, RouteParent, accepts_routes};
use crate::model::{ConnectionRoute, GrpcRoute, HttpRoute, ParentRef, Route};
use crate::policy::attachment::{Claim, conflict, is_port};

/// The routes of each kind that are accepted for a parent, the oldest first.
pub(super) struct AttachedRoutes<'a> {
    pub(super) grpc: Vec<&'a GrpcRoute>,
    pub(super) http: Vec<&'a HttpRoute>,
    pub(super) tls: Vec<&'a ConnectionRoute>,
    pub(super) tcp: Vec<&'a ConnectionRoute>,
}

impl<'a> AttachedRoutes<'a> {
    /// Routes of different kinds may have the same parent reference. Then only the kind of the
    /// earliest field is accepted.
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
/// references. Routes of the parent's namespace apply to every client. Routes of a client's
/// namespace apply only to clients there.
fn attached<'a, M: 'a, I: Iterator<Item = &'a Route<M>>>(
    parent: &RouteParent<'a>,
    taken: &mut Vec<Claim<'a>>,
    routes_in: impl Fn(&'a Arc<str>) -> I,
) -> Vec<&'a Route<M>> {
    if !accepts_routes(parent) {
        return Vec::new();
    }
    let own = &parent.name().namespace;
    let client = parent.client_namespace;
    let namespaces = std::iter::once(own).chain((client != own).then_some(client));
    let claims = |route: &'a Route<M>| {
        let claims = route.parents().claims();
        claims.filter(|claim| references_parent(claim.parent, parent))
    };
    let is_free = |claim: Claim<'_>| {
        let taken = taken.iter().copied();
        conflict(claim.rank, claim.parent, [own, client], taken).is_none()
    };
    let mut routes: Vec<_> = namespaces
        .flat_map(routes_in)
        .filter(|route| claims(route).any(is_free))
        .collect();
    routes.sort_by_key(|route| route.precedence());
    taken.extend(routes.iter().flat_map(|route| claims(route)));
    routes
}

fn references_parent(reference: &ParentRef, parent: &RouteParent<'_>) -> bool {
    let service = match parent.object {
        ParentObject::Service { service, .. } => service,
        ParentObject::EgressNetwork { .. } => None,
    };
    reference.kind == parent.kind()
        && reference.name == *parent.name()
        && is_port(reference, parent.port, service)
}
