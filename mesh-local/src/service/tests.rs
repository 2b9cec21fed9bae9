//! Tests of addresses, slices, rules and records.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use super::endpoints::{RunningPod, slices};
use super::*;
use crate::manifest::Manifests;
use crate::network::Network;

pub(crate) fn network() -> Network {
    serde_json::from_str(
        r#"{"number":0,"podsV4":"10.240.0.0/24","podsV6":"fd6d::/64","servicesV4":"10.240.128.0/24","servicesV6":"fd6d:0:0:100::/112"}"#,
    )
    .unwrap()
}

const WORLD: &str = "
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ipFamilyPolicy: PreferDualStack, ports: [{name: http, port: 80, targetPort: web}, {name: dns, port: 53, protocol: UDP}]}
---
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: web}, ipFamilyPolicy: PreferDualStack, ports: [{name: sql, port: 5432}]}
---
kind: Service
metadata: {name: none, namespace: shop}
spec: {selector: {app: gone}, ports: [{port: 80}]}
---
kind: Service
metadata: {name: far, namespace: shop}
spec: {type: ExternalName, externalName: example.com}
---
kind: Pod
metadata: {name: web-0, namespace: shop, uid: u0, labels: {app: web}}
spec: {hostname: web-0, subdomain: db, containers: [{name: w, ports: [{name: web, containerPort: 8080}]}]}
status: {podIP: 10.240.0.2, podIPs: [{ip: 10.240.0.2}, {ip: 'fd6d::2'}], conditions: [{type: Ready, status: 'True'}]}
---
kind: Pod
metadata: {name: web-1, namespace: shop, uid: u1, labels: {app: web}}
spec: {containers: [{name: w, ports: [{name: web, containerPort: 8081}]}]}
status: {podIP: 10.240.0.3, podIPs: [{ip: 10.240.0.3}, {ip: 'fd6d::3'}], conditions: [{type: Ready, status: 'False'}]}
---
kind: Pod
metadata: {name: other, namespace: else, uid: u2, labels: {app: web}}
spec: {containers: [{name: w, ports: [{name: web, containerPort: 8080}]}]}
status: {podIP: 10.240.0.4, conditions: [{type: Ready, status: 'True'}]}
";

/// Address family, port numbers, and addresses with readiness.
type Slice = (String, Vec<Option<i32>>, Vec<(String, Option<bool>)>);

struct TestEnv {
    services: BTreeMap<ObjectKey, Service>,
    slices: Vec<k8s_openapi::api::discovery::v1::EndpointSlice>,
}

impl TestEnv {
    fn web_ip(&self) -> &str {
        let service = &self.services[&ObjectKey::new("shop", "web")];
        let spec = service.spec.as_ref().unwrap();
        &spec.cluster_ips.as_ref().unwrap()[0]
    }
}

fn test_env(text: &str) -> TestEnv {
    let mut manifests = Manifests::default();
    manifests.add_text(Path::new("a.yaml"), text);
    assert_eq!(manifests.problems, []);
    let mut addresses = AddressAllocator::default();
    let mut services = manifests.services.clone();
    for (key, service) in &mut services {
        let given = addresses.allocate(&network(), key, service).unwrap();
        fill_in(service, &given);
    }
    let pods: BTreeMap<ObjectKey, RunningPod<'_>> = manifests
        .pods
        .iter()
        .map(|(key, pod): (&ObjectKey, &Pod)| {
            let running = RunningPod {
                pod,
                terminating: false,
            };
            (key.clone(), running)
        })
        .collect();
    let slices = services
        .iter()
        .flat_map(|(key, service)| slices(&network(), "node", key, service, &pods))
        .collect();
    TestEnv { services, slices }
}

fn service(spec: &str) -> Service {
    let manifest = format!("metadata: {{name: a, namespace: b}}\nspec: {spec}");
    serde_norway::from_str(&manifest).unwrap()
}

#[test]
fn addresses_are_stable_unique_and_released() {
    let network = network();
    let mut addresses = AddressAllocator::default();
    let any = service("{ports: [{port: 80}]}");
    let mut seen = BTreeSet::new();
    for n in 0..253 {
        let key = ObjectKey::new("shop", n.to_string());
        let given = addresses.allocate(&network, &key, &any).unwrap();
        assert_eq!(given, addresses.allocate(&network, &key, &any).unwrap());
        assert!(!network.node_ips().contains(&given[0]));
        assert!(seen.insert(given));
    }
    let one_more = ObjectKey::new("shop", "more");
    let full = addresses.allocate(&network, &one_more, &any);
    assert!(matches!(full, Err(AddressError::Full(_))));
    let kept = ObjectKey::new("shop", "1");
    addresses.retain(&BTreeSet::from([&kept]));
    addresses.allocate(&network, &one_more, &any).unwrap();
}

