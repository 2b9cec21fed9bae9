//! The backends of a rule.

use super::*;

/// Returns the backends of the first rule of the attached route for a target.
fn backends(objects: &str, target: &str) -> String {
    backends_of(&Cluster::new(objects).watch(target, "shop"))
}

fn backends_of(watched: &Watched) -> String {
    let [policy, standard] = decoded(watched);
    assert_eq!(policy, standard);
    let route = attached_routes(&policy).next().unwrap();
    let rule = route.pointer("/rules/0").unwrap_or(route);
    rule.get("backends").map(compact::text).unwrap_or_default()
}

/// Returns the backends of a route of a kind for `web`.
fn to(kind: &str, references: &str) -> String {
    let rules = format!("[{{backendRefs: [{references}]}}]");
    backends(&(web() + &route(kind, "one", WEB, &rules)), "10.96.0.1:80")
}

const KINDS: [&str; 4] = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"];

/// Returns how a kind of route fails the traffic of an invalid backend.
fn failure(kind: &str, message: &str) -> String {
    match kind {
        "HTTPRoute" => format!("filters=[failure=(message={message} ratio=1/1 status=500)]"),
        "GRPCRoute" => format!("filters=[failure=(code=14 message={message} ratio=1/1)]"),
        _ => format!("rejects={message}"),
    }
}

#[test]
fn rule_without_backends_has_its_parent() {
    for kind in KINDS {
        for rules in ["[{}]", "[{backendRefs: []}]"] {
            let objects = web() + &route(kind, "one", WEB, rules);
            let backend = backends(&objects, "10.96.0.1:80");
            assert_eq!(
                backend, "[core/Service shop/web:80 balances]",
                "{kind} {rules}"
            );
        }
    }
}

#[test]
fn kind_is_service_and_weight_one_by_default() {
    for kind in KINDS {
        assert_eq!(
            to(kind, "{name: web, port: 80}"),
            "[core/Service shop/web:80 balances weight=1]"
        );
    }
}

#[test]
fn backends_are_chosen_by_weight() {
    for kind in KINDS {
        assert_eq!(
            to(
                kind,
                "{name: web, port: 80, weight: 9}, {name: web, port: 81}"
            ),
            "[core/Service shop/web:80 balances weight=9, core/Service shop/web:81 balances weight=1]"
        );
    }
}

#[test]
fn backend_of_weight_zero_is_omitted() {
    for kind in KINDS {
        let backends = "{name: web, port: 80}, {name: off, port: 80, weight: 0}";
        let expected = "[core/Service shop/web:80 balances weight=1]";
        assert_eq!(to(kind, backends), expected);
        assert_eq!(to(kind, "{name: off, port: 80, weight: 0}"), "");
    }
}

#[test]
fn service_backend_needs_port() {
    for kind in KINDS {
        let failure = failure(kind, "backend web has no port");
        let expected = format!("[default/invalid {failure} weight=1]");
        assert_eq!(to(kind, "{name: web}"), expected);
    }
}

#[test]
fn missing_service_fails_its_share_until_it_exists() {
    for kind in KINDS {
        let rules = "[{backendRefs: [{name: web, port: 80}, {name: canary, port: 80}]}]";
        let mut cluster = Cluster::new(&(web() + &route(kind, "one", WEB, rules)));
        let watched = cluster.watch("10.96.0.1:80", "shop");
        let failure = failure(kind, "Service not found canary");
        let web = "core/Service shop/web:80 balances weight=1";
        let missing = format!("[{web}, core/Service shop/canary:80 {failure} weight=1]");
        assert_eq!(backends_of(&watched), missing);
        cluster.apply(&service("canary", "10.96.0.2", "{port: 80}", ""));
        assert_eq!(
            backends_of(&watched),
            format!("[{web}, core/Service shop/canary:80 balances weight=1]")
        );
        cluster.delete(Kind::Service, "shop", "canary");
        assert_eq!(backends_of(&watched), missing);
    }
}

#[test]
fn backend_in_another_namespace_needs_no_grant() {
    let elsewhere = web()
        .replace("namespace: shop", "namespace: elsewhere")
        .replace("10.96.0.1", "10.96.0.9");
    for kind in KINDS {
        let rules = "[{backendRefs: [{name: web, namespace: elsewhere, port: 80}]}]";
        let objects = web() + &elsewhere + &route(kind, "one", WEB, rules);
        let backend = backends(&objects, "10.96.0.1:80");
        assert_eq!(
            backend, "[core/Service elsewhere/web:80 balances weight=1]",
            "{kind}"
        );
    }
}

