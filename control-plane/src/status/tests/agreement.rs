//! The status of a route agrees with the index, for random sets of objects.

use std::collections::BTreeSet;

use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{ServerPolicy, ServerProtocol};
use mesh_core::policy::outbound::{OutboundPolicy, OutboundProtocol, Target};
use mesh_core::route::Route;
use mesh_objects::model::{Name, ParentKind, ParentRef, WorkloadRef};
use mesh_test_support::campaign::Choices;
use mesh_test_support::policies::{self, PORTS};

use super::*;
use crate::index::tests::fixture;
use crate::index::{InboundKey, PolicyIndex};

/// The kind, namespace and name of a route, as the index puts them into policies.
type RouteName = (String, String, String);

#[test]
fn routes_apply_where_their_status_says_so() {
    let mut choices = Choices::new();
    let (mut of_servers, mut of_services) = (0, 0);
    for _ in 0..1_000 {
        let all = policies::random(&mut choices);
        let text = all.join("\n---\n");
        let has_no_influence = ["kind: Pod", "Authorization", "Authentication"];
        let with_influence: Vec<String> = all
            .into_iter()
            .filter(|object| !has_no_influence.iter().any(|kind| object.contains(kind)))
            .collect();
        let status = objects(&with_influence.join("\n---\n"));
        let mut index = PolicyIndex::new(fixture::policy_settings());
        index.apply(fixture::apply(&text));
        of_servers += compare_servers(&mut index, &status, &text);
        of_services += compare_services(&mut index, &status, &text);
    }
    assert!(of_servers > 100, "{of_servers} routes of Servers applied");
    assert!(
        of_services > 100,
        "{of_services} routes of Services applied"
    );
}

/// Compares the routes of each Server that applies to a port.
fn compare_servers(index: &mut PolicyIndex, status: &StatusObjects, text: &str) -> usize {
    let mut applied = 0;
    for (pod, port) in ["web-0", "api-0"]
        .iter()
        .flat_map(|pod| PORTS.map(|port| (pod, port)))
    {
        let workload = WorkloadRef::Pod(Name::new("shop", pod));
        let policy = index.inbound(InboundKey { workload, port }).unwrap();
        let policy = policy.borrow();
        let policy = policy.value().as_ref().as_ref().unwrap();
        let Meta::Resource(server) = &policy.meta else {
            continue;
        };
        let served = inbound_routes(policy);
        let accepted = accepted(status, |parent| {
            parent.kind == ParentKind::Server && parent.name.name == server.name
        });
        assert_eq!(
            served, accepted,
            "Server {} on {pod}:{port} of\n{text}",
            server.name
        );
        applied += served.len();
    }
    applied
}

/// Compares the routes of each port of the Service, for clients of both namespaces.
fn compare_services(index: &mut PolicyIndex, status: &StatusObjects, text: &str) -> usize {
    let mut applied = 0;
    for (client, port, name) in [
        ("shop", 80, "http"),
        ("shop", 81, "admin"),
        ("other", 80, "http"),
        ("other", 81, "admin"),
    ] {
        let addr = format!("10.96.0.1:{port}").parse().unwrap();
        let policy = index.outbound(&Target::Addr(addr), &client.into()).unwrap();
        let policy = policy.borrow();
        let (is_grpc, served) = outbound_routes(policy.value().as_ref().as_ref().unwrap());
        let accepted = accepted(status, |parent| {
            parent.kind == ParentKind::Service
                && *parent.name.name == *"web"
                && *parent.name.namespace == *"shop"
                && parent.port.is_none_or(|number| number == port)
                && parent
                    .section
                    .as_ref()
                    .is_none_or(|section| **section == *name)
        });
        // Routes of the Service's namespace apply to all clients, unless a route of the client's
        // takes precedence.
        let accepted: BTreeSet<_> = accepted
            .into_iter()
            .filter(|(_, namespace, _)| [client, "shop"].contains(&&**namespace))
            .collect();
        let message = format!("{client} to port {port} of\n{text}");
        assert!(
            served.is_subset(&accepted),
            "{served:?} {accepted:?} {message}"
        );
        // Routes of one port and of all ports do not conflict; of these, GRPCRoutes apply.
        let expected: BTreeSet<_> = accepted
            .into_iter()
            .filter(|(kind, ..)| (kind == "GRPCRoute") == is_grpc)
            .collect();
        assert_eq!(served, expected, "{message}");
        applied += served.len();
    }
    applied
}

/// Returns the routes that a parent accepts according to their status.
fn accepted(status: &StatusObjects, is_parent: impl Fn(&ParentRef) -> bool) -> BTreeSet<RouteName> {
    let mut routes = BTreeSet::new();
    for object in status.reported.values() {
        let ReportedSpec::Route(_) = &object.spec else {
            continue;
        };
        let DesiredStatus::Route(parents) = desired(status, object) else {
            panic!("{object:?}");
        };
        let is_accepted = |it: &ParentStatus| is_parent(&it.parent) && it.conditions[0].is_true;
        if parents.iter().any(is_accepted) {
            let group = object.kind.indexed().group();
            routes.insert((
                format!("{}.{group}", object.kind.as_str())
                    .replace(".gateway.networking.k8s.io", ""),
                object.name.namespace.to_string(),
                object.name.name.to_string(),
            ));
        }
    }
    routes
}

fn inbound_routes(policy: &ServerPolicy) -> BTreeSet<RouteName> {
    match &policy.protocol {
        ServerProtocol::Detect { http, .. }
        | ServerProtocol::Http1(http)
        | ServerProtocol::Http2(http) => names(&http.routes),
        ServerProtocol::Grpc(routes) => names(routes),
        _ => BTreeSet::new(),
    }
}

/// Returns whether the protocol is gRPC, and the routes.
fn outbound_routes(policy: &OutboundPolicy) -> (bool, BTreeSet<RouteName>) {
    match &policy.protocol {
        OutboundProtocol::Detect { http1, .. } | OutboundProtocol::Http1(http1) => {
            (false, names(&http1.routes))
        }
        OutboundProtocol::Http2(http2) => (false, names(&http2.routes)),
        OutboundProtocol::Grpc(grpc) => (true, names(&grpc.routes)),
        _ => (false, BTreeSet::new()),
    }
}

/// Returns the routes without the default ones.
fn names<M, A>(routes: &[Route<M, A>]) -> BTreeSet<RouteName> {
    let names = routes.iter().filter_map(|route| match &route.meta {
        Meta::Resource(resource) => Some((
            format!("{}.{}", resource.kind, resource.group)
                .replace(".gateway.networking.k8s.io", ""),
            resource.namespace.to_string(),
            resource.name.to_string(),
        )),
        _ => None,
    });
    names.collect()
}
