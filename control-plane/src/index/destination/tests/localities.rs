//! Endpoints of Services with an order of localities, or with a traffic distribution of nodes.

use mesh_core::identity::Identity;

use super::*;

/// The nodes: two of the zone `east`, one of `mid` in the same region, one of `far` in another one.
const NODES: &str = "---
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: east, topology.kubernetes.io/region: r1}}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, labels: {topology.kubernetes.io/zone: east, topology.kubernetes.io/region: r1}}
---
apiVersion: v1
kind: Node
metadata: {name: node-c, labels: {topology.kubernetes.io/zone: mid, topology.kubernetes.io/region: r1}}
---
apiVersion: v1
kind: Node
metadata: {name: node-d, labels: {topology.kubernetes.io/zone: far, topology.kubernetes.io/region: r2}}
";

/// The pods by the last number of their address, with node and zone.
const PODS: [(u8, &str, &str); 5] = [
    (1, "node-a", "east"),
    (2, "node-b", "east"),
    (3, "node-b", "east"),
    (4, "node-c", "mid"),
    (5, "node-d", "far"),
];

/// Returns the Service with annotations and more fields of its spec.
fn service(annotations: &str, spec: &str) -> String {
    let metadata = format!("{{name: web, namespace: shop, annotations: {{{annotations}}}}}");
    SERVICE
        .replacen("{name: web, namespace: shop}", &metadata, 1)
        .replacen("spec:\n", &format!("spec:\n{spec}"), 1)
}

fn preferring(levels: &str) -> String {
    service(&format!("locality.linkerd.io/failover: '{levels}'"), "")
}

/// Returns the slice; `more` has the conditions and hints of pods.
fn slice_of(more: impl Fn(u8) -> &'static str) -> String {
    let entries = PODS.map(|(n, _, zone)| {
        endpoint(&format!("web-{n}"), &format!("10.1.0.{n}"), more(n))
            .replace("zone: east", &format!("zone: {zone}"))
    });
    slice(&format!("[{}]", entries.join(", ")))
}

/// Returns the slice in which these pods are not ready.
fn without(unready: &'static [u8]) -> String {
    slice_of(|n| {
        if unready.contains(&n) {
            ", conditions: {ready: false, serving: false, terminating: false}"
        } else {
            ""
        }
    })
}

fn cluster(service: &str) -> DestinationIndex {
    let pods = PODS.map(|(n, node, _)| {
        let text = pod(&format!("web-{n}"), &format!("10.1.0.{n}"), true, "");
        text.replace("node-a", node)
    });
    index(&[service, NODES, &pods.concat(), &without(&[])].concat())
}

/// A client on a node, whose endpoints are written by the last numbers of their addresses.
struct Client(watch::Receiver<Arc<Version<EndpointSet>>>);

impl Client {
    fn on(index: &mut DestinationIndex, node: &str) -> Self {
        let node = Some(Arc::from(node));
        Self(endpoints(index, EndpointsKey { node, ..key(80) }))
    }

    fn endpoints(&self) -> Vec<u8> {
        let set = self.0.borrow().value().clone();
        let numbers = set.endpoints.keys().map(|addr| match addr.ip() {
            std::net::IpAddr::V4(ip) => ip.octets()[3],
            std::net::IpAddr::V6(ip) => panic!("{ip}"),
        });
        numbers.collect()
    }

    fn level(&self) -> Option<&'static str> {
        self.0.borrow().level
    }
}

#[test]
fn clients_use_the_nearest_level_with_enough_ready_endpoints() {
    let mut index = cluster(&preferring("node, zone=60%, region=2"));
    let clients = ["node-a", "node-b", "node-c", "node-d", "elsewhere"];
    let clients = clients.map(|node| Client::on(&mut index, node));
    for (unready, expected) in [
        (&[][..], [&[1][..], &[2, 3], &[4], &[5], &[1, 2, 3, 4, 5]]),
        (&[1], [&[2, 3], &[2, 3], &[4], &[5], &[2, 3, 4, 5]]),
        // One of three is less than 60 %.
        (&[1, 2], [&[3, 4], &[3], &[4], &[5], &[3, 4, 5]]),
        (&[1, 2, 3], [&[4, 5], &[4, 5], &[4], &[5], &[4, 5]]),
        (&[4, 5], [&[1], &[2, 3], &[1, 2, 3], &[1, 2, 3], &[1, 2, 3]]),
        (&[1, 2, 3, 4, 5], [&[], &[], &[], &[], &[]]),
        (&[], [&[1], &[2, 3], &[4], &[5], &[1, 2, 3, 4, 5]]),
    ] {
        index.apply(apply(&without(unready)));
        let found = clients.each_ref().map(Client::endpoints);
        assert_eq!(found, expected.map(<[u8]>::to_vec), "without {unready:?}");
    }
    let levels = clients.each_ref().map(Client::level);
    assert_eq!(
        levels.map(Option::unwrap),
        ["node", "node", "node", "node", "cluster"]
    );
}

