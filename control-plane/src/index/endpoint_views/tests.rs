//! Which clients share versions, before and after changes of objects.

use std::net::SocketAddr;

use mesh_cluster::source::Batch;
use mesh_objects::model::Name;

use super::*;
use crate::index::tests::fixture::{SERVICE, apply, destination_settings, endpoint, pod, slice};

const NODES: [&str; 5] = ["node-a", "node-b", "node-c", "node-d", "elsewhere"];

/// Returns the nodes: one letter each, `e` for the zone east, `w` for west, `-` for no zone.
fn nodes(zones: &str) -> String {
    let node = |(name, zone): (&str, char)| {
        let labels = match zone {
            'e' => "topology.kubernetes.io/zone: east",
            'w' => "topology.kubernetes.io/zone: west",
            _ => "",
        };
        format!(
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
        )
    };
    NODES.into_iter().zip(zones.chars()).map(node).collect()
}

/// Returns the Service whose traffic stays on the node.
fn local() -> String {
    SERVICE.replace(
        "  clusterIP: 10.96.0.1\n",
        "  clusterIP: 10.96.0.1\n  internalTrafficPolicy: Local\n",
    )
}

/// Returns pods, each on one of the nodes, and the slice of them.
fn pods(count: usize) -> String {
    let at = |n: usize| (format!("web-{n}"), format!("10.1.0.{n}"));
    let pods = (1..=count).map(|n| {
        let (name, ip) = at(n);
        pod(&name, &ip, true, "")
            .replace("nodeName: node-a", &format!("nodeName: {}", NODES[n % 4]))
    });
    let entries: Vec<String> = (1..=count)
        .map(|n| {
            let (name, ip) = at(n);
            let zone = if n % 2 == 0 { "east" } else { "west" };
            endpoint(
                &name,
                &ip,
                &format!(", hints: {{forZones: [{{name: {zone}}}]}}"),
            )
        })
        .collect();
    pods.chain([slice(&format!("[{}]", entries.join(", ")))])
        .collect()
}

/// Returns a Server of the pods' port.
fn server(protocol: &str) -> String {
    format!(
        "---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {{name: http, namespace: shop}}
spec: {{podSelector: {{}}, port: http, proxyProtocol: {protocol}}}
"
    )
}

/// Returns the ReplicaSet of the pods with an owner of this kind.
fn owner(kind: &str) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-7f9c
  namespace: shop
  ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: web, uid: u}}]
"
    )
}

/// The views of an index without the rest of it.
struct Index {
    store: Store,
    settings: DestinationSettings,
    views: EndpointViews,
}

type Versions = watch::Receiver<Arc<Version<EndpointSet>>>;

impl Index {
    fn new(text: &str) -> Self {
        let mut index = Self {
            store: Store::default(),
            settings: destination_settings(),
            views: EndpointViews::default(),
        };
        index.apply(apply(text));
        index
    }

    fn apply(&mut self, batch: Batch) {
        let changes = self.store.apply(batch);
        let at = Instant::now();
        self.views
            .refresh(&self.store, &self.settings, &changes, at);
    }

    fn watch(&mut self, node: &str) -> Versions {
        self.watch_port(node, 80)
    }

    fn watch_port(&mut self, node: &str, port: u16) -> Versions {
        self.views
            .watch(&self.store, &self.settings, key(node, port))
    }

    /// Returns the endpoints that the view of a client must have.
    fn expected(&self, node: &str) -> EndpointSet {
        let mut nodes = NodesOfServices::default();
        let selection = Selection::new(&self.store, &key(node, 80), &mut nodes);
        services::endpoints(&self.store, &self.settings, &selection, None)
    }
}

fn key(node: &str, port: u16) -> EndpointsKey {
    EndpointsKey {
        service: Name::new("shop", "web"),
        port,
        hostname: None,
        node: (!node.is_empty()).then(|| node.into()),
        family: None,
        placed: false,
    }
}

