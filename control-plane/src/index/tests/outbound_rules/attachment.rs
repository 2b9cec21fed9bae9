//! The routes that are attached to a parent, and their order.

use super::*;

const RULES: &str = "[{backendRefs: [{name: web, port: 80}]}]";

/// Returns the names of the attached routes for a client.
fn attached(cluster: &mut Cluster, target: &str, client: &str) -> Vec<String> {
    names(&cluster.watch(target, client))
}

fn names(watched: &Watched) -> Vec<String> {
    let policy = policy(watched);
    let routes = attached_routes(&policy).map(|route| {
        let reference = compact::reference(&route["object"]);
        reference.rsplit_once(' ').unwrap().1.to_owned()
    });
    routes.collect()
}

fn names_of(objects: &str) -> Vec<String> {
    attached(&mut Cluster::new(objects), "10.96.0.1:80", "shop")
}

const KINDS: [&str; 4] = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute"];

#[test]
fn group_of_service_is_empty_or_core_in_any_case() {
    for kind in KINDS {
        for parent in [
            "group: '', kind: Service, name: web",
            "group: core, kind: service, name: web",
            "group: CORE, kind: SERVICE, name: web",
        ] {
            let objects = web() + &route(kind, "one", parent, RULES);
            assert_eq!(names_of(&objects), ["shop/one"], "{kind} {parent}");
        }
    }
}

#[test]
fn other_groups_and_kinds_are_not_parents() {
    for kind in KINDS {
        for parent in [
            "kind: Service, name: web",
            "group: '', name: web",
            "group: policy.linkerd.io, kind: Service, name: web",
            "group: gateway.networking.k8s.io, kind: Gateway, name: web",
        ] {
            let objects = web() + &route(kind, "one", parent, RULES);
            assert!(names_of(&objects).is_empty(), "{kind} {parent}");
        }
    }
}

#[test]
fn reference_without_port_is_to_all_ports_of_service() {
    let ports = "{port: 80}, {port: 81}";
    for kind in KINDS {
        let service = service("web", "10.96.0.1", ports, "");
        let mut cluster = Cluster::new(&(service + &route(kind, "one", WEB, RULES)));
        for target in ["10.96.0.1:80", "10.96.0.1:81"] {
            assert_eq!(
                attached(&mut cluster, target, "shop"),
                ["shop/one"],
                "{kind}"
            );
        }
    }
}

#[test]
fn reference_with_port_is_to_that_port() {
    let ports = "{port: 80}, {port: 81}";
    for kind in KINDS {
        let service = service("web", "10.96.0.1", ports, "");
        let parent = format!("{WEB}, port: 81");
        let mut cluster = Cluster::new(&(service + &route(kind, "one", &parent, RULES)));
        assert!(attached(&mut cluster, "10.96.0.1:80", "shop").is_empty());
        assert_eq!(attached(&mut cluster, "10.96.0.1:81", "shop"), ["shop/one"]);
    }
}

#[test]
fn section_of_reference_is_name_of_port() {
    let ports = "{port: 80, name: http}, {port: 81, name: admin}";
    for kind in KINDS {
        for parent in [
            format!("{WEB}, sectionName: admin"),
            format!("{WEB}, sectionName: admin, port: 81"),
        ] {
            let service = service("web", "10.96.0.1", ports, "");
            let mut cluster = Cluster::new(&(service + &route(kind, "one", &parent, RULES)));
            let mut names = |target| attached(&mut cluster, target, "shop");
            assert!(names("10.96.0.1:80").is_empty(), "{parent}");
            assert_eq!(names("10.96.0.1:81"), ["shop/one"], "{parent}");
        }
    }
    let contradictory = format!("{WEB}, sectionName: admin, port: 80");
    let service = service("web", "10.96.0.1", ports, "");
    let objects = service + &route("HTTPRoute", "one", &contradictory, RULES);
    assert!(names_of(&objects).is_empty());
}

#[test]
fn route_in_namespace_of_service_is_for_every_client() {
    for kind in KINDS {
        let mut cluster = Cluster::new(&(web() + &route(kind, "producer", WEB, RULES)));
        for client in ["shop", "other"] {
            let names = attached(&mut cluster, "10.96.0.1:80", client);
            assert_eq!(names, ["shop/producer"], "{kind} {client}");
        }
    }
}

