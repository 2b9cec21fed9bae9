//! Services with members in other clusters, whose indexes the test fills.

mod failover;

use std::sync::Arc;
use std::time::Duration;

use mesh_cluster::source::Change;
use mesh_core::ports::PortSet;
use mesh_objects::convert;
use mesh_objects::model::{Key, Kind, Name};
use parking_lot::Mutex;
use serde::Deserialize as _;
use tokio::sync::watch;

use super::{Clusters, RemoteDiscovery};
use crate::index::{
    DestinationIndex, DestinationSettings, EndpointSet, EndpointsKey, Subscription, Version,
};

type Index = Arc<Mutex<DestinationIndex>>;
type Endpoints = watch::Receiver<Arc<Version<EndpointSet>>>;

/// This cluster, and the ones that it is linked with.
struct World {
    local: Index,
    clusters: Clusters,
    discovery: Arc<RemoteDiscovery>,
}

impl World {
    fn new() -> Self {
        let (local, clusters) = (index(None), Clusters::default());
        let discovery = RemoteDiscovery::new(local.clone(), clusters.clone());
        Self {
            local,
            clusters,
            discovery,
        }
    }

    /// Links a cluster with the Service `web`.
    fn link(&self, cluster: &str, ips: &[&str]) -> Index {
        let index = index(Some(cluster));
        apply(&index, &web(ips, ""));
        self.clusters.insert(cluster.into(), index.clone());
        index
    }

    fn watch(&self, service: &str) -> Option<Endpoints> {
        self.watch_from("node-a", service)
    }

    fn watch_from(&self, node: &str, service: &str) -> Option<Endpoints> {
        self.discovery.endpoints(&EndpointsKey {
            service: Name::new("shop", service),
            port: 80,
            hostname: None,
            node: Some(node.into()),
            family: None,
            placed: false,
        })
    }
}

fn index(cluster: Option<&str>) -> Index {
    let settings = DestinationSettings {
        cluster_domain: "cluster.local".into(),
        control_namespace: "linkerd".into(),
        trust_domain: Some("cluster.local".into()),
        default_opaque_ports: PortSet::default(),
        h2_upgrade: true,
        transport_header: true,
        ipv6: false,
        meshed_http2_params: None,
        cluster: cluster.map(Arc::from),
    };
    Arc::new(Mutex::new(DestinationIndex::new(settings)))
}

fn apply(index: &Index, manifests: &str) {
    let documents = serde_norway::Deserializer::from_str(manifests);
    let changes = documents.map(|document| {
        let json = serde_json::Value::deserialize(document).unwrap();
        Change::Apply(convert::valid(&json).unwrap_or_else(|| panic!("{json}")))
    });
    index.lock().apply(changes.collect());
}

fn delete(index: &Index, kind: Kind, name: &str) {
    let name = Name::new("shop", name);
    index.lock().apply(vec![Change::Delete(Key { kind, name })]);
}

/// The Service `web` and its slice. `spec` are more fields of the Service.
fn web(ips: &[&str], spec: &str) -> String {
    let endpoints = ips.iter().map(|ip| format!("{{addresses: [{ip}]}}"));
    let endpoints: Vec<_> = endpoints.collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{{port: 80}}], {spec}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

/// A Service with these labels and annotations.
fn service(name: &str, labels: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}, annotations: {{{annotations}}}}}
spec: {{clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ports: [{{port: 80}}]}}
"
    )
}

fn of_east() -> String {
    let labels = "multicluster.linkerd.io/remote-discovery: east, multicluster.linkerd.io/remote-service: web";
    service("web-east", labels, "")
}

fn federated(remote: &str) -> String {
    let annotations = format!(
        "multicluster.linkerd.io/remote-discovery: '{remote}', multicluster.linkerd.io/local-discovery: web"
    );
    service("web-federated", "", &annotations)
}

fn addrs(endpoints: &Endpoints) -> Vec<String> {
    let set = endpoints.borrow().value().clone();
    set.endpoints.keys().map(ToString::to_string).collect()
}

/// Waits for the endpoints.
async fn expect(endpoints: &mut Endpoints, addrs: &[&str]) {
    let expected: Vec<String> = addrs.iter().map(|addr| (*addr).to_owned()).collect();
    let is_expected = |set: &Arc<Version<EndpointSet>>| {
        set.endpoints
            .keys()
            .map(ToString::to_string)
            .eq(expected.iter().cloned())
    };
    let waiting = endpoints.wait_for(|set| is_expected(set));
    let waiting = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let is_found = waiting.is_ok_and(|found| found.is_ok());
    let found = self::addrs(endpoints);
    assert!(is_found, "{found:?}, expected {expected:?}");
}

