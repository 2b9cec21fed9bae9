//! The messages of `Get`, and which streams share them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_api::destination::endpoint_update;
use mesh_cluster::source::Received;
use mesh_core::endpoint::{Endpoint, EndpointUpdate};
use mesh_objects::model::Name;
use tokio::sync::watch;

use super::*;

const NODES: &str = "---
apiVersion: v1
kind: Node
metadata: {name: east-1, labels: {topology.kubernetes.io/zone: east}}
---
apiVersion: v1
kind: Node
metadata: {name: west-1, labels: {topology.kubernetes.io/zone: west}}
";

/// An address of the Service, and whether its pod has a proxy.
type Address = (&'static str, bool);

/// Returns the pods at these addresses, with their EndpointSlice. Pods whose address ends in an odd
/// number are in the zone `east`, the others in `west`.
fn addresses(addresses: &[Address]) -> String {
    let name = |ip: &str| format!("web-{}", ip.replace('.', "-"));
    let pods = addresses
        .iter()
        .map(|(ip, meshed)| pod(&name(ip), ip, *meshed, ""));
    let entries: Vec<String> = addresses
        .iter()
        .map(|(ip, _)| {
            let is_east = ip.ends_with(['1', '3', '5', '7', '9']);
            let zone = if is_east { "east" } else { "west" };
            format!(
                "{{addresses: ['{ip}'], zone: {zone}, hints: {{forZones: [{{name: {zone}}}]}}, \
                 targetRef: {{kind: Pod, name: {}, namespace: shop}}}}",
                name(ip)
            )
        })
        .collect();
    let slice = format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: db, port: 3306}}]
endpoints: [{}]
",
        entries.join(", ")
    );
    pods.chain([slice]).collect()
}

fn cluster(of: &[Address]) -> Cluster {
    Cluster::new(&[SERVICE, NODES, &addresses(of)].concat())
}

/// Watches the endpoints for a client without node.
fn versions(cluster: &Cluster) -> watch::Receiver<Arc<Version<EndpointSet>>> {
    let key = EndpointsKey {
        service: Name::new("shop", "web"),
        port: 80,
        hostname: None,
        node: None,
        family: None,
        placed: false,
    };
    match cluster.index.lock().endpoints(key).unwrap() {
        Subscription::Cached(values) => values,
        Subscription::Uncached { .. } => panic!("the endpoints are not cached"),
    }
}

/// Returns the objects of the cluster with the Service's order of localities, where only the
/// endpoints with these addresses are ready.
fn failing_over(levels: &str, of: &[Address], ready: &[&str]) -> String {
    let annotations = format!("annotations: {{locality.linkerd.io/failover: '{levels}'}}");
    let service = SERVICE.replace(
        "namespace: shop}",
        &format!("namespace: shop, {annotations}}}"),
    );
    let mut addresses = addresses(of);
    for (ip, _) in of.iter().filter(|(ip, _)| !ready.contains(ip)) {
        let entry = format!("{{addresses: ['{ip}'],");
        addresses = addresses.replace(&entry, &format!("{entry} conditions: {{ready: false}},"));
    }
    service + &addresses
}

/// Applies messages as a client does.
fn receive(endpoints: &mut BTreeMap<SocketAddr, Endpoint>, messages: &[Bytes]) {
    for message in messages {
        let received = endpoint_update(decode(message)).unwrap();
        assert_eq!(received.skipped, []);
        match received.update {
            EndpointUpdate::Add {
                endpoints: added, ..
            } => endpoints.extend(added.into_iter().map(|it| (it.addr, it))),
            EndpointUpdate::Remove(removed) => endpoints.retain(|addr, _| !removed.contains(addr)),
            EndpointUpdate::Empty { .. } => endpoints.clear(),
        }
    }
}

/// Returns the addresses that a client has after messages, each with its label `zone_locality`.
fn received(messages: &[Bytes]) -> Vec<String> {
    let mut endpoints = BTreeMap::new();
    receive(&mut endpoints, messages);
    let text = |it: &Endpoint| format!("{} {}", it.addr, it.labels.get("zone_locality").unwrap());
    endpoints.values().map(text).collect()
}