#[test]
fn route_in_another_namespace_is_for_clients_there() {
    for kind in KINDS {
        let consumer = route_in("client", kind, "consumer", WEB, RULES);
        let mut cluster = Cluster::new(&(web() + &consumer));
        let mut names = |client| attached(&mut cluster, "10.96.0.1:80", client);
        assert_eq!(names("client"), ["client/consumer"], "{kind}");
        assert!(names("shop").is_empty(), "{kind}");
        assert!(names("other").is_empty(), "{kind}");
    }
}

#[test]
fn consumer_routes_are_in_addition_to_producer_routes() {
    let objects = web()
        + &route("HTTPRoute", "b", WEB, RULES)
        + &route_in("client", "HTTPRoute", "a", WEB, RULES);
    let mut cluster = Cluster::new(&objects);
    let names = attached(&mut cluster, "10.96.0.1:80", "client");
    assert_eq!(names, ["client/a", "shop/b"]);
}

#[test]
fn consumer_route_of_network_is_for_clients_there() {
    let parent = "group: policy.linkerd.io, kind: EgressNetwork, name: global, namespace: linkerd-egress, port: 443";
    let objects = network("linkerd-egress", "global", "Deny", "", "")
        + &route_in("client", "HTTPRoute", "mine", parent, "[{}]")
        + &route_in("linkerd-egress", "HTTPRoute", "all", parent, "[{}]");
    let mut cluster = Cluster::new(&objects);
    let mut names = |client| attached(&mut cluster, "203.0.113.1:443", client);
    assert_eq!(names("client"), ["client/mine", "linkerd-egress/all"]);
    assert_eq!(names("other"), ["linkerd-egress/all"]);
}

#[test]
fn network_needs_port_in_reference() {
    for kind in KINDS {
        let without = OUTSIDE.replace(", port: 443", "");
        let outside = network("shop", "outside", "Deny", "203.0.113.0/24", "");
        let mut cluster = Cluster::new(&(outside.clone() + &route(kind, "one", &without, "[{}]")));
        assert!(attached(&mut cluster, "203.0.113.1:443", "shop").is_empty());
        let mut cluster = Cluster::new(&(outside + &route(kind, "one", OUTSIDE, "[{}]")));
        let names = attached(&mut cluster, "203.0.113.1:443", "shop");
        assert_eq!(names, ["shop/one"], "{kind}");
        assert!(attached(&mut cluster, "203.0.113.1:80", "shop").is_empty());
    }
}

#[test]
fn network_of_core_group_has_no_routes() {
    let parent = OUTSIDE.replace("policy.linkerd.io", "''");
    let outside = network("shop", "outside", "Deny", "203.0.113.0/24", "");
    let mut cluster = Cluster::new(&(outside + &route("HTTPRoute", "one", &parent, "[{}]")));
    assert!(attached(&mut cluster, "203.0.113.1:443", "shop").is_empty());
}

#[test]
fn headless_and_external_services_have_no_routes() {
    for kind in KINDS {
        let headless = web().replace("10.96.0.1", "None");
        let external = web().replace(
            "spec: {",
            "spec: {type: ExternalName, externalName: a.example, ",
        );
        for service in [headless, external] {
            let mut cluster = Cluster::new(&(service + &route(kind, "one", WEB, RULES)));
            let names = attached(&mut cluster, "web.shop.svc:80", "shop");
            assert!(names.is_empty(), "{kind}");
        }
    }
}

#[test]
fn missing_service_has_no_routes_until_it_exists() {
    let mut cluster = Cluster::new(&route("HTTPRoute", "one", WEB, RULES));
    let watched = cluster.watch("web.shop.svc:80", "shop");
    assert!(names(&watched).is_empty());
    cluster.apply(&web());
    assert_eq!(names(&watched), ["shop/one"]);
}