#[tokio::test]
async fn service_has_the_endpoints_of_the_cluster_that_it_names() {
    let world = World::new();
    apply(&world.local, &web(&["10.1.0.1"], ""));
    apply(&world.local, &of_east());
    assert!(world.watch("web").is_none(), "an ordinary Service");
    let mut endpoints = world.watch("web-east").unwrap();
    assert_eq!(addrs(&endpoints), [""; 0]);
    let east = world.link("east", &["10.2.0.1"]);
    world.link("west", &["10.3.0.1"]);
    expect(&mut endpoints, &["10.2.0.1:8080"]).await;
    let endpoint = endpoints
        .borrow()
        .endpoints
        .values()
        .next()
        .unwrap()
        .clone();
    let labels: Vec<_> = endpoint.endpoint.labels.iter().collect();
    for label in [
        ("target_cluster", "east"),
        ("target_service", "web"),
        ("target_service_namespace", "shop"),
    ] {
        assert!(labels.contains(&label), "{labels:?}");
    }
    apply(&east, &web(&["10.2.0.1", "10.2.0.2"], ""));
    expect(&mut endpoints, &["10.2.0.1:8080", "10.2.0.2:8080"]).await;
    // The Service appears later, and another index takes its cluster over.
    delete(&east, Kind::Service, "web");
    expect(&mut endpoints, &[]).await;
    world.link("east", &["10.2.0.9"]);
    expect(&mut endpoints, &["10.2.0.9:8080"]).await;
    world.clusters.remove("east");
    expect(&mut endpoints, &[]).await;
}

#[tokio::test]
async fn federated_service_has_the_endpoints_of_its_members() {
    let world = World::new();
    let east = world.link("east", &["10.2.0.1"]);
    world.link("west", &["10.3.0.1"]);
    apply(&world.local, &web(&["10.1.0.1"], ""));
    apply(
        &world.local,
        &federated("web@east, web@north, web, @east, web@"),
    );
    let mut endpoints = world.watch("web-federated").unwrap();
    expect(&mut endpoints, &["10.1.0.1:8080", "10.2.0.1:8080"]).await;
    // A member joins, one leaves, and a cluster is linked.
    apply(&world.local, &federated("web@west,web@north"));
    expect(&mut endpoints, &["10.1.0.1:8080", "10.3.0.1:8080"]).await;
    world.link("north", &["10.4.0.1"]);
    let all = ["10.1.0.1:8080", "10.3.0.1:8080", "10.4.0.1:8080"];
    expect(&mut endpoints, &all).await;
    apply(&east, &web(&["10.2.0.7"], ""));
    delete(&world.local, Kind::Service, "web");
    expect(&mut endpoints, &all[1..]).await;
    // It ends with the Service.
    delete(&world.local, Kind::Service, "web-federated");
    let ended = async { while endpoints.changed().await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(10), ended)
        .await
        .unwrap();
    assert!(world.watch("web-federated").is_none());
}

/// The node of the client is in another cluster.
#[tokio::test]
async fn traffic_policy_of_another_cluster_does_not_count() {
    let world = World::new();
    let east = world.link("east", &["10.2.0.1"]);
    apply(&east, &web(&["10.2.0.1"], "internalTrafficPolicy: Local"));
    apply(&world.local, &of_east());
    let mut endpoints = world.watch("web-east").unwrap();
    expect(&mut endpoints, &["10.2.0.1:8080"]).await;
}

#[tokio::test]
async fn clients_share_endpoints_which_end_with_the_last_of_them() {
    let world = World::new();
    world.link("east", &["10.2.0.1"]);
    apply(&world.local, &of_east());
    let (first, second) = (
        world.watch("web-east").unwrap(),
        world.watch("web-east").unwrap(),
    );
    assert!(first.same_channel(&second));
    drop((first, second));
    let gone = async {
        while world.discovery.watched() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .unwrap();
    let mut again = world.watch("web-east").unwrap();
    expect(&mut again, &["10.2.0.1:8080"]).await;
}

#[tokio::test]
async fn own_endpoints_end_when_their_service_gets_members_and_begin_again_without() {
    let world = World::new();
    world.link("east", &["10.2.0.1"]);
    let key = EndpointsKey {
        service: Name::new("shop", "web-east"),
        port: 80,
        hostname: None,
        node: None,
        family: None,
        placed: false,
    };
    let own = |key: &EndpointsKey| world.local.lock().endpoints(key.clone()).unwrap();
    apply(&world.local, &service("web-east", "", ""));
    let Subscription::Cached(mut endpoints) = own(&key) else {
        panic!("a Service without members has endpoints of its own");
    };
    assert!(world.watch("web-east").is_none());

    apply(&world.local, &of_east());
    assert!(endpoints.changed().await.is_err(), "clients ask again");
    assert!(matches!(own(&key), Subscription::Uncached { .. }));
    let mut endpoints = world.watch("web-east").unwrap();
    expect(&mut endpoints, &["10.2.0.1:8080"]).await;

    apply(&world.local, &service("web-east", "", ""));
    assert!(endpoints.changed().await.is_err(), "clients ask again");
    assert!(matches!(own(&key), Subscription::Cached(_)));
}

#[tokio::test]
async fn member_is_followed_while_it_gets_and_loses_members_of_its_own() {
    let world = World::new();
    apply(&world.local, &web(&["10.1.0.1"], ""));
    apply(&world.local, &federated(""));
    let mut endpoints = world.watch("web-federated").unwrap();
    expect(&mut endpoints, &["10.1.0.1:8080"]).await;
    let labels = "multicluster.linkerd.io/remote-discovery: east, multicluster.linkerd.io/remote-service: web";
    apply(&world.local, &service("web", labels, ""));
    apply(&world.local, &web(&["10.1.0.2"], ""));
    expect(&mut endpoints, &["10.1.0.2:8080"]).await;
}