#[test]
fn order_of_localities_follows_its_annotation_and_the_labels_of_nodes() {
    let mut index = cluster(SERVICE);
    let client = Client::on(&mut index, "node-a");
    assert_eq!(
        (client.endpoints(), client.level()),
        (vec![1, 2, 3, 4, 5], None)
    );
    for (levels, expected) in [
        ("zone", vec![1, 2, 3]),
        ("region", vec![1, 2, 3, 4]),
        ("node", vec![1]),
        ("region=9, cluster", vec![1, 2, 3, 4, 5]),
        // An invalid one counts as absent.
        ("rack", vec![1, 2, 3, 4, 5]),
        ("region", vec![1, 2, 3, 4]),
    ] {
        index.apply(apply(&preferring(levels)));
        assert_eq!(client.endpoints(), expected, "{levels}");
    }
    let moved = NODES.replace(
        "zone: far, topology.kubernetes.io/region: r2",
        "zone: far, topology.kubernetes.io/region: r1",
    );
    index.apply(apply(&moved));
    assert_eq!(client.endpoints(), [1, 2, 3, 4, 5]);
    // Without a label of the node, its zone tells.
    let unlabelled = NODES.replacen(
        "zone: east, topology.kubernetes.io/region: r1",
        "zone: east",
        1,
    );
    index.apply(apply(&unlabelled));
    assert_eq!(client.endpoints(), [1, 2, 3, 4]);
}

/// A rollout in a zone is not a failure of the zone.
#[test]
fn endpoints_that_are_deleted_do_not_count_and_serve_if_none_is_ready() {
    let mut index = cluster(&preferring("zone=60%"));
    let client = Client::on(&mut index, "node-a");
    let leaving = ", conditions: {ready: false, serving: true, terminating: true}";
    let left = ", conditions: {ready: false, serving: false, terminating: true}";
    for (conditions, expected) in [
        (["", leaving, leaving, "", ""], vec![1]),
        (["", left, left, "", ""], vec![1]),
        ([leaving, left, leaving, "", ""], vec![4, 5]),
        ([leaving, left, leaving, left, leaving], vec![1, 3, 5]),
    ] {
        index.apply(apply(&slice_of(|n| conditions[usize::from(n) - 1])));
        assert_eq!(client.endpoints(), expected, "{conditions:?}");
    }
}

/// No client can use such an endpoint, so it must not keep clients from others.
#[test]
fn endpoint_that_cannot_be_sent_is_not_ready() {
    let mut index = cluster(&preferring("node, zone=60%"));
    let client = Client::on(&mut index, "node-a");
    let broken = |n: u8, node: &str| {
        let text = pod(&format!("web-{n}"), &format!("10.1.0.{n}"), true, "");
        let text = text.replace("LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "OTHER");
        text.replace("node-a", node)
    };
    assert_eq!(client.endpoints(), [1]);
    index.apply(apply(&broken(1, "node-a")));
    assert_eq!(client.endpoints(), [2, 3]);
    index.apply(apply(&broken(2, "node-b")));
    assert_eq!(client.endpoints(), [3, 4, 5]);
}

#[test]
fn gateways_of_other_clusters_are_used_when_the_own_cluster_has_too_few() {
    let identity = "gateway.mc.example";
    let gateway = slice("[{addresses: [192.0.2.9]}]")
        .replace("name: web-1,", "name: web-east, annotations: {mirror.linkerd.io/remote-svc-fq-name: web.shop.svc.east.local, mirror.linkerd.io/remote-gateway-identity: gateway.mc.example},");
    let mut index = cluster(&preferring("zone, cluster=2"));
    index.apply(apply(&gateway));
    let client = Client::on(&mut index, "node-a");
    assert_eq!(client.endpoints(), [1, 2, 3]);
    index.apply(apply(&without(&[1, 2, 3])));
    assert_eq!(client.endpoints(), [4, 5]);
    index.apply(apply(&without(&[1, 2, 3, 4])));
    assert_eq!(client.endpoints(), [5, 9]);
    assert_eq!(client.level(), Some("all"));
    let tls = at(&client.0, "192.0.2.9:8080").tls.unwrap();
    assert_eq!(tls.id, Identity::parse(identity).unwrap());
    // The annotation of the Service decides, not who wrote the slices.
    index.apply(apply(SERVICE));
    assert_eq!(client.endpoints(), [5, 9]);
    index.apply(apply(&without(&[])));
    assert_eq!(client.endpoints(), [1, 2, 3, 4, 5, 9]);
}

#[test]
fn local_traffic_and_hostnames_come_before_the_order_of_localities() {
    let local = "  internalTrafficPolicy: Local\n";
    let annotation = "locality.linkerd.io/failover: zone";
    let mut index = cluster(&service(annotation, local));
    let client = Client::on(&mut index, "node-a");
    assert_eq!((client.endpoints(), client.level()), (vec![1], None));
    index.apply(apply(&without(&[1])));
    assert_eq!(client.endpoints(), [0; 0]);
    index.apply(apply(&preferring("zone")));
    assert_eq!(client.endpoints(), [2, 3]);
    let named = slice_of(|n| if n == 5 { ", hostname: far" } else { "" });
    index.apply(apply(&named));
    let far = EndpointsKey {
        hostname: Some("far".into()),
        node: Some("node-a".into()),
        ..key(80)
    };
    let far = Client(endpoints(&mut index, far));
    assert_eq!(far.endpoints(), [5]);
}

/// Both addresses of a pod are one endpoint.
#[test]
fn only_addresses_of_the_clients_family_count() {
    let v6 = slice("[{addresses: ['fd00::1'], zone: east, targetRef: {kind: Pod, name: web-1, namespace: shop}}]")
        .replacen("name: web-1,", "name: web-v6,", 1);
    let mut index = DestinationIndex::new(DestinationSettings {
        ipv6: true,
        ..destination_settings()
    });
    let pods = PODS.map(|(n, node, _)| {
        let text = pod(&format!("web-{n}"), &format!("10.1.0.{n}"), true, "");
        text.replace("node-a", node)
    });
    let objects = [
        &preferring("node=2, zone"),
        NODES,
        &pods.concat(),
        &without(&[]),
        &v6,
    ];
    index.apply(apply(&objects.map(String::from).concat()));
    for (family, expected) in [
        (None, "[fd00::1]:8080"),
        (Some(AddressFamily::V4), "10.1.0.1:8080"),
    ] {
        let key = EndpointsKey {
            node: Some("node-a".into()),
            family,
            ..key(80)
        };
        let found = addrs(&endpoints(&mut index, key));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.contains(&expected.to_owned()), "{found:?}");
    }
}

