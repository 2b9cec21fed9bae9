//! Filters that mirror requests.

use super::*;

/// The Service `shadow` with its address 10.96.0.2 and the port 80.
fn shadow() -> String {
    service("shadow", "10.96.0.2", "{port: 80}", "")
}

fn filter(settings: &str) -> String {
    format!("{{type: RequestMirror, requestMirror: {{{settings}}}}}")
}

/// Returns the filter that mirrors requests to a Service.
fn mirror(service: &str, ratio: &str) -> String {
    format!("requestMirror=(core/Service {service}:80 balances ratio={ratio})")
}

/// The modified headers of the request.
const HEADERS: &str = "requestHeaders=(set=[a: b])";

#[test]
fn requests_are_mirrored_by_the_extension() {
    let to = "backendRef: {name: shadow, port: 80}";
    for kind in ["HTTPRoute", "GRPCRoute"] {
        for (share, expected) in [
            ("", "1/1"),
            (", percent: 50", "50/100"),
            (", percent: 0", "0/100"),
            (", fraction: {numerator: 3}", "3/100"),
            (", fraction: {numerator: 1, denominator: 1000}", "1/1000"),
        ] {
            let headers = "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}";
            let filter = filter(&format!("{to}{share}"));
            let list = format!("[{{filters: [{filter}, {headers}, {filter}]}}]");
            let objects = web() + &shadow() + &route(kind, "one", WEB, &list);
            let watched = Cluster::new(&objects).watch("10.96.0.1:80", "shop");
            let mirror = mirror("shop/shadow", expected);
            let filters = format!("{mirror}, {HEADERS}, {mirror}");
            assert_text(
                &rule_lines(&watched),
                &extended(&filters, &unsupported(kind, "RequestMirror")),
            );
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
    let without = filtering(HEADERS);
    assert_text(&rule_lines(&watched), &without);
    cluster.apply(&shadow());
    let filters = format!("{}, {HEADERS}", mirror("shop/shadow", "1/1"));
    assert_text(
        &rule_lines(&watched),
        &extended(&filters, &unsupported("HTTPRoute", "RequestMirror")),
    );
    cluster.delete(Kind::Service, "shop", "shadow");
    assert_text(&rule_lines(&watched), &without);

    let list = format!("[{{filters: [{missing}, {headers}, {present}]}}]");
    let objects = web() + &route("HTTPRoute", "one", WEB, &list);
    let watched = Cluster::new(&objects).watch("10.96.0.1:80", "shop");
    let text = rule_lines(&watched);
    let order = format!("filters=[{HEADERS}, {}]", mirror("shop/web", "1/1"));
    assert!(text.contains(&order), "{text}");
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
    let text = rule_lines(&watched);
    let mirrors = [mirror("elsewhere/shadow", "1/1"), mirror("shop/web", "1/1")].join(", ");
    assert!(text.contains(&format!("filters=[{mirrors}]")), "{text}");
}

#[test]
fn requests_to_networks_are_mirrored() {
    let filter = filter("backendRef: {name: shadow, port: 80}");
    let list = format!("[{{filters: [{filter}]}}]");
    let objects = network("shop", "outside", "Allow", "203.0.113.0/24", "")
        + &shadow()
        + &route("HTTPRoute", "one", OUTSIDE, &list);
    let text = rule_lines(&Cluster::new(&objects).watch("203.0.113.1:443", "shop"));
    let expected = format!("filters=[{}]", mirror("shop/shadow", "1/1"));
    assert!(text.contains(&expected), "{text}");
}