#[test]
fn backend_without_namespace_is_in_namespace_of_parent() {
    let rules = "[{backendRefs: [{name: web, port: 80}]}]";
    let objects = web() + &route_in("client", "HTTPRoute", "one", WEB, rules);
    let watched = Cluster::new(&objects).watch("10.96.0.1:80", "client");
    assert_eq!(
        backends_of(&watched),
        "[core/Service shop/web:80 balances weight=1]"
    );
}

#[test]
fn unknown_kind_fails_its_share() {
    for kind in KINDS {
        for reference in ["group: example.com, kind: Service", "kind: Bucket"] {
            let failure = failure(kind, "unsupported kind of backend a");
            let backend = to(kind, &format!("{{{reference}, name: a, port: 80}}"));
            assert_eq!(backend, format!("[default/invalid {failure} weight=1]"));
        }
    }
}

#[test]
fn network_is_backend_of_its_own_routes() {
    let rules = "[{backendRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: outside}]}]";
    for kind in KINDS {
        let objects = network("shop", "outside", "Deny", "203.0.113.0/24", "")
            + &route(kind, "one", OUTSIDE, rules);
        assert_eq!(
            backends(&objects, "203.0.113.1:443"),
            "[policy/EgressNetwork shop/outside:443 endpoint forwardsTo=203.0.113.1:443 weight=1]"
        );
    }
}

#[test]
fn network_is_invalid_backend_of_other_routes() {
    let problem =
        "EgressNetwork shop/outside can only be a backend of routes that have it as parent";
    for kind in KINDS {
        let reference = "{group: policy.linkerd.io, kind: EgressNetwork, name: outside, port: 443}";
        let failure = failure(kind, problem);
        let expected = format!("[policy/EgressNetwork shop/outside:443 {failure} weight=1]");
        let rules = format!("[{{backendRefs: [{reference}]}}]");
        let outside = network("shop", "outside", "Allow", "203.0.113.0/24", "");
        let objects = web() + &outside + &route(kind, "one", WEB, &rules);
        assert_eq!(backends(&objects, "10.96.0.1:80"), expected);
        // Another EgressNetwork's addresses are not in it either.
        let other = network("shop", "other", "Allow", "198.51.100.0/24", "");
        let parent = OUTSIDE.replace("name: outside", "name: other");
        let objects = outside + &other + &route(kind, "one", &parent, &rules);
        assert_eq!(backends(&objects, "198.51.100.1:443"), expected);
    }
}

#[test]
fn service_is_backend_of_routes_of_network() {
    let rules = "[{backendRefs: [{name: web, port: 80}]}]";
    for kind in KINDS {
        let objects = web()
            + &network("shop", "outside", "Deny", "203.0.113.0/24", "")
            + &route(kind, "one", OUTSIDE, rules);
        assert_eq!(
            backends(&objects, "203.0.113.1:443"),
            "[core/Service shop/web:80 balances weight=1]"
        );
    }
}

#[test]
fn filters_of_backend_are_its_own() {
    let rules = "[{backendRefs: [{name: web, port: 80, filters: [{type: RequestHeaderModifier,
        requestHeaderModifier: {set: [{name: a, value: b}]}}]}, {name: web, port: 81}]}]";
    let found = backends(
        &(web() + &route("HTTPRoute", "one", WEB, rules)),
        "10.96.0.1:80",
    );
    assert_eq!(
        found,
        "[core/Service shop/web:80 balances filters=[requestHeaders=(set=[a: b])] weight=1, \
         core/Service shop/web:81 balances weight=1]"
    );
}

#[test]
fn unsupported_filter_of_backend_fails_its_share() {
    let rules = "[{backendRefs: [{name: web, port: 80, filters: [{type: CORS, cors: {allowOrigins: ['*']}}]},
        {name: web, port: 81}]}]";
    let found = backends(
        &(web() + &route("HTTPRoute", "one", WEB, rules)),
        "10.96.0.1:80",
    );
    assert_eq!(
        found,
        "[core/Service shop/web:80 filters=[failure=(message=unsupported backend filter: filters[0].type: CORS is not \
         supported here, only RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect, URLRewrite; remove the \
         filter ratio=1/1 status=500)] weight=1, core/Service shop/web:81 balances weight=1]"
    );
}