#[test]
fn requested_addresses_are_validated() {
    let network = network();
    let key = ObjectKey::new("b", "a");
    let check = |spec: &str, expect: Result<&[&str], ()>| {
        let mut addresses = AddressAllocator::default();
        let given = addresses.allocate(&network, &key, &service(spec));
        let expect = expect.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect());
        assert_eq!(given.map_err(drop), expect, "{spec}");
    };
    check("{clusterIP: None}", Ok(&[]));
    check("{clusterIP: 10.240.128.9}", Ok(&["10.240.128.9"]));
    check("{clusterIP: 10.240.128.1}", Err(()));
    check("{clusterIP: 10.0.0.1}", Err(()));
    check("{clusterIP: here}", Err(()));
    check("{type: ExternalName, externalName: a.b}", Ok(&[]));
    let families = |spec: &str| families(&network, &service(spec));
    assert_eq!(families("{}"), [false]);
    assert_eq!(families("{ipFamilies: [IPv6]}"), [true]);
    assert_eq!(families("{ipFamilyPolicy: PreferDualStack}"), [false, true]);
    let v6_first = "{ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6]}";
    assert_eq!(families(v6_first), [true, false]);
    let v4_only = Network {
        pods_v6: None,
        services_v6: None,
        ..network.clone()
    };
    let dual = service("{ipFamilyPolicy: PreferDualStack}");
    assert_eq!(super::families(&v4_only, &dual), [false]);
}

#[test]
fn slices_are_grouped_by_family_and_ports() {
    let env = test_env(WORLD);
    let of = |service: &str| -> Vec<Slice> {
        env.slices
            .iter()
            .filter(|slice| endpoints::service_of(slice) == Some(ObjectKey::new("shop", service)))
            .map(|slice| {
                let ports = slice.ports.iter().flatten().map(|port| port.port).collect();
                let endpoints = slice.endpoints.iter();
                let endpoints = endpoints
                    .map(|e| (e.addresses[0].clone(), e.conditions.as_ref().unwrap().ready))
                    .collect();
                (slice.address_type.clone(), ports, endpoints)
            })
            .collect()
    };
    let (v4, v6) = ("IPv4".to_owned(), "IPv6".to_owned());
    let up = |ip: &str| vec![(ip.to_owned(), Some(true))];
    let down = |ip: &str| vec![(ip.to_owned(), Some(false))];
    assert_eq!(
        of("web"),
        [
            (v4.clone(), vec![Some(8080), Some(53)], up("10.240.0.2")),
            (v4.clone(), vec![Some(8081), Some(53)], down("10.240.0.3")),
            (v6.clone(), vec![Some(8080), Some(53)], up("fd6d::2")),
            (v6.clone(), vec![Some(8081), Some(53)], down("fd6d::3")),
        ]
    );
    let db = of("db");
    assert_eq!(db.len(), 2);
    assert_eq!((db[0].2.len(), db[1].2.len()), (2, 2));
    assert!(of("none").is_empty() && of("far").is_empty());
}

#[test]
fn rules_translate_to_ready_endpoints_and_reject_others() {
    let env = test_env(WORLD);
    let pod_ips = ["10.240.0.2".parse().unwrap()];
    let script = nft::script("t", &network(), &env.services, &env.slices, &pod_ips);
    let ip = env.web_ip();
    for rule in [
        &format!(
            "ip daddr {ip} tcp dport 80 dnat ip to numgen random mod 1 map {{ 0 : 10.240.0.2 . 8080 }}"
        ),
        "map { 0 : fd6d::2 . 8080 }",
        "udp dport 53 dnat ip to numgen random mod 1 map { 0 : 10.240.0.2 . 53 }",
        "ip saddr 10.240.0.2 ip daddr 10.240.0.2 masquerade",
        "ip daddr 10.240.128.0/24 ip daddr != 10.240.128.1 meta l4proto tcp reject with tcp reset",
    ] {
        assert!(script.contains(rule), "no {rule:?} in {script}");
    }
    assert!(!script.contains("10.240.0.3"), "{script}");
}

#[test]
fn records_have_services_and_pods_of_headless_services() {
    let env = test_env(WORLD);
    let records = dns::records(&env.services, &env.slices);
    let has =
        |text: &str, line: &str| assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
    let ip = env.web_ip();
    has(&records.hosts, &format!("{ip} web.shop.svc.cluster.local"));
    has(&records.hosts, "10.240.0.2 db.shop.svc.cluster.local");
    has(&records.hosts, "fd6d::2 db.shop.svc.cluster.local");
    has(&records.hosts, "10.240.0.2 web-0.db.shop.svc.cluster.local");
    has(&records.hosts, "127.0.0.1 localhost");
    assert!(!records.hosts.contains("10.240.0.3"), "{}", records.hosts);
    for line in [
        "srv-host=db.shop.svc.cluster.local,web-0.db.shop.svc.cluster.local,5432",
        "srv-host=_sql._tcp.db.shop.svc.cluster.local,web-0.db.shop.svc.cluster.local,5432",
        "srv-host=_http._tcp.web.shop.svc.cluster.local,web.shop.svc.cluster.local,80",
        "cname=far.shop.svc.cluster.local,example.com",
    ] {
        has(&records.configuration, line);
    }
}
