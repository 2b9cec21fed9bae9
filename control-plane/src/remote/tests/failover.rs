//! Fail-over between the members of a federated Service.

use super::*;

/// A node of the zone `a` and one of `b`, in the same region.
const NODES: &str = "apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a, topology.kubernetes.io/region: r}}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, labels: {topology.kubernetes.io/zone: b, topology.kubernetes.io/region: r}}
";

/// Returns the Service `web` and its slice. Endpoints are words such as `1a`, the last number of
/// the address and the zone, `!` before one that is not ready.
fn web_of(network: &str, words: &str) -> String {
    let endpoint = |word: &str| {
        let ready = !word.starts_with('!');
        let word = word.trim_start_matches('!');
        let (number, zone) = word.split_at(word.len() - 1);
        format!("{{addresses: [{network}.{number}], zone: {zone}, conditions: {{ready: {ready}}}}}")
    };
    let endpoints: Vec<String> = words.split_whitespace().map(endpoint).collect();
    let listed = format!("endpoints: [{}]", endpoints.join(", "));
    web(&[], "").replace("endpoints: []", &listed)
}

/// Returns a Service with these members, an annotation of localities and more fields.
fn joined(local: &str, remote: &str, levels: &str, spec: &str) -> String {
    let annotations = format!(
        "multicluster.linkerd.io/remote-discovery: '{remote}', \
         multicluster.linkerd.io/local-discovery: '{local}'{levels}"
    );
    service("web-federated", "", &annotations).replace("spec: {", &format!("spec: {{{spec}"))
}

fn preferring(levels: &str) -> String {
    let levels = format!(", locality.linkerd.io/failover: '{levels}'");
    joined("web", "web@east,web@west", &levels, "")
}

/// This cluster has two endpoints in each of the zones `a` and `b`. `east` has some in the zones
/// `b` and `e`, `west` in a zone without a region here.
fn three_clusters() -> (World, Index, Index) {
    let world = World::new();
    apply(&world.local, NODES);
    apply(&world.local, &web_of("10.1.0", "1a 2a 3b 4b"));
    let [east, west] = ["east", "west"].map(|cluster| world.link(cluster, &[]));
    apply(&east, &web_of("10.2.0", "1b 2e"));
    apply(&west, &web_of("10.3.0", "1w"));
    (world, east, west)
}

/// Returns the endpoints without what their addresses have in common.
fn short(endpoints: &Endpoints) -> String {
    let short = |addr: String| {
        let addr = addr.trim_start_matches("10.");
        addr.replace(".0.", ".").replace(":8080", "")
    };
    let addrs: Vec<String> = addrs(endpoints).into_iter().map(short).collect();
    addrs.join(" ")
}

