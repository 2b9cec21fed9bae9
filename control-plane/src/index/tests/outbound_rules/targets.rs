//! The kinds of targets: a Service, an EgressNetwork, an address outside the cluster, or nothing.

use super::*;

const DEFAULT_WEB: &str = "
    core/Service shop/web:80 detectTimeout=10s protocol=detect
    tcpRoute default/opaq backends=[core/Service shop/web:80 balances]
    httpRoutes default/http
    rule backends=[core/Service shop/web:80 balances] matches=[/*]
";

/// Returns the message for an address that no object has.
fn fallback(addr: &str) -> String {
    let to = format!("backends=[default/egress-fallback endpoint forwardsTo={addr}]");
    format!(
        "default/egress-fallback detectTimeout=10s protocol=detect
         tcpRoute default/egress-fallback {to}
         httpRoutes default/egress-fallback
         rule {to} matches=[*]"
    )
}

/// Returns the message for an address of an EgressNetwork without routes.
fn allowed(network: &str, addr: &str) -> String {
    let (_, port) = addr.rsplit_once(':').unwrap();
    let meta = format!("policy/EgressNetwork {network}:{port}");
    let to = format!("backends=[{meta} endpoint forwardsTo={addr}]");
    format!(
        "{meta} detectTimeout=10s protocol=detect
         tcpRoute default/tcp-egress-allow {to}
         httpRoutes default/http-egress-allow
         rule {to} matches=[/*]"
    )
}

#[test]
fn cluster_ip_with_defined_port_is_service() {
    check(&web(), "10.96.0.1:80", DEFAULT_WEB);
}

#[test]
fn cluster_ip_with_undefined_port_is_forbidden() {
    check(
        &web(),
        "10.96.0.1:81",
        "core/Service shop/web:81 protocol=opaque
         tcpRoute default/undefined-port rejects=forbidden by policy",
    );
}

#[test]
fn undefined_port_is_forbidden_even_with_egress_network_of_address() {
    let objects = web() + &network("shop", "all", "Allow", "0.0.0.0/0", "");
    check(
        &objects,
        "10.96.0.1:81",
        "core/Service shop/web:81 protocol=opaque
         tcpRoute default/undefined-port rejects=forbidden by policy",
    );
}

#[test]
fn authority_is_service_without_its_existence() {
    for authority in [
        "web.shop.svc.cluster.local:80",
        "web.shop.svc.cluster.local.",
        "web.shop.svc",
    ] {
        check("", authority, DEFAULT_WEB);
        check(&web(), authority, DEFAULT_WEB);
    }
}

#[test]
fn authority_with_undefined_port_is_balanced() {
    check(
        &web(),
        "web.shop.svc:81",
        "core/Service shop/web:81 detectTimeout=10s protocol=detect
         tcpRoute default/opaq backends=[core/Service shop/web:81 balances]
         httpRoutes default/http
         rule backends=[core/Service shop/web:81 balances] matches=[/*]",
    );
}

#[test]
fn other_authority_is_not_found() {
    let mut cluster = Cluster::new(&(web() + &network("shop", "all", "Allow", "", "")));
    for authority in ["web.shop", "example.com:443", "a.web.shop.svc"] {
        let error = cluster.lookup(authority, "shop").unwrap_err();
        assert_eq!(error, OutboundError::NoSuchService, "{authority}");
    }
    for authority in ["", ":80", "web.shop.svc:0"] {
        let error = cluster.lookup(authority, "shop").unwrap_err();
        let invalid = OutboundError::InvalidAuthority(authority.into());
        assert_eq!(error, invalid, "{authority}");
    }
}

#[test]
fn address_outside_cluster_networks_is_forwarded() {
    check("", "203.0.113.1:443", &fallback("203.0.113.1:443"));
    check("", "[2001:db8::1]:443", &fallback("[2001:db8::1]:443"));
}

#[test]
fn address_in_cluster_networks_is_not_found() {
    let mut cluster = Cluster::new(&network("shop", "outside", "Allow", "", ""));
    let error = cluster.lookup("10.1.0.1:80", "shop").unwrap_err();
    assert_eq!(error, OutboundError::NoSuchService);
}

#[test]
fn mapped_address_is_that_of_ipv4() {
    let objects = web() + &network("shop", "outside", "Allow", "203.0.113.0/24", "");
    check(&objects, "[::ffff:10.96.0.1]:80", DEFAULT_WEB);
    let watched = Cluster::new(&objects).watch("[::ffff:203.0.113.1]:443", "shop");
    assert!(message(&watched).starts_with("policy/EgressNetwork shop/outside:443"));
}

#[test]
fn network_without_cidrs_has_all_addresses_outside_cluster() {
    let objects = network("shop", "outside", "Allow", "", "");
    for addr in ["203.0.113.1:443", "[2001:db8::1]:443"] {
        check(&objects, addr, &allowed("shop/outside", addr));
    }
}

#[test]
fn network_denies_by_default_route() {
    let meta = "policy/EgressNetwork shop/outside:443";
    let to = format!("backends=[{meta} endpoint forwardsTo=203.0.113.1:443]");
    check(
        &network("shop", "outside", "Deny", "203.0.113.0/24", ""),
        "203.0.113.1:443",
        &format!(
            "{meta} detectTimeout=10s protocol=detect
             tcpRoute default/tcp-egress-deny {to} rejects=forbidden by policy
             httpRoutes default/http-egress-deny
             rule {to} filters=[failure=(message=traffic not allowed ratio=1/1 status=403)] matches=[/*]"
        ),
    );
}

#[test]
fn address_in_exception_is_not_in_network() {
    let objects = "
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: outside, namespace: shop}
spec: {trafficPolicy: Deny, networks: [{cidr: 203.0.113.0/24, except: [203.0.113.0/30]}]}
";
    check(objects, "203.0.113.1:443", &fallback("203.0.113.1:443"));
    let watched = Cluster::new(objects).watch("203.0.113.4:443", "shop");
    assert!(message(&watched).starts_with("policy/EgressNetwork shop/outside:443"));
}

#[test]
fn own_namespace_is_before_global_one() {
    let global = network("linkerd-egress", "global", "Allow", "203.0.113.0/28", "");
    let own = network("shop", "own", "Allow", "203.0.113.0/24", "");
    let addr = "203.0.113.1:443";
    check(&global, addr, &allowed("linkerd-egress/global", addr));
    let mut cluster = Cluster::new(&(global + &own));
    let watched = cluster.watch(addr, "shop");
    assert_text(&message(&watched), &allowed("shop/own", addr));
    let watched = cluster.watch(addr, "other");
    assert_text(&message(&watched), &allowed("linkerd-egress/global", addr));
}

#[test]
fn any_network_in_own_namespace_hides_global_ones() {
    let global = network("linkerd-egress", "global", "Deny", "", "");
    let own = network("shop", "own", "Allow", "198.51.100.0/24", "");
    let addr = "203.0.113.1:443";
    check(&(global + &own), addr, &fallback(addr));
}

#[test]
fn network_of_another_namespace_does_not_apply() {
    let addr = "203.0.113.1:443";
    check(
        &network("other", "own", "Deny", "", ""),
        addr,
        &fallback(addr),
    );
}

#[test]
fn longest_prefix_is_before_age() {
    let old = ", creationTimestamp: '2026-01-01T00:00:00Z'";
    let objects = network("shop", "wide", "Allow", "203.0.113.0/24", old)
        + &network(
            "shop",
            "zz-narrow",
            "Allow",
            "203.0.0.0/8 203.0.113.0/28",
            "",
        )
        + &network("shop", "all", "Allow", "", old);
    let addr = "203.0.113.1:443";
    check(&objects, addr, &allowed("shop/zz-narrow", addr));
    let addr = "203.0.113.99:443";
    check(&objects, addr, &allowed("shop/wide", addr));
    let addr = "198.51.100.1:443";
    check(&objects, addr, &allowed("shop/all", addr));
}

#[test]
fn older_network_is_before_name() {
    let created = |day: u8| format!(", creationTimestamp: '2026-01-0{day}T00:00:00Z'");
    let objects = network("shop", "a-young", "Allow", "203.0.113.0/24", &created(2))
        + &network("shop", "b-old", "Allow", "203.0.113.0/24", &created(1))
        + &network("shop", "a-without-age", "Allow", "203.0.113.0/24", "");
    let addr = "203.0.113.1:443";
    check(&objects, addr, &allowed("shop/b-old", addr));
}

#[test]
fn first_name_is_last_criterion() {
    let objects = network("shop", "b", "Allow", "203.0.113.0/24", "")
        + &network("shop", "a", "Allow", "203.0.113.0/24", "");
    let addr = "203.0.113.1:443";
    check(&objects, addr, &allowed("shop/a", addr));
}

#[test]
fn network_with_cluster_addresses_has_them_but_no_service() {
    let objects = web() + &network("shop", "inside", "Allow", "10.0.0.0/8", "");
    check(&objects, "10.96.0.1:80", DEFAULT_WEB);
    check(
        &objects,
        "10.1.0.1:80",
        &allowed("shop/inside", "10.1.0.1:80"),
    );
}

#[test]
fn streams_follow_networks_that_come_change_and_go() {
    let addr = "203.0.113.1:443";
    let mut cluster = Cluster::new("");
    let mut watched = cluster.watch(addr, "shop");
    assert_text(&message(&watched), &fallback(addr));
    watched.borrow_and_update();
    // A network of another namespace does not concern this client.
    cluster.apply(&network("other", "own", "Deny", "", ""));
    assert!(!watched.has_changed().unwrap());
    cluster.apply(&network("linkerd-egress", "global", "Allow", "", ""));
    assert_text(&message(&watched), &allowed("linkerd-egress/global", addr));
    cluster.apply(&network("shop", "own", "Allow", "203.0.113.0/24", ""));
    assert_text(&message(&watched), &allowed("shop/own", addr));
    cluster.apply(&network("shop", "own", "Allow", "198.51.100.0/24", ""));
    assert_text(&message(&watched), &fallback(addr));
    cluster.delete(Kind::EgressNetwork, "shop", "own");
    assert_text(&message(&watched), &allowed("linkerd-egress/global", addr));
    cluster.apply(&network("linkerd-egress", "global", "Deny", "", ""));
    assert!(message(&watched).contains("tcp-egress-deny"));
    cluster.delete(Kind::EgressNetwork, "linkerd-egress", "global");
    assert_text(&message(&watched), &fallback(addr));
}

#[test]
fn stream_ends_when_address_in_cluster_loses_its_network() {
    let mut cluster = Cluster::new(&network("shop", "inside", "Allow", "10.9.0.0/16", ""));
    let watched = cluster.watch("10.9.0.1:80", "shop");
    cluster.delete(Kind::EgressNetwork, "shop", "inside");
    assert!(watched.borrow().is_none());
    assert!(cluster.lookup("10.9.0.1:80", "shop").is_err());
}

#[test]
fn stream_of_name_stays_when_its_service_is_deleted() {
    let mut cluster = Cluster::new(&web());
    let mut watched = cluster.watch("web.shop.svc:80", "shop");
    watched.borrow_and_update();
    cluster.delete(Kind::Service, "shop", "web");
    assert_text(&message(&watched), DEFAULT_WEB);
    assert!(!watched.has_changed().unwrap());
}

#[test]
fn stream_of_address_ends_when_its_service_does_not_have_it_any_more() {
    let cart = service("cart", "10.96.0.1", "{port: 80}", "");
    let moved = service("web", "10.96.0.2", "{port: 80}", "");
    for after in ["", &cart, &moved] {
        let mut cluster = Cluster::new(&web());
        let watched = cluster.watch("10.96.0.1:80", "shop");
        if after != moved {
            cluster.delete(Kind::Service, "shop", "web");
        }
        cluster.apply(after);
        assert!(watched.borrow().is_none(), "{after}");
        match cluster.lookup("10.96.0.1:80", "shop") {
            Ok(now) => assert!(message(&now).starts_with("core/Service shop/cart:80")),
            Err(error) => assert_eq!(error, OutboundError::NoSuchService),
        }
    }
}

#[test]
fn stream_of_address_ends_when_a_service_takes_it() {
    let objects = network("shop", "inside", "Allow", "10.0.0.0/8", "");
    let mut cluster = Cluster::new(&objects);
    let watched = cluster.watch("10.96.0.1:80", "shop");
    cluster.apply(&web());
    assert!(watched.borrow().is_none());
    assert_text(
        &message(&cluster.watch("10.96.0.1:80", "shop")),
        DEFAULT_WEB,
    );
}
