//! Filters that mirror requests.

use super::*;

/// The Service `shadow` with its address 10.96.0.2 and the port 80.
fn shadow() -> String {
    service("shadow", "10.96.0.2", "{port: 80}", "")
}

fn filter(settings: &str) -> String {
    format!("{{type: RequestMirror, requestMirror: {{{settings}}}}}")
}

/// Returns the lines of the rules of the route.
fn rules(watched: &Watched) -> String {
    let text = message(watched);
    let lines = text.lines().filter(|line| line.starts_with("  "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn requests_are_mirrored_by_the_extension() {
    let to = "backendRef: {name: shadow, port: 80}";
    for (kind, code) in [("HTTPRoute", 500), ("GRPCRoute", 13)] {
        for (share, expected) in [
            ("", "1/1"),
            (", percent: 50", "50/100"),
            (", percent: 0", "0/100"),
            (", fraction: {numerator: 3}", "3/100"),
            (", fraction: {numerator: 1, denominator: 1000}", "1/1000"),
        ] {
            let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}";
            let mirror = filter(&format!("{to}{share}"));
            let list = format!("[{{filters: [{mirror}, {headers}, {mirror}]}}]");
            let objects = web() + &shadow() + &route(kind, "one", WEB, &list);
            let watched = Cluster::new(&objects).watch("10.96.0.1:80", "shop");
            let mirror = format!("mirror(shadow.shop.svc.cluster.local:80 {expected})");
            let expected = format!(
                "[] fail({code} filters[0].type: RequestMirror is not supported by this proxy) \
                 l5d -> core/Service shop/web:80
                 extended 0.0 {mirror} request {mirror}"
            );
            assert_text(&rules(&watched), &expected);
        }
    }
}

/// The status of the route names the problem.
#[test]
fn mirror_without_backend_is_omitted_until_it_exists() {
    let headers =
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}";
    let missing = filter("backendRef: {name: shadow, port: 80}");
    let no_port = filter("backendRef: {name: web}");
    let other_kind = filter("backendRef: {group: a.example, kind: Bucket, name: web, port: 80}");
    let present = filter("backendRef: {name: web, port: 80}");
    let list = format!("[{{filters: [{no_port}, {missing}, {headers}, {other_kind}]}}]");
    let mut cluster = Cluster::new(&(web() + &route("HTTPRoute", "one", WEB, &list)));
    let watched = cluster.watch("10.96.0.1:80", "shop");
    let without = "[] request(=a:b) l5d -> core/Service shop/web:80";
    assert_text(&rules(&watched), without);
    cluster.apply(&shadow());
    let with = "[] fail(500 filters[0].type: RequestMirror is not supported by this proxy) \
                l5d -> core/Service shop/web:80
                extended 0.0 mirror(shadow.shop.svc.cluster.local:80 1/1) request";
    assert_text(&rules(&watched), with);
    cluster.delete(Kind::Service, "shop", "shadow");
    assert_text(&rules(&watched), without);

    let list = format!("[{{filters: [{missing}, {headers}, {present}]}}]");
    let objects = web() + &route("HTTPRoute", "one", WEB, &list);
    let watched = Cluster::new(&objects).watch("10.96.0.1:80", "shop");
    let text = rules(&watched);
    let order = "extended 0.0 request mirror(web.shop.svc.cluster.local:80 1/1)";
    assert!(text.ends_with(order), "{text}");
}

/// The same holds for every backend.
#[test]
fn backend_of_mirror_is_in_namespace_of_parent_and_needs_no_grant() {
    let elsewhere = shadow().replace("namespace: shop", "namespace: elsewhere");
    let named = filter("backendRef: {name: shadow, namespace: elsewhere, port: 80}");
    let unnamed = filter("backendRef: {name: web, port: 80}");
    let list = format!("[{{filters: [{named}, {unnamed}]}}]");
    let objects = web() + &elsewhere + &route_in("client", "HTTPRoute", "one", WEB, &list);
    let watched = Cluster::new(&objects).watch("10.96.0.1:80", "client");
    let text = rules(&watched);
    let mirrors = "extended 0.0 mirror(shadow.elsewhere.svc.cluster.local:80 1/1) \
                   mirror(web.shop.svc.cluster.local:80 1/1)";
    assert!(text.ends_with(mirrors), "{text}");
}

#[test]
fn requests_to_networks_are_mirrored() {
    let mirror = filter("backendRef: {name: shadow, port: 80}");
    let list = format!("[{{filters: [{mirror}]}}]");
    let objects = network("shop", "outside", "Allow", "203.0.113.0/24", "")
        + &shadow()
        + &route("HTTPRoute", "one", OUTSIDE, &list);
    let text = rules(&Cluster::new(&objects).watch("203.0.113.1:443", "shop"));
    let expected = "extended 0.0 mirror(shadow.shop.svc.cluster.local:80 1/1)";
    assert!(text.ends_with(expected), "{text}");
}
