//! The conditions of routes.

use super::*;

mod conflicts;
mod filters;
mod mirrors;

/// A route of one of five kinds, by the prefix of its name.
fn route(name: &str, spec: &str) -> String {
    let (namespace, short) = name.rsplit_once('/').unwrap_or(("shop", name));
    let (version, kind) = match short.split('-').next() {
        Some("policy") => ("policy.linkerd.io/v1beta3", "HTTPRoute"),
        Some("http") => ("gateway.networking.k8s.io/v1", "HTTPRoute"),
        Some("grpc") => ("gateway.networking.k8s.io/v1", "GRPCRoute"),
        Some("tls") => ("gateway.networking.k8s.io/v1alpha2", "TLSRoute"),
        Some("tcp") => ("gateway.networking.k8s.io/v1alpha2", "TCPRoute"),
        other => panic!("{other:?}"),
    };
    format!(
        "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {short}, namespace: {namespace}, generation: 3}}\nspec: {spec}\n"
    )
}

/// Returns a spec with parents in short notation, such as `Service web:80`, and backends of its
/// only rule, such as `api:80`.
fn spec(parents: &[&str], backends: &[&str]) -> String {
    let parents: Vec<String> = parents.iter().map(|parent| parent_ref(parent)).collect();
    let backends: Vec<String> = backends
        .iter()
        .map(|backend| backend_ref(backend))
        .collect();
    format!(
        "{{parentRefs: [{}], rules: [{{backendRefs: [{}]}}]}}",
        parents.join(", "),
        backends.join(", ")
    )
}

fn parent_ref(text: &str) -> String {
    let (kind, name) = text.split_once(' ').unwrap();
    let group = match kind {
        "Service" => "\"\"",
        "Gateway" => "gateway.networking.k8s.io",
        _ => "policy.linkerd.io",
    };
    let (name, port) = port(name);
    let (name, namespace) = namespace(name);
    format!("{{group: {group}, kind: {kind}, name: {name}{namespace}{port}}}")
}

fn backend_ref(text: &str) -> String {
    let (kind, name) = text.split_once(' ').unwrap_or(("Service", text));
    let (name, port) = port(name);
    let (name, namespace) = namespace(name);
    format!("{{kind: {kind}, name: {name}{namespace}{port}}}")
}

fn port(name: &str) -> (&str, String) {
    match name.split_once(':') {
        Some((name, port)) => (name, format!(", port: {port}")),
        None => (name, String::new()),
    }
}

fn namespace(name: &str) -> (&str, String) {
    match name.split_once('/') {
        Some((namespace, name)) => (name, format!(", namespace: {namespace}")),
        None => (name, String::new()),
    }
}

/// Returns the conditions of a route for each parent: true conditions by name with what they note,
/// others with reason and message.
fn conditions(text: &str, name: &str) -> String {
    let objects = objects(text);
    let DesiredStatus::Route(parents) = desired(&objects, find(&objects, name)) else {
        panic!("{name} is not a route");
    };
    let parents = parents.iter().map(|status| {
        let conditions = status.conditions.iter().map(|condition| {
            if condition.is_true {
                assert_eq!(condition.reason, condition.kind);
                match &*condition.message {
                    "" => condition.kind.to_owned(),
                    note => format!("{} ({note})", condition.kind),
                }
            } else {
                let (kind, reason) = (condition.kind, condition.reason);
                format!("not {kind}: {reason}: {}", condition.message)
            }
        });
        conditions.collect::<Vec<_>>().join(", ")
    });
    parents.collect::<Vec<_>>().join(" | ")
}

/// Checks that the conditions of the first route contain a text.
fn check(what: &str, routes: &[(&str, String)], expect: &str) {
    let text: String = routes
        .iter()
        .map(|(name, spec)| route(name, spec))
        .collect();
    check_text(what, &text, routes[0].0, expect);
}

/// Checks that the conditions of a route contain a text.
fn check_text(what: &str, objects: &str, name: &str, expect: &str) {
    let found = conditions(objects, name);
    let same = match expect.strip_suffix('…') {
        Some(beginning) => found.starts_with(beginning),
        None => found == expect,
    };
    assert!(same, "{what}\n  found {found:?}\n  expected {expect:?}");
}

const BOTH: &str = "Accepted, ResolvedRefs";