/// As while the controller of slices moves it to another one.
#[test]
fn endpoint_in_two_slices_counts_once_and_as_ready() {
    let mut index = cluster(&preferring("node=2, zone"));
    let client = Client::on(&mut index, "node-a");
    let other = |conditions: &str| {
        let again = endpoint("web-1", "10.1.0.1", conditions);
        slice(&format!("[{again}]")).replacen("name: web-1,", "name: web-0,", 1)
    };
    let unready = ", conditions: {ready: false}";
    index.apply(apply(&other("")));
    assert_eq!(client.endpoints(), [1, 2, 3]);
    index.apply(apply(&(preferring("node=100%, zone") + &other(unready))));
    assert_eq!(client.endpoints(), [1]);
    let swapped = slice_of(|n| {
        if n == 1 {
            ", conditions: {ready: false}"
        } else {
            ""
        }
    });
    index.apply(apply(&(swapped + &other(""))));
    assert_eq!(client.endpoints(), [1]);
}

/// Hints are Kubernetes' form of the other traffic distributions.
#[test]
fn same_node_is_preferred_to_the_zones_of_hints() {
    let same_node = "  trafficDistribution: PreferSameNode\n";
    let mut index = cluster(&service("", same_node));
    let clients = ["node-a", "node-c", "node-d", "elsewhere"];
    let clients = clients.map(|node| Client::on(&mut index, node));
    let found = |clients: &[Client; 4]| clients.each_ref().map(Client::endpoints);
    let all = vec![1, 2, 3, 4, 5];
    assert_eq!(found(&clients), [vec![1], vec![4], vec![5], all.clone()]);
    let hinted = |unready: bool| {
        slice_of(move |n| match (n, unready) {
            (1, true) => ", hints: {forZones: [{name: east}]}, conditions: {ready: false}",
            (1..=3, _) => ", hints: {forZones: [{name: east}]}",
            (4, true) => ", hints: {forZones: [{name: mid}]}, conditions: {ready: false}",
            (4, false) => ", hints: {forZones: [{name: mid}]}",
            _ => ", hints: {forZones: [{name: far}]}",
        })
    };
    index.apply(apply(&hinted(true)));
    let others = vec![2, 3, 5];
    assert_eq!(
        found(&clients),
        [vec![2, 3], others.clone(), vec![5], others]
    );
    // As before, a preference of zones is a matter of hints.
    index.apply(apply(&service("", "  trafficDistribution: PreferClose\n")));
    index.apply(apply(&hinted(false)));
    assert_eq!(
        found(&clients),
        [vec![1, 2, 3], vec![4], vec![5], all.clone()]
    );
    index.apply(apply(&without(&[])));
    assert_eq!(
        found(&clients),
        [all.clone(), all.clone(), all.clone(), all]
    );
}
