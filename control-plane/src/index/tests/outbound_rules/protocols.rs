//! The protocol of a port, and its default routes.

use super::*;

const TO_WEB: &str = "core/Service shop/web:80";
const TO_OUTSIDE: &str = "policy/EgressNetwork shop/outside:443 forward 203.0.113.1:443";

/// Returns the Service `web` with an `appProtocol`.
fn app_protocol(protocol: &str) -> String {
    let port = format!("{{port: 80, appProtocol: {protocol}}}");
    service("web", "10.96.0.1", &port, "")
}

/// Returns a route of each of the kinds, all for the Service `web` and each with its own port
/// reference, so that they are not in conflict.
fn routes(kinds: &[&str]) -> String {
    let numbered = kinds.iter().enumerate();
    numbered
        .map(|(at, kind)| {
            let parent = match at {
                0 => format!("{WEB}, port: 80"),
                _ => WEB.to_owned(),
            };
            route(
                kind,
                &kind.to_lowercase(),
                &parent,
                "[{backendRefs: [{name: web, port: 80}]}]",
            )
        })
        .collect()
}

fn protocol_of(objects: &str) -> String {
    let text = message(&Cluster::new(objects).watch("10.96.0.1:80", "shop"));
    text.split_whitespace().nth(2).unwrap().to_owned()
}