#[test]
fn network_that_overlaps_cluster_has_no_routes() {
    let routed = route("HTTPRoute", "one", OUTSIDE, "[{}]");
    let mut cluster =
        Cluster::new(&(network("shop", "outside", "Deny", "0.0.0.0/0", "") + &routed));
    let watched = cluster.watch("203.0.113.1:443", "shop");
    assert!(names(&watched).is_empty());
    // Its policy applies nevertheless.
    assert!(message(&watched).contains("http-egress-deny"));
    let excepting = network("shop", "outside", "Deny", "0.0.0.0/0", "").replace(
        "cidr: '0.0.0.0/0'",
        "cidr: '0.0.0.0/0', except: ['10.0.0.0/8']",
    );
    cluster.apply(&excepting);
    assert_eq!(names(&watched), ["shop/one"]);
}

#[test]
fn oldest_route_is_first_then_first_name() {
    let created = |name: &str, time: &str| {
        route("HTTPRoute", name, WEB, RULES).replace(
            "namespace: shop}\nspec",
            &format!("namespace: shop{time}}}\nspec"),
        )
    };
    let time = |day: u8| format!(", creationTimestamp: '2026-01-0{day}T00:00:00Z'");
    let objects = web()
        + &created("a", "")
        + &created("b", &time(2))
        + &created("d", &time(1))
        + &created("c", &time(1));
    assert_eq!(names_of(&objects), ["shop/c", "shop/d", "shop/b", "shop/a"]);
}

#[test]
fn routes_of_both_groups_are_attached() {
    let policy = route("HTTPRoute", "linkerd", WEB, RULES)
        .replace("gateway.networking.k8s.io/v1", "policy.linkerd.io/v1beta3");
    let objects = web() + &policy + &route("HTTPRoute", "gateway", WEB, RULES);
    let text = message(&Cluster::new(&objects).watch("10.96.0.1:80", "shop"));
    assert!(
        text.contains("httpRoutes policy/HTTPRoute shop/linkerd"),
        "{text}"
    );
    assert!(
        text.contains("httpRoutes gateway/HTTPRoute shop/gateway"),
        "{text}"
    );
}

#[test]
fn routes_of_lower_kinds_with_same_reference_are_in_conflict() {
    let with_port = format!("{WEB}, port: 80");
    // The lower kind would otherwise apply by the `appProtocol`.
    for (protocol, higher, lower) in [
        ("http", "GRPCRoute", "HTTPRoute"),
        ("linkerd.io/opaque", "GRPCRoute", "TCPRoute"),
        ("linkerd.io/opaque", "HTTPRoute", "TCPRoute"),
        ("linkerd.io/opaque", "TLSRoute", "TCPRoute"),
    ] {
        let port = format!("{{port: 80, appProtocol: {protocol}}}");
        let web = service("web", "10.96.0.1", &port, "");
        let lower = route(lower, "lower", &with_port, RULES);
        let same = web.clone() + &route(higher, "higher", &with_port, RULES) + &lower;
        assert!(names_of(&same).is_empty(), "{higher} {protocol}");
        // Another reference, without port, is not in conflict.
        let other = web + &route(higher, "higher", WEB, RULES) + &lower;
        assert_eq!(names_of(&other), ["shop/lower"], "{higher} {protocol}");
    }
}

#[test]
fn route_with_invalid_rule_keeps_its_last_version() {
    // The source reports the invalid version and sends no change; see its table.
    let text = web()
        + &route(
            "HTTPRoute",
            "one",
            WEB,
            "[{matches: [{path: {type: Exact, value: a}}]}]",
        );
    let documents = mesh_cluster::source::manifest::read(&text, &Kind::ALL);
    let invalid = documents.iter().filter(|document| {
        matches!(
            document,
            mesh_cluster::source::manifest::Document::Invalid(_)
        )
    });
    assert_eq!(invalid.count(), 1);
}

#[test]
fn every_served_version_is_attached() {
    for (kind, versions) in [
        ("HTTPRoute", &["v1", "v1beta1"][..]),
        ("GRPCRoute", &["v1", "v1alpha2"]),
        ("TLSRoute", &["v1", "v1alpha3", "v1alpha2"]),
        ("TCPRoute", &["v1", "v1alpha2"]),
    ] {
        for version in versions {
            let one =
                route(kind, "one", WEB, RULES).replace("k8s.io/v1", &format!("k8s.io/{version}"));
            assert_eq!(names_of(&(web() + &one)), ["shop/one"], "{kind} {version}");
        }
    }
}