/// Waits for the endpoints, in the short form.
async fn expect_short(endpoints: &mut Endpoints, expected: &str) {
    let waiting = async {
        while short(endpoints) != expected {
            endpoints.changed().await.unwrap();
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    assert!(waited.is_ok(), "{}, expected {expected}", short(endpoints));
}

#[tokio::test]
async fn members_are_equal_without_an_order_and_follow_it_with_one() {
    let (world, ..) = three_clusters();
    let all = "1.1 1.2 1.3 1.4 2.1 2.2 3.1";
    apply(&world.local, &joined("web", "web@east,web@west", "", ""));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect_short(&mut endpoints, all).await;
    assert_eq!(endpoints.borrow().level, None);
    let close = "trafficDistribution: PreferClose, ";
    for (service, expected, level) in [
        (preferring("zone"), "1.1 1.2", Some("zone")),
        (preferring("region"), "1.1 1.2 1.3 1.4", Some("region")),
        // The zone `b` of the other cluster has its region from the node here.
        (
            preferring("zone=9, cluster=9, region"),
            "1.1 1.2 1.3 1.4 2.1",
            Some("region"),
        ),
        (preferring("cluster=5"), all, Some("all")),
        (
            joined("web", "web@east,web@west", "", close),
            "1.1 1.2",
            Some("zone"),
        ),
        (preferring("rack"), all, None),
    ] {
        apply(&world.local, &service);
        expect_short(&mut endpoints, expected).await;
        assert_eq!(endpoints.borrow().level, level, "{service}");
    }
}

#[tokio::test]
async fn other_clusters_are_used_while_the_own_one_has_too_few_ready_endpoints() {
    let (world, east, west) = three_clusters();
    apply(&world.local, &preferring("zone=50%, cluster=75%"));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect_short(&mut endpoints, "1.1 1.2").await;
    for (local, expected) in [
        ("!1a 2a 3b 4b", "1.2"),
        ("!1a !2a 3b 4b", "1.3 1.4 2.1 2.2 3.1"),
        ("!1a !2a !3b !4b", "2.1 2.2 3.1"),
        ("1a 2a 3b 4b", "1.1 1.2"),
    ] {
        apply(&world.local, &web_of("10.1.0", local));
        expect_short(&mut endpoints, expected).await;
    }
    // Without own endpoints at all, and when other clusters fail.
    delete(&world.local, Kind::Service, "web");
    expect_short(&mut endpoints, "2.1 2.2 3.1").await;
    apply(&east, &web_of("10.2.0", "!1b 2e"));
    expect_short(&mut endpoints, "2.2 3.1").await;
    world.clusters.remove("east");
    expect_short(&mut endpoints, "3.1").await;
    apply(&west, &web_of("10.3.0", "!1w"));
    expect_short(&mut endpoints, "").await;
}

/// Overlapping networks are a fault, but ready endpoints are used.
#[tokio::test]
async fn address_in_two_clusters_is_the_one_that_is_ready() {
    let (world, east, _west) = three_clusters();
    apply(&world.local, &preferring("cluster"));
    apply(&world.local, &web_of("10.1.0", "!1a"));
    apply(&east, &web_of("10.1.0", "1b"));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect_short(&mut endpoints, "1.1 3.1").await;
    apply(&world.local, &web_of("10.1.0", "1a"));
    expect_short(&mut endpoints, "1.1").await;
    apply(&east, &web_of("10.1.0", "!1b"));
    apply(&world.local, &web_of("10.1.0", "1a 2a"));
    expect_short(&mut endpoints, "1.1 1.2").await;
}

#[tokio::test]
async fn only_a_change_of_the_endpoints_in_use_is_published() {
    let (world, east, _west) = three_clusters();
    apply(&world.local, &preferring("zone"));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect_short(&mut endpoints, "1.1 1.2").await;
    endpoints.borrow_and_update();
    // Endpoints that the client does not use, and objects that do not concern it.
    apply(&east, &web_of("10.2.0", "!1b 2e 7e"));
    apply(&world.local, &web_of("10.1.0", "1a 2a !3b 4b"));
    apply(&world.local, &service("other", "", ""));
    apply(&world.local, &web_of("10.1.0", "1a 2a 3b 4b 5a"));
    endpoints.changed().await.unwrap();
    assert_eq!(short(&endpoints), "1.1 1.2 1.5");
    // The node of the client moves.
    apply(&world.local, &NODES.replacen("zone: a", "zone: b", 1));
    expect_short(&mut endpoints, "1.3 1.4").await;
}

/// Proxies on the nodes of a zone get the same messages.
#[tokio::test]
async fn clients_of_one_zone_share_versions() {
    let (world, east, _west) = three_clusters();
    let third = NODES
        .replace("node-b", "node-c")
        .replace("zone: b", "zone: a");
    apply(&world.local, &third);
    let nodes = ["node-a", "node-c", "node-b"];
    let versions = |clients: &[Endpoints; 3]| clients.each_ref().map(|it| it.borrow().clone());
    for levels in ["node, zone", "zone", "cluster"] {
        apply(&world.local, &preferring(levels));
        let mut clients = nodes.map(|node| world.watch_from(node, "web-federated").unwrap());
        let [a, c, b] = versions(&clients);
        assert!(Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &b), "{levels}");
        apply(&world.local, &web_of("10.1.0", "!1a !2a !3b !4b"));
        for client in &mut clients {
            expect_short(client, "2.1 2.2 3.1").await;
        }
        apply(&east, &web_of("10.2.0", "1b"));
        for client in &mut clients {
            expect_short(client, "2.1 3.1").await;
        }
        let [a, c, _b] = versions(&clients);
        assert!(Arc::ptr_eq(&a, &c), "{levels}");
        apply(&world.local, &web_of("10.1.0", "1a 2a 3b 4b"));
        apply(&east, &web_of("10.2.0", "1b 2e"));
    }
    let gone = async {
        while world.discovery.unions() > 0 || world.discovery.watched() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .unwrap();
}

/// Networks that are not flat are joined by gateways.
#[tokio::test]
async fn mirror_behind_a_gateway_is_a_member_in_another_cluster() {
    let world = World::new();
    apply(&world.local, NODES);
    apply(&world.local, &web_of("10.1.0", "1a 2b"));
    let mirror = "apiVersion: v1
kind: Service
metadata: {name: web-north, namespace: shop}
spec: {clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-north-1
  namespace: shop
  labels: {kubernetes.io/service-name: web-north, mirror.linkerd.io/cluster-name: north}
  annotations:
    mirror.linkerd.io/remote-svc-fq-name: web.shop.svc.cluster.local
    mirror.linkerd.io/remote-gateway-identity: gateway.mc.example
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.9.0.1]}]
";
    apply(&world.local, mirror);
    let preferred = ", locality.linkerd.io/failover: cluster";
    apply(&world.local, &joined("web, web-north", "", preferred, ""));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect_short(&mut endpoints, "1.1 1.2").await;
    apply(&world.local, &web_of("10.1.0", "!1a !2b"));
    expect_short(&mut endpoints, "9.1").await;
    let set = endpoints.borrow().value().clone();
    let gateway = &set.endpoints.values().next().unwrap().endpoint;
    assert!(gateway.tls.is_some());
    let authority = gateway.authority_override.as_deref();
    assert_eq!(authority, Some("web.shop.svc.cluster.local:80"));
    assert_eq!(gateway.labels.get("target_cluster"), Some("north"));
    apply(&world.local, &joined("web, web-north", "", "", ""));
    apply(&world.local, &web_of("10.1.0", "1a 2b"));
    expect_short(&mut endpoints, "1.1 1.2 9.1").await;
}
