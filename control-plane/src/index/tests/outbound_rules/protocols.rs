//! The protocol of a port, and its default routes.

use super::*;

const WEIGHTED: &str = "backends=[core/Service shop/web:80 balances weight=1]";
const TO_OUTSIDE: &str =
    "backends=[policy/EgressNetwork shop/outside:443 endpoint forwardsTo=203.0.113.1:443]";

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
    let policy = policy(&Cluster::new(objects).watch("10.96.0.1:80", "shop"));
    policy["protocol"].as_str().unwrap().to_owned()
}

#[test]
fn app_protocol_http_is_http1() {
    for written in ["http", "HTTP", "kubernetes.io/ws"] {
        check(
            &app_protocol(written),
            "10.96.0.1:80",
            &format!(
                "core/Service shop/web:80 protocol=HTTP/1
                 httpRoutes default/http
                 rule {TO_WEB} matches=[/*]"
            ),
        );
    }
}

#[test]
fn app_protocol_http_has_http_routes_only() {
    let objects = app_protocol("http") + &routes(&["GRPCRoute", "HTTPRoute"]);
    check(
        &objects,
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 protocol=HTTP/1
             httpRoutes gateway/HTTPRoute shop/httproute
             rule {WEIGHTED} headersOverride"
        ),
    );
}

#[test]
fn app_protocol_h2c_is_http2() {
    for written in ["kubernetes.io/h2c", "http2", "grpc"] {
        check(
            &app_protocol(written),
            "10.96.0.1:80",
            &format!(
                "core/Service shop/web:80 protocol=HTTP/2
                 httpRoutes default/http
                 rule {TO_WEB} matches=[/*]"
            ),
        );
    }
}

#[test]
fn app_protocol_h2c_is_grpc_with_grpc_routes() {
    let objects = app_protocol("kubernetes.io/h2c") + &routes(&["GRPCRoute"]);
    check(
        &objects,
        "10.96.0.1:80",
        &format!(
            "core/Service shop/web:80 protocol=gRPC
             grpcRoutes gateway/GRPCRoute shop/grpcroute
             rule {WEIGHTED} headersOverride"
        ),
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
            &format!("core/Service shop/web:80 protocol=opaque\ntcpRoute default/opaq {TO_WEB}"),
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
        &format!(
            "core/Service shop/web:80 protocol=opaque
             tcpRoute gateway/TCPRoute shop/tcproute {WEIGHTED}"
        ),
    );
}

#[test]
fn annotation_of_service_makes_port_opaque() {
    let annotated = annotated_web("config.linkerd.io/opaque-ports: '80'");
    check(
        &(annotated.clone() + &routes(&["HTTPRoute"])),
        "10.96.0.1:80",
        &format!("core/Service shop/web:80 protocol=opaque\ntcpRoute default/opaq {TO_WEB}"),
    );
    let objects = annotated.replace("{port: 80}", "{port: 80, appProtocol: http}");
    assert_eq!(protocol_of(&objects), "HTTP/1", "appProtocol is first");
}

#[test]
fn default_list_makes_port_opaque_without_annotation() {
    let opaque = "core/Service shop/db:3306 protocol=opaque
                  tcpRoute default/opaq backends=[core/Service shop/db:3306 balances]";
    let mysql = service("db", "10.96.0.2", "{port: 3306}", "");
    check(&mysql, "10.96.0.2:3306", opaque);
    let annotated = service(
        "db",
        "10.96.0.2",
        "{port: 3306}",
        ", annotations: {config.linkerd.io/opaque-ports: '1'}",
    );
    let policy = policy(&Cluster::new(&annotated).watch("10.96.0.2:3306", "shop"));
    assert_eq!(policy["protocol"], "detect");
    assert_eq!(
        compact::reference(&policy["object"]),
        "core/Service shop/db:3306"
    );
    check("", "db.shop.svc:3306", opaque);
}

#[test]
fn kinds_of_routes_have_precedence() {
    let kinds = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (first, protocol) in ["gRPC", "detect", "TLS", "opaque"].into_iter().enumerate() {
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
            "core/Service shop/web:80 detectTimeout=10s protocol=detect
             tcpRoute default/opaq {TO_WEB}
             httpRoutes gateway/HTTPRoute shop/httproute
             rule {WEIGHTED} headersOverride"
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
            "core/Service shop/web:80 protocol=TLS
             tlsRoutes gateway/TLSRoute shop/tlsroute {WEIGHTED} serverNames=[a.example, *.b.example]"
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
        "core/Service shop/web:80 protocol=opaque
         tcpRoute gateway/TCPRoute shop/b-old backends=[core/Service shop/web:2 balances weight=1]",
    );
}

#[test]
fn connection_route_with_several_rules_is_invalid() {
    let rules = "[{backendRefs: [{name: web, port: 80}]}, {backendRefs: [{name: web, port: 81}]}]";
    check(
        &(web() + &route("TCPRoute", "two", WEB, rules)),
        "10.96.0.1:80",
        "core/Service shop/web:80 protocol=opaque
         tcpRoute gateway/TCPRoute shop/two rejects=TCPRoute shop/two has 2 rules, but needs exactly one",
    );
    check(
        &(web() + &route("TLSRoute", "none", WEB, "[]")),
        "10.96.0.1:80",
        "core/Service shop/web:80 protocol=TLS
         tlsRoutes gateway/TLSRoute shop/none rejects=TLSRoute shop/none has 0 rules, but needs exactly one",
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
            "policy/EgressNetwork shop/outside:443 detectTimeout=10s protocol=detect
             tcpRoute default/tcp-egress-allow {TO_OUTSIDE}
             httpRoutes gateway/HTTPRoute shop/attached
             rule {TO_OUTSIDE} headersOverride
             httpRoutes default/http-egress-allow
             rule {TO_OUTSIDE} matches=[/*]"
        ),
    );
    assert_text(
        &egress("HTTPRoute", "Deny"),
        &format!(
            "policy/EgressNetwork shop/outside:443 detectTimeout=10s protocol=detect
             tcpRoute default/tcp-egress-deny {TO_OUTSIDE} rejects=forbidden by policy
             httpRoutes gateway/HTTPRoute shop/attached
             rule {TO_OUTSIDE} headersOverride
             httpRoutes default/http-egress-deny
             rule {TO_OUTSIDE} filters=[failure=(message=traffic not allowed ratio=1/1 status=403)] matches=[/*]"
        ),
    );
}

#[test]
fn default_grpc_route_of_network_follows_attached_ones() {
    assert_text(
        &egress("GRPCRoute", "Allow"),
        &format!(
            "policy/EgressNetwork shop/outside:443 protocol=gRPC
             grpcRoutes gateway/GRPCRoute shop/attached
             rule {TO_OUTSIDE} headersOverride
             grpcRoutes default/grpc-egress-allow
             rule {TO_OUTSIDE} matches=[*/*]"
        ),
    );
    assert_text(
        &egress("GRPCRoute", "Deny"),
        &format!(
            "policy/EgressNetwork shop/outside:443 protocol=gRPC
             grpcRoutes gateway/GRPCRoute shop/attached
             rule {TO_OUTSIDE} headersOverride
             grpcRoutes default/grpc-egress-deny
             rule {TO_OUTSIDE} filters=[failure=(code=7 message=traffic not allowed ratio=1/1)] matches=[*/*]"
        ),
    );
}

#[test]
fn default_tls_route_of_network_follows_attached_ones() {
    let deny = format!("deny {TO_OUTSIDE} rejects=forbidden by policy");
    for (policy, default) in [("Allow", format!("allow {TO_OUTSIDE}")), ("Deny", deny)] {
        assert_text(
            &egress("TLSRoute", policy),
            &format!(
                "policy/EgressNetwork shop/outside:443 protocol=TLS
                 tlsRoutes gateway/TLSRoute shop/attached {TO_OUTSIDE}
                 tlsRoutes default/tls-egress-{default}"
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
                "policy/EgressNetwork shop/outside:443 protocol=opaque
                 tcpRoute gateway/TCPRoute shop/attached {TO_OUTSIDE}"
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
            "policy/EgressNetwork shop/outside:443 protocol=opaque
             tcpRoute default/tcp-egress-deny {TO_OUTSIDE} rejects=forbidden by policy"
        ),
    );
    // Without annotation the default list applies.
    check(
        &network("shop", "outside", "Allow", "203.0.113.0/24", ""),
        "203.0.113.1:25",
        "policy/EgressNetwork shop/outside:25 protocol=opaque
         tcpRoute default/tcp-egress-allow \
         backends=[policy/EgressNetwork shop/outside:25 endpoint forwardsTo=203.0.113.1:25]",
    );
}

#[test]
fn protocol_follows_routes_that_come_and_go() {
    let mut cluster = Cluster::new(&web());
    let watched = cluster.watch("10.96.0.1:80", "shop");
    for (kind, api, expected) in [
        ("TCPRoute", Kind::GatewayTcpRoute, "opaque"),
        ("TLSRoute", Kind::GatewayTlsRoute, "TLS"),
        ("GRPCRoute", Kind::GatewayGrpcRoute, "gRPC"),
        ("HTTPRoute", Kind::GatewayHttpRoute, "detect"),
    ] {
        cluster.apply(&routes(&[kind]));
        assert_eq!(policy(&watched)["protocol"], expected);
        assert!(message(&watched).contains(&format!("{kind} shop/")));
        cluster.delete(api, "shop", &kind.to_lowercase());
        assert!(
            message(&watched).contains("httpRoutes default/http"),
            "{kind}"
        );
    }
}