#[test]
fn service_accepts_routes_if_it_has_cluster_ip_and_port() {
    let missing = "not Accepted: NoMatchingParent: there is no Service shop/gone, ResolvedRefs";
    let port = "not Accepted: NoMatchingParent: Service shop/web has no port 81; it has 80, 8080, ResolvedRefs";
    let none = "not Accepted: NoMatchingParent: Service shop/portless has no port 80; it has none…";
    for kind in ["policy", "http", "grpc", "tls", "tcp"] {
        for (what, parent, expect) in [
            ("all ports", "Service web", BOTH),
            ("first port", "Service web:80", BOTH),
            ("second port", "Service web:8080", BOTH),
            ("another port", "Service web:81", port),
            ("no ports", "Service portless:80", none),
            ("other namespace", "Service other/api:7000", BOTH),
            ("missing", "Service gone", missing),
            (
                "missing in the other namespace",
                "Service other/web",
                "not Accepted: NoMatchingParent: there is no Service other/web…",
            ),
            (
                "headless",
                "Service headless:80",
                "not Accepted: NoMatchingParent: Service shop/headless is headless…",
            ),
            (
                "ExternalName",
                "Service external:80",
                "not Accepted: NoMatchingParent: Service shop/external is of type ExternalName…",
            ),
        ] {
            let what = format!("{kind}: {what}");
            check(&what, &[(kind, spec(&[parent], &[]))], expect);
        }
    }
}

#[test]
fn server_accepts_routes_of_its_namespace_and_protocol() {
    let not = |reason: &str| format!("not Accepted: {reason}");
    for (route, parent, expect) in [
        ("policy", "Server detect", "Accepted".to_owned()),
        ("http", "Server detect", "Accepted".to_owned()),
        ("http", "Server http2", "Accepted".to_owned()),
        ("grpc", "Server grpc", "Accepted".to_owned()),
        (
            "grpc",
            "Server detect",
            not(
                "NoMatchingParent: Server shop/detect has proxyProtocol unknown, which GRPCRoutes do not apply to",
            ),
        ),
        // A call of gRPC is a request of HTTP/2.
        ("http", "Server grpc", "Accepted".to_owned()),
        (
            "policy",
            "Server opaque",
            not("NoMatchingParent: Server shop/opaque has proxyProtocol opaque…"),
        ),
        (
            "policy",
            "Server gone",
            not("NoMatchingParent: there is no Server shop/gone"),
        ),
        (
            "policy",
            "Server other/detect",
            not(
                "NoMatchingParent: Server other/detect is in another namespace than the route; expected shop",
            ),
        ),
        (
            "policy",
            "Server detect:8080",
            not("NoMatchingParent: the reference to Server shop/detect has a port; remove it…"),
        ),
    ] {
        check(parent, &[(route, spec(&[parent], &[]))], &expect);
    }
}

#[test]
fn mistake_in_one_reference_to_server_makes_route_unusable() {
    let parents = ["Server detect", "Server http2:80"];
    check(
        "a port",
        &[("policy", spec(&parents, &[]))],
        "not Accepted: UnsupportedValue: the reference to Server shop/http2 has a port; remove it, the Server has one | not Accepted: NoMatchingParent: the reference to Server shop/http2 has a port…",
    );
    let section =
        "{parentRefs: [{group: policy.linkerd.io, kind: Server, name: detect, sectionName: a}]}";
    check(
        "a section",
        &[("policy", section.to_owned())],
        "not Accepted: NoMatchingParent: the reference to Server shop/detect has a sectionName…",
    );
}

#[test]
fn parents_of_other_controllers_have_no_status() {
    check("a Gateway", &[("http", spec(&["Gateway edge"], &[]))], "");
    let both = spec(&["Gateway edge", "Service web:80"], &[]);
    check("a Gateway and a Service", &[("http", both)], BOTH);
    let service = "{parentRefs: [{group: apps, kind: Service, name: web}]}";
    check(
        "a Service of another group",
        &[("http", service.to_owned())],
        "",
    );
    check("no parents", &[("http", "{}".to_owned())], "");
    let repeated = spec(&["Service web:80", "Service web:80"], &[]);
    check("a repeated parent", &[("http", repeated)], BOTH);
}

