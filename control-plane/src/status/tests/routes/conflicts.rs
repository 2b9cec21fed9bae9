//! Routes of several kinds at one parent.

use super::*;

#[test]
fn kind_of_route_with_precedence_wins_a_parent() {
    let conflict = "not Accepted: RouteReasonConflicted: GRPCRoute shop/grpc references the same parent and port, and takes precedence over a HTTPRoute…";
    let to = |parent: &str| spec(&[parent], &[]);
    for (what, subject, other, expect) in [
        (
            "same port",
            ("http", to("Service web:80")),
            ("grpc", to("Service web:80")),
            conflict,
        ),
        (
            "all ports",
            ("policy", to("Service web")),
            ("grpc", to("Service web")),
            conflict,
        ),
        (
            "other port",
            ("http", to("Service web:80")),
            ("grpc", to("Service web:8080")),
            BOTH,
        ),
        (
            "one of all ports",
            ("http", to("Service web:80")),
            ("grpc", to("Service web")),
            BOTH,
        ),
        (
            "other Service",
            ("http", to("Service web:80")),
            ("grpc", to("Service api:80")),
            BOTH,
        ),
        (
            "the winner",
            ("grpc", to("Service web:80")),
            ("http", to("Service web:80")),
            BOTH,
        ),
        (
            "one kind",
            ("http", to("Service web:80")),
            ("http-2", to("Service web:80")),
            BOTH,
        ),
        (
            "two groups",
            ("http", to("Service web:80")),
            ("policy", to("Service web:80")),
            BOTH,
        ),
        (
            "a Server of gRPC",
            ("policy", to("Server grpc")),
            ("grpc", to("Server grpc")),
            conflict,
        ),
        (
            "Servers have a protocol",
            ("http", to("Server detect")),
            ("grpc", to("Server detect")),
            "Accepted",
        ),
    ] {
        check(what, &[subject, other], expect);
    }
}

#[test]
fn routes_conflict_if_they_apply_to_the_same_clients() {
    let conflict = "not Accepted: RouteReasonConflicted: GRPCRoute…";
    let own = spec(&["Service web:80"], &[]);
    let from_elsewhere = spec(&["Service shop/web:80"], &[]);
    for (what, subject, other, expect) in [
        ("both of the parent's namespace", "http", "grpc", conflict),
        (
            "other of the parent's namespace",
            "other/http",
            "grpc",
            conflict,
        ),
        (
            "both of the clients' namespace",
            "other/http",
            "other/grpc",
            conflict,
        ),
        (
            "other of another client's namespace",
            "other/http",
            "third/grpc",
            BOTH,
        ),
        ("other of a client's namespace", "http", "other/grpc", BOTH),
    ] {
        let of = |name: &'static str| {
            let spec = if name.contains('/') {
                &from_elsewhere
            } else {
                &own
            };
            (name, spec.clone())
        };
        check(what, &[of(subject), of(other)], expect);
    }
}

#[test]
fn route_without_effect_takes_no_precedence() {
    let unusable = "{parentRefs: [{group: core, kind: Service, name: web, port: 80}], rules: [{matches: [{headers: [{type: RegularExpression, name: a, value: '('}]}]}]}";
    check(
        "an unusable GRPCRoute",
        &[
            ("http", spec(&["Service web:80"], &[])),
            ("grpc", unusable.to_owned()),
        ],
        BOTH,
    );
}

#[test]
fn kinds_of_routes_have_the_precedence_of_the_gateway_api() {
    let kinds = ["grpc", "http", "tls", "tcp"];
    for parent in ["Service web:80", "EgressNetwork outside:80"] {
        for (first, winner) in kinds.iter().enumerate() {
            for (second, loser) in kinds.iter().enumerate().filter(|(at, _)| *at != first) {
                let expect = if first < second {
                    "not Accepted: RouteReasonConflicted…"
                } else {
                    BOTH
                };
                let to = spec(&[parent], &[]);
                check(
                    &format!("{loser} beside {winner}"),
                    &[(loser, to.clone()), (winner, to)],
                    expect,
                );
            }
        }
    }
}