fn is_same(messages: &[Bytes], others: &[Bytes]) -> bool {
    let pointers = |messages: &[Bytes]| -> Vec<(*const u8, usize)> {
        let of = |message: &Bytes| (message.as_ptr(), message.len());
        messages.iter().map(of).collect()
    };
    pointers(messages) == pointers(others)
}

/// A client is never without endpoints: it gets new ones before it loses its own.
#[test]
fn client_gets_the_endpoints_of_another_level_before_it_loses_its_own() {
    let all: [Address; 4] = [
        ("10.1.0.1", true),
        ("10.1.0.2", true),
        ("10.1.0.3", true),
        ("10.1.0.4", true),
    ];
    let objects = |ready: &[&str]| apply(&failing_over("zone=2", &all, ready));
    let cluster = cluster(&all);
    cluster.apply(objects(&["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"]));
    let mut stream = cluster.endpoints(HOST, "east-1");
    let mut endpoints = BTreeMap::new();
    for (ready, messages, expected) in [
        (
            &["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"][..],
            1,
            &["10.1.0.1", "10.1.0.3"][..],
        ),
        (&["10.1.0.1", "10.1.0.4"], 2, &["10.1.0.1", "10.1.0.4"]),
        (&["10.1.0.2", "10.1.0.4"], 2, &["10.1.0.2", "10.1.0.4"]),
        (
            &["10.1.0.1", "10.1.0.3", "10.1.0.4"],
            2,
            &["10.1.0.1", "10.1.0.3"],
        ),
    ] {
        cluster.apply(objects(ready));
        let received = stream.ready();
        assert_eq!(received.len(), messages, "{ready:?}");
        for message in &received {
            receive(&mut endpoints, std::slice::from_ref(message));
            assert!(!endpoints.is_empty());
        }
        let found: Vec<String> = endpoints.keys().map(|addr| addr.ip().to_string()).collect();
        assert_eq!(found, expected, "{ready:?}");
    }
}

#[test]
fn streams_of_one_view_send_the_same_messages_that_are_encoded_once() {
    let cluster = cluster(&[("10.1.0.1", true)]);
    let encoded = cluster.service.get.encoded();
    let mut streams: Vec<Messages> = (0..100)
        .map(|_| cluster.endpoints(HOST, "east-1"))
        .collect();
    let [one, two]: [&[Address]; 2] = [
        &[("10.1.0.1", true), ("10.1.0.3", true)],
        &[("10.1.0.3", false)],
    ];
    for (change, total) in [(None, 1), (Some(one), 2), (Some(two), 4)] {
        if let Some(change) = change {
            cluster.apply(apply(&addresses(change)));
        }
        let first = streams[0].ready();
        assert!(!first.is_empty());
        for stream in &mut streams[1..] {
            assert!(is_same(&stream.ready(), &first));
        }
        assert_eq!(encoded.value(), total);
    }
    // A new stream gets all endpoints instead of the change, and the next one the same.
    let [mut new, mut next] = [(); 2].map(|()| cluster.endpoints(HOST, "east-1"));
    let all = new.ready();
    assert_eq!(received(&all), ["10.1.0.3:8080 local"]);
    assert!(is_same(&next.ready(), &all));
    assert_eq!(encoded.value(), 5);
}

#[test]
fn streams_that_skip_versions_have_the_current_endpoints_in_the_end() {
    const ALL: [&str; 5] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"];
    let cluster = cluster(&[]);
    let path = "web.shop.svc.cluster.local:80";
    // Each number is the interval between a stream's reads, in changes.
    let mut clients: Vec<(usize, Messages, BTreeMap<_, _>)> = [1, 2, 3, 7, 7, 11]
        .map(|every| (every, cluster.endpoints(path, ""), BTreeMap::new()))
        .into();
    for change in 1..=250_usize {
        // In turn every set of addresses, each with different proxies.
        let is_in = |bits: usize, at: usize| bits & (1 << at) != 0;
        let chosen = (0..ALL.len()).filter(|at| is_in(change * 7, *at));
        let chosen: Vec<Address> = chosen.map(|at| (ALL[at], is_in(change * 5, at))).collect();
        cluster.apply(apply(&addresses(&chosen)));
        let current: BTreeMap<SocketAddr, Endpoint> = {
            let values = versions(&cluster);
            let set = values.borrow();
            let owned = set
                .endpoints
                .iter()
                .map(|(addr, it)| (*addr, it.endpoint.clone()));
            owned.collect()
        };
        let mut of_seven = Vec::new();
        for (every, stream, endpoints) in &mut clients {
            if change % *every == 0 {
                let messages = stream.ready();
                receive(endpoints, &messages);
                assert_eq!(*endpoints, current, "every {every} at {change}");
                if *every == 7 {
                    of_seven.push(messages);
                }
            }
        }
        if let [one, other] = &of_seven[..] {
            assert!(is_same(one, other), "those that skip the same share too");
        }
    }
}