#[test]
fn groups_and_kinds_of_services_are_compared_as_in_linkerd() {
    for parent in [
        "{group: core, kind: Service, name: web}",
        "{group: \"\", kind: service, name: web}",
        "{group: CORE, kind: Service, name: web, namespace: shop}",
    ] {
        let spec = format!("{{parentRefs: [{parent}]}}");
        check(parent, &[("http", spec)], BOTH);
    }
}

#[test]
fn each_parent_has_a_status() {
    check(
        "three parents",
        &[(
            "http",
            spec(
                &["Service web:80", "Service gone:80", "Server detect"],
                &["api:80"],
            ),
        )],
        "Accepted, ResolvedRefs | not Accepted: NoMatchingParent: there is no Service shop/gone, ResolvedRefs | Accepted",
    );
}

#[test]
fn backends_must_exist_with_the_port() {
    let not = |text: &str| format!("Accepted, not ResolvedRefs: {text}");
    for (backends, expect) in [
        (&[][..], BOTH.to_owned()),
        (&["api:80"], BOTH.to_owned()),
        (&["web:80", "api:80"], BOTH.to_owned()),
        (&["headless:80"], BOTH.to_owned()),
        (&["other/api:7000"], BOTH.to_owned()),
        (
            &["gone:80"],
            not("BackendNotFound: spec.rules[0].backendRefs[0]: there is no Service shop/gone"),
        ),
        (
            &["api:80", "gone:80"],
            not("BackendNotFound: spec.rules[0].backendRefs[1]: there is no Service shop/gone"),
        ),
        (
            &["other/gone:80"],
            not("BackendNotFound: spec.rules[0].backendRefs[0]: there is no Service other/gone"),
        ),
        (
            &["api:81"],
            not(
                "BackendNotFound: spec.rules[0].backendRefs[0]: Service shop/api has no port 81; it has 80",
            ),
        ),
        (
            &["api"],
            not(
                "BackendNotFound: spec.rules[0].backendRefs[0]: has no port; Service shop/api has 80",
            ),
        ),
        (
            &["external:80"],
            not(
                "BackendNotFound: spec.rules[0].backendRefs[0]: Service shop/external is of type ExternalName…",
            ),
        ),
        (
            &["Bucket a:80"],
            not(
                "InvalidKind: spec.rules[0].backendRefs[0]: Bucket shop/a cannot be a backend; expected a Service",
            ),
        ),
        (
            &["Bucket a:80", "gone:80"],
            not("InvalidKind: spec.rules[0].backendRefs[0]: Bucket…"),
        ),
    ] {
        for kind in ["policy", "http", "grpc", "tls", "tcp"] {
            let what = format!("{kind}: {backends:?}");
            check(
                &what,
                &[(kind, spec(&["Service web:80"], backends))],
                &expect,
            );
        }
    }
}

#[test]
fn backend_without_namespace_is_in_that_of_the_parent() {
    let to_other = spec(&["Service other/api:7000"], &["api:7000"]);
    check("in the parent's", &[("http", to_other)], BOTH);
    let to_own = spec(&["Service other/api:7000"], &["web:80"]);
    check(
        "not in the route's",
        &[("http", to_own)],
        "Accepted, not ResolvedRefs: BackendNotFound: spec.rules[0].backendRefs[0]: there is no Service other/web",
    );
}

#[test]
fn backends_of_later_rules_count() {
    let spec = "{parentRefs: [{group: core, kind: Service, name: web}], rules: [{}, {backendRefs: [{name: gone, port: 80}]}]}";
    check(
        "the second rule",
        &[("http", spec.to_owned())],
        "Accepted, not ResolvedRefs: BackendNotFound: spec.rules[1].backendRefs[0]…",
    );
}

#[test]
fn conditions_follow_the_objects() {
    let mut objects = objects(&route("http", &spec(&["Service web:80"], &["api:80"])));
    let reason = |objects: &StatusObjects| {
        let DesiredStatus::Route(parents) = desired(objects, find(objects, "http")) else {
            panic!();
        };
        let conditions = parents[0].conditions.iter();
        conditions
            .map(|condition| condition.reason)
            .collect::<Vec<_>>()
    };
    assert_eq!(reason(&objects), ["Accepted", "ResolvedRefs"]);
    for (name, expect) in [
        ("api", ["Accepted", "BackendNotFound"]),
        ("web", ["NoMatchingParent", "BackendNotFound"]),
    ] {
        let service = read(CLUSTER).into_iter().find(|object| {
            let key = object.key();
            key.kind == Kind::Service && *key.name.name == *name && *key.name.namespace == *"shop"
        });
        assert!(objects.apply(&[Change::Delete(service.unwrap().key())]));
        assert_eq!(reason(&objects), expect);
    }
    let all = read(CLUSTER);
    let kept = read(&route("http", &spec(&["Service web:80"], &["api:80"])));
    let everything = all.into_iter().chain(kept).collect();
    assert!(objects.apply(&[Change::Replace(everything)]));
    assert_eq!(reason(&objects), ["Accepted", "ResolvedRefs"]);
    assert!(!objects.apply(&[]));
}

