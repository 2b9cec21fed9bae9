//! Attachment of routes to Servers, case by case.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::convert::{Json, object};

fn server(protocol: &str) -> Server {
    let json = json!({
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "podSelector": {}, "port": 80, "proxyProtocol": protocol },
    });
    match object(Kind::Server, &Json(json)).unwrap() {
        Object::Server(server) => Arc::unwrap_or_clone(server),
        other => panic!("{other:?}"),
    }
}

/// A route in the namespace `shop`.
fn route(kind: Kind, parents: &Value) -> Object {
    let json = json!({
        "metadata": { "name": "get", "namespace": "shop" },
        "spec": { "parentRefs": parents, "rules": [{}] },
    });
    object(kind, &Json(json)).unwrap()
}

fn to(name: &str, more: Value) -> Value {
    let mut reference = json!({ "group": "policy.linkerd.io", "kind": "Server", "name": name });
    let more = more.as_object().unwrap().clone();
    reference.as_object_mut().unwrap().extend(more);
    reference
}

/// Returns the reason of the first reference, and whether the route is attached by any.
fn attached(kind: Kind, protocol: &str, parents: &[Value]) -> (Option<&'static str>, bool) {
    let (server, route) = (server(protocol), route(kind, &parents.into()));
    let route = route.route_parents().unwrap();
    let first = attach_to_server(route, &route.parents[0], Some(&server), None);
    let reason = first.err().map(|refusal| match refusal {
        Refusal::Mistake(_) => "mistake",
        Refusal::OtherMistake(_) => "other mistake",
        Refusal::NoParent { .. } => "no parent",
        Refusal::Protocol { .. } => "protocol",
        other => panic!("{other}"),
    });
    (reason, is_attached_to_server(route, &server, None))
}

#[test]
fn server_accepts_routes_of_its_protocol_whose_references_have_no_mistake() {
    let web = || to("web", json!({}));
    let port = || to("gone", json!({ "port": 80 }));
    let (http, grpc) = (Kind::GatewayHttpRoute, Kind::GatewayGrpcRoute);
    for (kind, protocol, parents, expected) in [
        (http, "HTTP/1", vec![web()], (None, true)),
        (http, "gRPC", vec![web()], (None, true)),
        (grpc, "gRPC", vec![web()], (None, true)),
        (grpc, "HTTP/2", vec![web()], (Some("protocol"), false)),
        (http, "opaque", vec![web()], (Some("protocol"), false)),
        (
            http,
            "HTTP/1",
            vec![to("gone", json!({})), web()],
            (Some("no parent"), true),
        ),
        (
            http,
            "HTTP/1",
            vec![web(), port()],
            (Some("other mistake"), false),
        ),
        (
            http,
            "HTTP/1",
            vec![port(), web()],
            (Some("mistake"), false),
        ),
        (
            http,
            "HTTP/1",
            vec![to("web", json!({ "namespace": "other" }))],
            (Some("mistake"), false),
        ),
        (
            http,
            "HTTP/1",
            vec![to("web", json!({ "sectionName": "http" }))],
            (Some("mistake"), false),
        ),
    ] {
        assert_eq!(
            attached(kind, protocol, &parents),
            expected,
            "{kind:?} {parents:?}"
        );
    }
}