/// Returns the clients in groups that share a version.
fn groups(views: &[Versions]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, view) in views.iter().enumerate() {
        let is_shared = |group: &Vec<usize>| Arc::ptr_eq(&views[group[0]].borrow(), &view.borrow());
        match groups.iter_mut().find(|group| is_shared(group)) {
            Some(group) => group.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

#[test]
fn clients_of_one_zone_share_versions_before_and_after_changes() {
    let mut index = Index::new(&[SERVICE, &nodes("eeww-"), &pods(4)].concat());
    let mut views = NODES.map(|node| index.watch(node));
    let by_zone = [vec![0, 1], vec![2, 3], vec![4]];
    assert_eq!(groups(&views), by_zone);

    index.apply(apply(&pods(6)));
    assert_eq!(groups(&views), by_zone);
    assert!(views.each_mut().map(|view| view.has_changed().unwrap()) == [true; 5]);
    let before = index.watch("node-a").borrow().clone();
    index.apply(apply(&pods(6)));
    assert!(Arc::ptr_eq(&before, &views[0].borrow()), "an equal set");

    // A node moves to the other zone, and takes part in its versions.
    index.apply(apply(&nodes("ewww-")));
    assert_eq!(groups(&views), [vec![0], vec![1, 2, 3], vec![4]]);
    assert!(Arc::ptr_eq(&before, &views[0].borrow()), "not of this node");

    // If only endpoints on the client's node are selected, each client has its own set.
    index.apply(apply(&local()));
    assert_eq!(groups(&views).len(), 5);
    index.apply(apply(SERVICE));
    assert_eq!(groups(&views), [vec![0], vec![1, 2, 3], vec![4]]);
}

/// Returns the Service with an order of localities.
fn preferring(levels: &str) -> String {
    SERVICE.replacen(
        "{name: web, namespace: shop}",
        &format!(
            "{{name: web, namespace: shop, annotations: {{locality.linkerd.io/failover: '{levels}'}}}}"
        ),
        1,
    )
}

fn same_node() -> String {
    SERVICE.replacen(
        "spec:\n",
        "spec:\n  trafficDistribution: PreferSameNode\n",
        1,
    )
}

/// Only a level of nodes tells clients of a zone apart, and only those with an endpoint on theirs.
#[test]
fn clients_share_versions_where_the_levels_of_their_service_do_not_tell_them_apart() {
    let by_zone = [vec![0, 1, 2, 3], vec![4]];
    // The pods are on the second and the third node.
    let by_node = [vec![0, 3], vec![1], vec![2], vec![4]];
    for (service, expected) in [
        (SERVICE.to_owned(), by_zone.as_slice()),
        (preferring("zone=50%, region"), &by_zone),
        (preferring("node, zone"), &by_node),
        (same_node(), &by_node),
    ] {
        let mut index = Index::new(&[&*service, &nodes("eeee-"), &pods(2)].concat());
        let views = NODES.map(|node| index.watch(node));
        assert_eq!(groups(&views), expected, "{service}");
        index.apply(apply(&server("opaque")));
        assert_eq!(groups(&views), expected, "{service}");
    }
}

#[test]
fn every_client_has_its_endpoints_after_any_change() {
    let mut index = Index::new(&[SERVICE, &nodes("eewww"), &pods(5)].concat());
    let mut views: Vec<(&str, Versions)> = Vec::new();
    let services = [
        local(),
        SERVICE.to_owned(),
        preferring("node, zone=50%"),
        preferring("region=2, cluster"),
        same_node(),
    ];
    let zones = ["eewww", "weeww", "-----", "ewewe", "w-e-w"];
    for change in 0..210 {
        let text = match change % 7 {
            0 => pods(change * 7 % 11),
            1 => nodes(zones[change % zones.len()]),
            2 => services[change % services.len()].clone(),
            3 => pods(change * 5 % 11) + &nodes(zones[change % 3]),
            4 => pod("web-1", "10.1.0.1", change % 2 == 0, ""),
            5 => server(["opaque", "HTTP/2"][change % 4 / 2]),
            _ => owner(["Deployment", "StatefulSet"][change % 2]),
        };
        // Some clients come, others go.
        let node = NODES[change * 3 % NODES.len()];
        views.push((node, index.watch(node)));
        if views.len() > 12 {
            views.remove(change * 7 % 12);
        }
        index.apply(apply(&text));
        views.push((node, index.watch(node)));
        for (node, view) in &views {
            let expected = index.expected(node);
            assert_eq!(**view.borrow().value(), expected, "{node} after {change}");
        }
    }
}

#[test]
fn changes_affect_the_endpoints_of_the_services_that_depend_on_them() {
    let other = |text: &str| text.replace("name: web, namespace", "name: other, namespace");
    let profile = "---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
spec: {}
";
    let moved = slice("[]").replace("service-name: web", "service-name: other");
    let mut store = Store::default();
    store.apply(apply(
        &[SERVICE, &other(SERVICE), &nodes("eeww-"), &pods(2)].concat(),
    ));
    // The changes are applied one after the other.
    for (change, web, others, elsewhere) in [
        (SERVICE.replace("80", "8080"), true, false, false),
        (other(&SERVICE.replace("80", "8080")), false, true, false),
        (pod("web-1", "10.1.0.1", false, ""), true, false, false),
        (pod("lonely", "10.1.0.9", false, ""), false, false, false),
        (profile.to_owned(), false, false, false),
        (server("opaque"), true, true, false),
        (owner("StatefulSet"), true, true, false),
        (nodes("wwww-"), true, true, true),
        (pods(3), true, false, false),
        (pods(3), false, false, false),
        (moved, true, true, false),
    ] {
        let changes = store.apply(apply(&change));
        let affects = |namespace, name| changes.affects_endpoints(&Name::new(namespace, name));
        let affected = (
            affects("shop", "web"),
            affects("shop", "other"),
            affects("else", "web"),
        );
        assert_eq!(affected, (web, others, elsewhere), "{change}");
    }
}

#[test]
fn endpoints_that_a_change_does_not_concern_are_shared_with_the_version_before() {
    let mut index = Index::new(&[SERVICE, &nodes("eeww-"), &pods(4)].concat());
    let view = index.watch("");
    let before = view.borrow().value().clone();
    index.apply(apply(&(pods(5) + &pod("web-1", "10.1.0.1", false, ""))));
    let after = view.borrow().value().clone();
    let is_shared = |n: u8| {
        let addr: SocketAddr = format!("10.1.0.{n}:8080").parse().unwrap();
        let of = |set: &EndpointSet| set.endpoints.get(&addr).cloned();
        of(&before)
            .zip(of(&after))
            .is_some_and(|(one, other)| Arc::ptr_eq(&one, &other))
    };
    assert_eq!(
        [1, 2, 3, 4, 5].map(is_shared),
        [false, true, true, true, false]
    );
    // An equal endpoint that was computed again is the one from before, too.
    index.apply(apply(
        &(pods(6) + &server("HTTP/1") + &pod("web-1", "10.1.0.1", false, "")),
    ));
    let last = view.borrow().value().clone();
    for (addr, endpoint) in &after.endpoints {
        assert!(Arc::ptr_eq(endpoint, &last.endpoints[addr]), "{addr}");
    }
}

#[test]
fn new_client_does_not_get_an_old_version_that_a_stream_holds() {
    let mut index = Index::new(&[SERVICE, &nodes("eeww-"), &pods(2)].concat());
    let held = index.watch("node-a").borrow().clone();
    index.apply(apply(&pods(4)));
    let new = index.watch("node-a").borrow().clone();
    assert_eq!(**new.value(), index.expected("node-a"));
    assert_ne!(new, held);
}

#[test]
fn selections_without_clients_are_bounded() {
    let mut index = Index::new(&[SERVICE, &nodes("eeww-"), &pods(2)].concat());
    let kept = index.watch("node-a");
    for port in 1..10_000 {
        drop(index.watch_port("node-b", port));
        let bound = 2 * index.views.len() + MIN_SELECTIONS;
        assert!(index.views.current.len() <= bound, "at {port}");
    }
    assert!(Arc::ptr_eq(&kept.borrow(), &index.watch("node-b").borrow()));
}