#[test]
fn app_protocol_http_is_http1() {
    for written in ["http", "HTTP", "kubernetes.io/ws"] {
        check(
            &app_protocol(written),
            "10.96.0.1:80",
            "core/Service shop/web:80 http1
             http default/http
               [/*] -> core/Service shop/web:80",
        );
    }
}

#[test]
fn app_protocol_http_has_http_routes_only() {
    let objects = app_protocol("http") + &routes(&["GRPCRoute", "HTTPRoute"]);
    check(
        &objects,
        "10.96.0.1:80",
        "core/Service shop/web:80 http1
         http gateway/HTTPRoute shop/httproute
           [] l5d -> 1x core/Service shop/web:80",
    );
}

#[test]
fn app_protocol_h2c_is_http2() {
    for written in ["kubernetes.io/h2c", "http2", "grpc"] {
        check(
            &app_protocol(written),
            "10.96.0.1:80",
            "core/Service shop/web:80 http2
             http default/http
               [/*] -> core/Service shop/web:80",
        );
    }
}

#[test]
fn app_protocol_h2c_is_grpc_with_grpc_routes() {
    let objects = app_protocol("kubernetes.io/h2c") + &routes(&["GRPCRoute"]);
    check(
        &objects,
        "10.96.0.1:80",
        "core/Service shop/web:80 grpc
         grpc gateway/GRPCRoute shop/grpcroute
           [] l5d -> 1x core/Service shop/web:80",
    );
}

#[test]
fn app_protocols_that_are_not_http_are_opaque() {
    for written in [
        "linkerd.io/tcp",
        "linkerd.io/opaque",
        "https",
        "tls",
        "tcp",
        "kubernetes.io/wss",
    ] {
        let objects = app_protocol(written) + &routes(&["HTTPRoute"]);
        check(
            &objects,
            "10.96.0.1:80",
            "core/Service shop/web:80 opaque
             opaque default/opaq -> core/Service shop/web:80",
        );
    }
}

#[test]
fn unknown_app_protocol_counts_as_absent() {
    for written in ["mysql", "example.com/own", "kubernetes.io/other"] {
        assert_eq!(protocol_of(&app_protocol(written)), "detect", "{written}");
        let annotated = annotated_web("config.linkerd.io/opaque-ports: '80'");
        let port = format!("{{port: 80, appProtocol: {written}}}");
        let listed = annotated.replace("{port: 80}", &port);
        assert_eq!(protocol_of(&listed), "opaque", "{written}");
    }
}

#[test]
fn opaque_app_protocol_has_tcp_route() {
    let objects = app_protocol("linkerd.io/opaque") + &routes(&["TCPRoute"]);
    check(
        &objects,
        "10.96.0.1:80",
        "core/Service shop/web:80 opaque
         opaque gateway/TCPRoute shop/tcproute -> 1x core/Service shop/web:80",
    );
}

#[test]
fn annotation_of_service_makes_port_opaque() {
    let annotated = annotated_web("config.linkerd.io/opaque-ports: '80'");
    check(
        &(annotated.clone() + &routes(&["HTTPRoute"])),
        "10.96.0.1:80",
        "core/Service shop/web:80 opaque
         opaque default/opaq -> core/Service shop/web:80",
    );
    let objects = annotated.replace("{port: 80}", "{port: 80, appProtocol: http}");
    assert_eq!(protocol_of(&objects), "http1", "appProtocol is first");
}

#[test]
fn default_list_makes_port_opaque_without_annotation() {
    let mysql = service("db", "10.96.0.2", "{port: 3306}", "");
    check(
        &mysql,
        "10.96.0.2:3306",
        "core/Service shop/db:3306 opaque
         opaque default/opaq -> core/Service shop/db:3306",
    );
    let annotated = service(
        "db",
        "10.96.0.2",
        "{port: 3306}",
        ", annotations: {config.linkerd.io/opaque-ports: '1'}",
    );
    let text = message(&Cluster::new(&annotated).watch("10.96.0.2:3306", "shop"));
    assert!(
        text.starts_with("core/Service shop/db:3306 detect"),
        "{text}"
    );
    check(
        "",
        "db.shop.svc:3306",
        "core/Service shop/db:3306 opaque
         opaque default/opaq -> core/Service shop/db:3306",
    );
}

#[test]
fn kinds_of_routes_have_precedence() {
    let kinds = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (first, protocol) in ["grpc", "detect", "tls", "opaque"].into_iter().enumerate() {
        let mut attached = kinds[first..].to_vec();
        assert_eq!(protocol_of(&(web() + &routes(&attached))), protocol);
        // It makes no difference which of them names the port.
        attached.reverse();
        assert_eq!(protocol_of(&(web() + &routes(&attached))), protocol);
    }
    assert_eq!(protocol_of(&web()), "detect");
}

#[test]
fn http_routes_are_used_by_detection() {
    check(
        &(web() + &routes(&["HTTPRoute"])),
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 detect 10000ms
             opaque default/opaq -> {TO_WEB}
             http gateway/HTTPRoute shop/httproute
               [] l5d -> 1x {TO_WEB}"
        ),
    );
}

#[test]
fn tls_routes_have_no_default_for_services() {
    let named =
        routes(&["TLSRoute"]).replace("spec:", "spec:\n  hostnames: [a.example, '*.b.example']");
    check(
        &(web() + &named),
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 tls
             tls gateway/TLSRoute shop/tlsroute a.example ^example.b -> 1x {TO_WEB}"
        ),
    );
}

#[test]
fn only_oldest_tcp_route_applies() {
    let rules = |port: u16| format!("[{{backendRefs: [{{name: web, port: {port}}}]}}]");
    let young = route("TCPRoute", "a-young", WEB, &rules(1)).replace(
        "namespace: shop}\nspec",
        "namespace: shop, creationTimestamp: '2026-01-02T00:00:00Z'}\nspec",
    );
    let old = route("TCPRoute", "b-old", WEB, &rules(2)).replace(
        "namespace: shop}\nspec",
        "namespace: shop, creationTimestamp: '2026-01-01T00:00:00Z'}\nspec",
    );
    check(
        &(web() + &young + &old),
        "10.96.0.1:80",
        "core/Service shop/web:80 opaque
         opaque gateway/TCPRoute shop/b-old -> 1x core/Service shop/web:2",
    );
}

#[test]
fn connection_route_with_several_rules_is_invalid() {
    let rules = "[{backendRefs: [{name: web, port: 80}]}, {backendRefs: [{name: web, port: 81}]}]";
    check(
        &(web() + &route("TCPRoute", "two", WEB, rules)),
        "10.96.0.1:80",
        "core/Service shop/web:80 opaque
         opaque gateway/TCPRoute shop/two invalid(TCPRoute shop/two has 2 rules, but needs exactly one) -> nowhere",
    );
    check(
        &(web() + &route("TLSRoute", "none", WEB, "[]")),
        "10.96.0.1:80",
        "core/Service shop/web:80 tls
         tls gateway/TLSRoute shop/none invalid(TLSRoute shop/none has 0 rules, but needs exactly one) -> nowhere",
    );
}

/// Returns the message for the EgressNetwork `outside` with a route of a kind.
fn egress(kind: &str, policy: &str) -> String {
    let objects = network("shop", "outside", policy, "203.0.113.0/24", "")
        + &route(kind, "attached", OUTSIDE, "[{}]");
    message(&Cluster::new(&objects).watch("203.0.113.1:443", "shop"))
}

#[test]
fn default_http_route_of_network_follows_attached_ones() {
    assert_text(
        &egress("HTTPRoute", "Allow"),
        &format!(
            "policy/EgressNetwork shop/outside:443 detect 10000ms
             opaque default/tcp-egress-allow -> {TO_OUTSIDE}
             http gateway/HTTPRoute shop/attached
               [] l5d -> {TO_OUTSIDE}
             http default/http-egress-allow
               [/*] -> {TO_OUTSIDE}"
        ),
    );
    assert_text(
        &egress("HTTPRoute", "Deny"),
        &format!(
            "policy/EgressNetwork shop/outside:443 detect 10000ms
             opaque default/tcp-egress-deny forbidden -> {TO_OUTSIDE}
             http gateway/HTTPRoute shop/attached
               [] l5d -> {TO_OUTSIDE}
             http default/http-egress-deny
               [/*] fail(403 traffic not allowed) -> {TO_OUTSIDE}"
        ),
    );
}

#[test]
fn default_grpc_route_of_network_follows_attached_ones() {
    assert_text(
        &egress("GRPCRoute", "Allow"),
        &format!(
            "policy/EgressNetwork shop/outside:443 grpc
             grpc gateway/GRPCRoute shop/attached
               [] l5d -> {TO_OUTSIDE}
             grpc default/grpc-egress-allow
               [/] -> {TO_OUTSIDE}"
        ),
    );
    assert_text(
        &egress("GRPCRoute", "Deny"),
        &format!(
            "policy/EgressNetwork shop/outside:443 grpc
             grpc gateway/GRPCRoute shop/attached
               [] l5d -> {TO_OUTSIDE}
             grpc default/grpc-egress-deny
               [/] fail(7 traffic not allowed) -> {TO_OUTSIDE}"
        ),
    );
}

#[test]
fn default_tls_route_of_network_follows_attached_ones() {
    for (policy, verdict) in [("Allow", "allow"), ("Deny", "deny forbidden")] {
        assert_text(
            &egress("TLSRoute", policy),
            &format!(
                "policy/EgressNetwork shop/outside:443 tls
                 tls gateway/TLSRoute shop/attached -> {TO_OUTSIDE}
                 tls default/tls-egress-{verdict} -> {TO_OUTSIDE}"
            ),
        );
    }
}

#[test]
fn tcp_route_of_network_replaces_default() {
    for policy in ["Allow", "Deny"] {
        assert_text(
            &egress("TCPRoute", policy),
            &format!(
                "policy/EgressNetwork shop/outside:443 opaque
                 opaque gateway/TCPRoute shop/attached -> {TO_OUTSIDE}"
            ),
        );
    }
}

#[test]
fn opaque_ports_of_network_have_default_tcp_route() {
    let annotation = ", annotations: {config.linkerd.io/opaque-ports: '443'}";
    let annotated = network("shop", "outside", "Deny", "203.0.113.0/24", annotation);
    check(
        &(annotated + &route("HTTPRoute", "attached", OUTSIDE, "[{}]")),
        "203.0.113.1:443",
        &format!(
            "policy/EgressNetwork shop/outside:443 opaque
             opaque default/tcp-egress-deny forbidden -> {TO_OUTSIDE}"
        ),
    );
    // Without annotation the default list applies.
    check(
        &network("shop", "outside", "Allow", "203.0.113.0/24", ""),
        "203.0.113.1:25",
        "policy/EgressNetwork shop/outside:25 opaque
         opaque default/tcp-egress-allow -> policy/EgressNetwork shop/outside:25 forward 203.0.113.1:25",
    );
}

#[test]
fn protocol_follows_routes_that_come_and_go() {
    let mut cluster = Cluster::new(&web());
    let watched = cluster.watch("10.96.0.1:80", "shop");
    let protocol = |watched: &Watched| {
        let text = message(watched);
        text.split_whitespace().nth(2).unwrap().to_owned()
    };
    for (kind, api, expected) in [
        ("TCPRoute", Kind::GatewayTcpRoute, "opaque"),
        ("TLSRoute", Kind::GatewayTlsRoute, "tls"),
        ("GRPCRoute", Kind::GatewayGrpcRoute, "grpc"),
        ("HTTPRoute", Kind::GatewayHttpRoute, "detect"),
    ] {
        cluster.apply(&routes(&[kind]));
        assert_eq!(protocol(&watched), expected);
        assert!(message(&watched).contains(&format!("{kind} shop/")));
        cluster.delete(api, "shop", &kind.to_lowercase());
        assert!(message(&watched).contains("http default/http"), "{kind}");
    }
}