#[test]
fn clients_with_different_endpoints_do_not_share_messages() {
    let cluster = cluster(&[("10.1.0.1", true), ("10.1.0.2", true)]);
    let get = |path: &str, node: &str| received(&cluster.endpoints(path, node).ready());
    let web = |port: u16| format!("{HOST}:{port}");
    for _ in 0..2 {
        assert_eq!(get(&web(80), "east-1"), ["10.1.0.1:8080 local"]);
        assert_eq!(get(&web(80), "west-1"), ["10.1.0.2:8080 local"]);
        assert_eq!(get(&web(3306), "west-1"), ["10.1.0.2:3306 local"]);
        let unknown = ["10.1.0.1:8080 unknown", "10.1.0.2:8080 unknown"];
        assert_eq!(get(&web(80), ""), unknown);
        assert_eq!(get(&web(80), "made-up"), unknown);
    }
    let mut streams = [
        (web(80), "east-1"),
        (web(80), "west-1"),
        (web(3306), "west-1"),
        (web(80), ""),
    ]
    .map(|(path, node)| cluster.endpoints(&path, node));
    streams.iter_mut().for_each(|stream| {
        stream.ready();
    });
    cluster.apply(apply(&addresses(&[("10.1.0.3", true), ("10.1.0.4", true)])));
    let changes = streams.each_mut().map(|stream| received(&stream.ready()));
    let expect: [&[&str]; 4] = [
        &["10.1.0.3:8080 local"],
        &["10.1.0.4:8080 local"],
        &["10.1.0.4:3306 local"],
        &["10.1.0.3:8080 unknown", "10.1.0.4:8080 unknown"],
    ];
    assert_eq!(changes, expect);
}

#[test]
fn version_with_its_messages_is_dropped_when_the_next_one_is_published() {
    let cluster = cluster(&[("10.1.0.1", true)]);
    let mut slow = cluster.endpoints(HOST, "");
    slow.ready();
    let values = versions(&cluster);
    let version = Arc::downgrade(&values.borrow());
    let set = Arc::downgrade(values.borrow().value());
    cluster.apply(apply(&addresses(&[("10.1.0.3", true)])));
    assert!(version.upgrade().is_none());
    assert!(set.upgrade().is_some(), "the slow stream has sent it");
    assert_eq!(received(&slow.ready()), ["10.1.0.3:8080 unknown"]);
    assert!(set.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn lag_is_the_time_from_the_report_of_a_change_to_its_message() {
    let cluster = cluster(&[("10.1.0.1", true)]);
    let mut stream = cluster.endpoints(HOST, "");
    stream.ready();
    let at = Instant::now();
    tokio::time::advance(Duration::from_secs(2)).await;
    let batch = apply(&addresses(&[("10.1.0.1", true), ("10.1.0.3", true)]));
    cluster.index.lock().apply_received(Received { batch, at });
    tokio::time::advance(Duration::from_secs(1)).await;
    // The first message of a new stream does not count.
    cluster.endpoints(HOST, "").ready();
    assert_eq!(stream.ready().len(), 1);
    let metrics = String::from_utf8(cluster.registry.encode()).unwrap();
    let method = format!("grpc_service=\"{SERVICE_NAME}\",grpc_method=\"Get\"");
    for line in [
        format!("mesh_grpc_update_lag_seconds_sum{{{method}}} 3"),
        format!("mesh_grpc_update_lag_seconds_count{{{method}}} 1"),
    ] {
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
}