#[test]
fn egress_network_accepts_routes_with_a_port() {
    let not = |text: &str| format!("not Accepted: NoMatchingParent: {text}");
    for (parent, expect) in [
        ("EgressNetwork outside:443", BOTH.to_owned()),
        (
            "EgressNetwork outside",
            not(
                "the reference to EgressNetwork shop/outside has no port; add that of the traffic, ResolvedRefs",
            ),
        ),
        (
            "EgressNetwork inside:443",
            not(
                "EgressNetwork shop/inside is not accepted, because it overlaps the cluster networks…",
            ),
        ),
        (
            "EgressNetwork gone:443",
            not("there is no EgressNetwork shop/gone…"),
        ),
    ] {
        for kind in ["policy", "http", "grpc", "tls", "tcp"] {
            let what = format!("{kind}: {parent}");
            check(&what, &[(kind, spec(&[parent], &[]))], &expect);
        }
    }
    check(
        "a route of another namespace",
        &[("other/tls", spec(&["EgressNetwork shop/outside:443"], &[]))],
        BOTH,
    );
}

#[test]
fn egress_network_is_a_backend_where_it_is_the_parent() {
    let backend = "{group: policy.linkerd.io, kind: EgressNetwork, name: NAME, port: 443}";
    let with = |parent: &str, name: &str| {
        let backend = backend.replace("NAME", name);
        format!(
            "{{parentRefs: [{}], rules: [{{backendRefs: [{backend}]}}]}}",
            parent_ref(parent)
        )
    };
    let not = |text: &str| format!("Accepted, not ResolvedRefs: {text}");
    for (parent, name, expect) in [
        ("EgressNetwork outside:443", "outside", BOTH.to_owned()),
        (
            "EgressNetwork outside:443",
            "inside",
            not(
                "InvalidKind: spec.rules[0].backendRefs[0]: EgressNetwork shop/inside can only be a backend where it is the parent",
            ),
        ),
        (
            "EgressNetwork outside:443",
            "gone",
            not(
                "BackendNotFound: spec.rules[0].backendRefs[0]: there is no EgressNetwork shop/gone",
            ),
        ),
        (
            "Service web:80",
            "outside",
            not("InvalidKind: …").replace(" …", "…"),
        ),
    ] {
        check(name, &[("tls", with(parent, name))], &expect);
    }
}

#[test]
fn servers_have_no_routes_of_connections() {
    for kind in ["tls", "tcp"] {
        check(
            kind,
            &[(kind, spec(&["Server opaque"], &[]))],
            "not Accepted: NoMatchingParent: Server shop/opaque has proxyProtocol opaque…",
        );
    }
}

#[test]
fn section_is_the_name_of_a_port_of_a_service() {
    for (section, expect) in [
        ("sectionName: http", BOTH),
        ("sectionName: http, port: 80", BOTH),
        (
            "sectionName: http, port: 8080",
            "not Accepted: NoMatchingParent: Service shop/web has no port 8080 with the name http of the sectionName…",
        ),
        (
            "sectionName: gone",
            "not Accepted: NoMatchingParent: Service shop/web has no port with the name gone…",
        ),
    ] {
        let service =
            format!("{{parentRefs: [{{group: core, kind: Service, name: web, {section}}}]}}");
        check(section, &[("http", service)], expect);
    }
    let network = "{parentRefs: [{group: policy.linkerd.io, kind: EgressNetwork, name: outside, port: 443, sectionName: a}]}";
    check(
        "an EgressNetwork",
        &[("tls", network.to_owned())],
        "not Accepted: NoMatchingParent: the reference to EgressNetwork shop/outside has a sectionName…",
    );
}
