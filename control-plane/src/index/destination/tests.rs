//! Endpoints and profiles before and after changes of objects.

mod addresses;
mod external;
mod localities;
mod remote;

use std::net::SocketAddr;

use mesh_core::endpoint::{AddressFamily, Endpoint, ProtocolHint};
use mesh_objects::model::Kind;

use super::*;
use crate::index::tests::fixture::{
    SERVICE, apply, delete, destination_settings, endpoint, pod, profile_key, slice,
};

fn index(text: &str) -> DestinationIndex {
    let mut index = DestinationIndex::new(destination_settings());
    index.apply(apply(text));
    index
}

fn key(port: u16) -> EndpointsKey {
    EndpointsKey {
        service: Name::new("shop", "web"),
        port,
        hostname: None,
        node: None,
        family: None,
        placed: false,
    }
}

/// Returns the receiver of a cached value.
fn cached<V>(watched: Subscription<V>) -> watch::Receiver<Arc<Version<V>>> {
    match watched {
        Subscription::Cached(values) => values,
        Subscription::Uncached { .. } => panic!("the value is not cached"),
    }
}

fn endpoints(
    index: &mut DestinationIndex,
    key: EndpointsKey,
) -> watch::Receiver<Arc<Version<EndpointSet>>> {
    cached(index.endpoints(key).unwrap())
}

fn addrs(rx: &watch::Receiver<Arc<Version<EndpointSet>>>) -> Vec<String> {
    rx.borrow()
        .endpoints
        .keys()
        .map(ToString::to_string)
        .collect()
}

fn two_pods() -> String {
    [
        SERVICE.to_owned(),
        pod("web-1", "10.1.0.1", true, ""),
        pod("web-2", "10.1.0.2", false, ""),
        slice(&format!(
            "[{}, {}]",
            endpoint("web-1", "10.1.0.1", ""),
            endpoint("web-2", "10.1.0.2", "")
        )),
    ]
    .concat()
}

fn at(rx: &watch::Receiver<Arc<Version<EndpointSet>>>, addr: &str) -> Endpoint {
    let addr: SocketAddr = addr.parse().unwrap();
    rx.borrow().endpoints[&addr].endpoint.clone()
}

fn labels(endpoint: &Endpoint) -> Vec<String> {
    let labels = endpoint.labels.iter();
    labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

#[test]
fn only_meshed_endpoint_has_identity_and_hints() {
    let mut index = index(&two_pods());
    let node = Some(Arc::from("node-a"));
    let rx = endpoints(&mut index, EndpointsKey { node, ..key(80) });
    assert_eq!(addrs(&rx), ["10.1.0.1:8080", "10.1.0.2:8080"]);

    let meshed = at(&rx, "10.1.0.1:8080");
    let id = "web-sa.shop.serviceaccount.identity.linkerd.cluster.local";
    let tls = meshed.tls.as_ref().unwrap();
    assert_eq!((tls.id.as_str(), &*tls.server_name), (id, id));
    assert_eq!(meshed.hint, ProtocolHint::Http2);
    assert_eq!(meshed.opaque_transport_port, Some(4143));
    assert_eq!(meshed.weight, 10_000);
    assert_eq!(
        labels(&meshed),
        [
            "control_plane_ns=linkerd",
            "deployment=web",
            "pod=web-1",
            "serviceaccount=web-sa",
            "zone=east",
            "zone_locality=local"
        ]
    );

    let plain = at(&rx, "10.1.0.2:8080");
    assert_eq!(plain.tls, None);
    assert_eq!(plain.hint, ProtocolHint::Unknown);
    assert_eq!(plain.opaque_transport_port, None);
    let set = rx.borrow();
    assert_eq!(
        (&*set.labels["namespace"], &*set.labels["service"]),
        ("shop", "web")
    );
}

#[test]
fn endpoints_follow_pods_slices_and_service() {
    let mut index = index(&two_pods());
    let mut rx = endpoints(&mut index, key(80));
    rx.borrow_and_update();
    index.apply(apply(&two_pods()));
    assert!(
        !rx.has_changed().unwrap(),
        "the same objects change nothing"
    );

    let not_ready = endpoint("web-2", "10.1.0.2", ", conditions: {ready: false}");
    let one = endpoint("web-1", "10.1.0.1", "");
    index.apply(apply(&slice(&format!("[{one}, {not_ready}]"))));
    assert!(rx.has_changed().unwrap());
    assert_eq!(addrs(&rx), ["10.1.0.1:8080"]);

    index.apply(delete(Kind::Pod, "shop", "web-1"));
    assert_eq!(addrs(&rx), [""; 0]);
    index.apply(apply(&pod("web-1", "10.1.0.1", true, "")));
    assert_eq!(addrs(&rx), ["10.1.0.1:8080"]);
    index.apply(delete(Kind::Service, "shop", "web"));
    assert_eq!(addrs(&rx), [""; 0]);
    assert_eq!(
        index.endpoints(key(80)).unwrap_err(),
        EndpointsError::NoSuchService(Name::new("shop", "web"))
    );
}

#[test]
fn recreated_pod_replaces_old_address() {
    let mut index = index(&two_pods());
    let rx = endpoints(&mut index, key(80));
    let mut batch = apply(&pod("web-1", "10.1.0.9", true, ""));
    batch.extend(apply(&slice(&format!(
        "[{}]",
        endpoint("web-1", "10.1.0.9", "")
    ))));
    index.apply(batch);
    assert_eq!(addrs(&rx), ["10.1.0.9:8080"]);
}

#[test]
fn endpoint_is_opaque_by_default_annotation_or_server() {
    let mut index = index(&two_pods());
    let http = endpoints(&mut index, key(80));
    let db = endpoints(&mut index, key(3306));
    assert_eq!(at(&db, "10.1.0.1:3306").hint, ProtocolHint::Opaque);
    assert_eq!(at(&db, "10.1.0.2:3306").hint, ProtocolHint::Unknown);

    let annotated = "annotations: {config.linkerd.io/opaque-ports: http}";
    index.apply(apply(&pod("web-1", "10.1.0.1", true, annotated)));
    assert_eq!(at(&http, "10.1.0.1:8080").hint, ProtocolHint::Opaque);
    assert_eq!(at(&db, "10.1.0.1:3306").hint, ProtocolHint::Http2);

    index.apply(apply(&pod("web-1", "10.1.0.1", true, "")));
    let server = "apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: opaque, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}, port: http, proxyProtocol: opaque}";
    assert_eq!(at(&http, "10.1.0.1:8080").hint, ProtocolHint::Http2);
    index.apply(apply(server));
    assert_eq!(at(&http, "10.1.0.1:8080").hint, ProtocolHint::Opaque);
    index.apply(delete(Kind::Server, "shop", "opaque"));
    assert_eq!(at(&http, "10.1.0.1:8080").hint, ProtocolHint::Http2);
    index.apply(apply(
        &server.replace("namespace: shop", "namespace: other"),
    ));
    assert_eq!(at(&http, "10.1.0.1:8080").hint, ProtocolHint::Http2);
}

#[test]
fn skipped_and_proxy_ports_have_no_transport_header() {
    let skipping = "annotations: {config.linkerd.io/skip-inbound-ports: '8080'}";
    let mut index = index(&two_pods());
    index.apply(apply(&pod("web-1", "10.1.0.1", true, skipping)));
    let rx = endpoints(&mut index, key(80));
    let skipped = at(&rx, "10.1.0.1:8080");
    assert_eq!((skipped.tls, skipped.opaque_transport_port), (None, None));
    // A port that the Service does not define is not mapped.
    let admin = endpoints(&mut index, key(4191));
    let admin = at(&admin, "10.1.0.1:4191");
    assert_eq!(admin.opaque_transport_port, None);
    assert!(admin.tls.is_some());
}

#[test]
fn endpoints_are_filtered_by_zone_node_and_hostname() {
    let hinted = |pod: &str, ip: &str, zone: &str, more: &str| {
        let hints = format!(", hostname: {pod}, hints: {{forZones: [{{name: {zone}}}]}}{more}");
        endpoint(pod, ip, &hints)
    };
    let both = format!(
        "[{}, {}]",
        hinted("web-1", "10.1.0.1", "east", ""),
        hinted("web-2", "10.1.0.2", "west", "")
    );
    let mut index = index(&(two_pods() + &slice(&both)));
    let node_a = EndpointsKey {
        node: Some("node-a".into()),
        ..key(80)
    };
    let near = endpoints(&mut index, node_a.clone());
    let anywhere = endpoints(&mut index, key(80));
    let named = EndpointsKey {
        hostname: Some("web-2".into()),
        ..key(80)
    };
    let named = endpoints(&mut index, named);
    assert_eq!(addrs(&near), ["10.1.0.1:8080"]);
    assert_eq!(addrs(&anywhere), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert_eq!(addrs(&named), ["10.1.0.2:8080"]);

    // One address without hint disables zone filtering.
    let mixed = format!(
        "[{}, {}]",
        hinted("web-1", "10.1.0.1", "east", ""),
        endpoint("web-2", "10.1.0.2", "")
    );
    index.apply(apply(&slice(&mixed)));
    assert_eq!(addrs(&near), ["10.1.0.1:8080", "10.1.0.2:8080"]);

    let local = SERVICE.replace("clusterIP:", "internalTrafficPolicy: Local\n  clusterIP:");
    index.apply(apply(&local));
    assert_eq!(addrs(&near), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert_eq!(addrs(&anywhere), [""; 0]);
}

#[test]
fn terminating_endpoints_are_used_while_none_is_ready() {
    let leaving = ", conditions: {ready: false, serving: true, terminating: true}";
    let leaving = endpoint("web-1", "10.1.0.1", leaving);
    let second = |more: &str| {
        let conditions = format!(", conditions: {{{more}}}");
        endpoint("web-2", "10.1.0.2", &conditions)
    };
    let mut index = index(&two_pods());
    let rx = endpoints(&mut index, key(80));
    for (more, expect) in [
        ("ready: true, serving: true", vec!["10.1.0.2:8080"]),
        ("ready: false, serving: false", vec!["10.1.0.1:8080"]),
        (
            "ready: false, serving: true, terminating: true",
            vec!["10.1.0.1:8080", "10.1.0.2:8080"],
        ),
        // It has failed its probe while it is being deleted.
        (
            "ready: false, serving: false, terminating: true",
            vec!["10.1.0.1:8080"],
        ),
    ] {
        index.apply(apply(&slice(&format!("[{leaving}, {}]", second(more)))));
        assert_eq!(addrs(&rx), expect, "{more}");
    }

    // With `Local`, the endpoints of the client's node are compared.
    let local = SERVICE.replace("clusterIP:", "internalTrafficPolicy: Local\n  clusterIP:");
    let elsewhere = pod("web-2", "10.1.0.2", false, "").replace("node-a", "node-b");
    let ready = second("ready: true");
    index.apply(apply(
        &(local + &elsewhere + &slice(&format!("[{leaving}, {ready}]"))),
    ));
    let node = Some(Arc::from("node-a"));
    let near = endpoints(&mut index, EndpointsKey { node, ..key(80) });
    assert_eq!(addrs(&near), ["10.1.0.1:8080"]);
}

#[test]
fn pod_of_both_families_is_reached_over_that_of_the_client() {
    let both = format!(
        "[{}, {}, {}, {}]",
        endpoint("web-1", "10.1.0.1", ""),
        endpoint("web-1", "fd00::1", ""),
        endpoint("web-2", "10.1.0.2", ""),
        endpoint("web-3", "fd00::3", "")
    );
    let text = two_pods() + &pod("web-3", "fd00::3", false, "") + &slice(&both);
    let mut index = DestinationIndex::new(DestinationSettings {
        ipv6: true,
        ..destination_settings()
    });
    index.apply(apply(&text));
    let v6 = ["10.1.0.2:8080", "[fd00::1]:8080", "[fd00::3]:8080"];
    for (family, expect) in [
        (
            Some(AddressFamily::V4),
            ["10.1.0.1:8080", "10.1.0.2:8080", "[fd00::3]:8080"],
        ),
        (Some(AddressFamily::V6), v6),
        (None, v6),
    ] {
        let of_family = EndpointsKey { family, ..key(80) };
        let rx = endpoints(&mut index, of_family);
        assert_eq!(addrs(&rx), expect, "{family:?}");
    }
}

/// A Service without a selector has a slice for each family.
#[test]
fn endpoints_without_pods_are_reached_over_the_family_of_the_client() {
    let of_family = |name: &str, ips: &str| {
        let entries = format!("[{{addresses: [{ips}]}}]");
        slice(&entries).replace("name: web-1,", &format!("name: {name},"))
    };
    let v4 = of_family("v4", "10.9.0.1");
    let v6 = of_family("v6", "'fd00::9'");
    let addresses = |slices: &str, family| {
        let mut index = DestinationIndex::new(DestinationSettings {
            ipv6: true,
            ..destination_settings()
        });
        index.apply(apply(&(SERVICE.to_owned() + slices)));
        addrs(&endpoints(&mut index, EndpointsKey { family, ..key(80) }))
    };
    let both = v4.clone() + &v6;
    assert_eq!(addresses(&both, Some(AddressFamily::V4)), ["10.9.0.1:8080"]);
    assert_eq!(
        addresses(&both, Some(AddressFamily::V6)),
        ["[fd00::9]:8080"]
    );
    // As in Linkerd.
    assert_eq!(addresses(&both, None).len(), 2);
    assert_eq!(addresses(&v6, Some(AddressFamily::V4)), ["[fd00::9]:8080"]);
}

#[test]
fn ipv6_is_preferred_if_enabled() {
    let both = format!(
        "[{}, {}, {}]",
        endpoint("web-1", "10.1.0.1", ""),
        endpoint("web-1", "fd00::1", ""),
        endpoint("web-2", "10.1.0.2", "")
    );
    let text = two_pods() + &slice(&both);
    let mut off = index(&text);
    let rx = endpoints(&mut off, key(80));
    assert_eq!(addrs(&rx), ["10.1.0.1:8080", "10.1.0.2:8080"]);
    let mut on = DestinationIndex::new(DestinationSettings {
        ipv6: true,
        ..destination_settings()
    });
    on.apply(apply(&text));
    let rx = endpoints(&mut on, key(80));
    assert_eq!(addrs(&rx), ["10.1.0.2:8080", "[fd00::1]:8080"]);
}

fn profile_at(index: &mut DestinationIndex, addr: &str) -> watch::Receiver<Arc<Version<Profile>>> {
    let key = profile_key(ProfileTarget::Addr(addr.parse().unwrap()));
    match index.profile(key).unwrap() {
        Subscription::Cached(values) => values,
        Subscription::Uncached { value, .. } => watch::channel(Arc::new(value)).1,
    }
}

#[test]
fn service_profile_has_fqn_and_opaque_protocol() {
    let mut index = index(&two_pods());
    let rx = profile_at(&mut index, "10.96.0.1:80");
    let profile = rx.borrow().value().clone();
    assert_eq!(profile.fqn.as_deref(), Some("web.shop.svc.cluster.local"));
    assert_eq!((profile.opaque, profile.endpoint.is_none()), (false, true));
    assert_eq!(profile.retry_budget.unwrap().min_per_second, 10);
    assert_eq!(profile.parent.as_ref().unwrap().port(), Some(80));
    assert!(profile_at(&mut index, "10.96.0.1:3306").borrow().opaque);
    // An undefined port has an empty profile.
    assert_eq!(
        **profile_at(&mut index, "10.96.0.1:99").borrow().value(),
        Profile::default()
    );

    let opaque = SERVICE.replace(
        "{name: web, namespace: shop}",
        "{name: web, namespace: shop, annotations: {config.linkerd.io/opaque-ports: 'http,'}}",
    );
    index.apply(apply(&opaque));
    assert!(rx.borrow().opaque);
}

#[test]
fn pod_profile_follows_lifecycle_of_pod() {
    let mut index = index(&two_pods());
    let rx = profile_at(&mut index, "10.1.0.1:8080");
    let endpoint = rx.borrow().endpoint.clone().unwrap();
    assert!(endpoint.tls.is_some());
    assert_eq!(endpoint.labels.get("namespace"), Some("shop"));
    assert_eq!(endpoint.labels.get("zone"), Some("east"));
    assert_eq!(endpoint.labels.get("zone_locality"), None);
    assert_eq!(rx.borrow().fqn, None);

    index.apply(delete(Kind::Pod, "shop", "web-1"));
    let gone = rx.borrow().endpoint.clone().unwrap();
    assert_eq!((gone.tls, gone.labels.len()), (None, 0));
    index.apply(apply(&pod("web-1", "10.1.0.1", true, "")));
    assert!(rx.borrow().endpoint.as_ref().unwrap().tls.is_some());
    let pending = pod("web-1", "10.1.0.1", true, "").replace("Running", "Pending");
    index.apply(apply(&pending));
    assert!(rx.borrow().endpoint.as_ref().unwrap().tls.is_none());
}

/// By it a proxy notices that another object of the same name has an address.
#[test]
fn profile_has_uid_of_service_or_pod() {
    let service =
        |uid: &str| SERVICE.replacen("{name: web,", &format!("{{name: web, uid: {uid},"), 1);
    let with_uid = |uid: &str| pod("web-1", "10.1.0.1", false, &format!("uid: {uid}"));
    let mut index = index(&(service("s1") + &with_uid("p1")));
    let of_service = profile_at(&mut index, "10.96.0.1:80");
    let of_pod = profile_at(&mut index, "10.1.0.1:8080");
    let uid = |rx: &watch::Receiver<Arc<Version<Profile>>>| rx.borrow().value().uid.clone();
    assert_eq!(uid(&of_service).as_deref(), Some("s1"));
    assert_eq!(uid(&of_pod).as_deref(), Some("p1"));
    index.apply(apply(&(service("s2") + &with_uid("p2"))));
    assert_eq!(uid(&of_service).as_deref(), Some("s2"));
    assert_eq!(uid(&of_pod).as_deref(), Some("p2"));
    index.apply(delete(Kind::Service, "shop", "web"));
    index.apply(delete(Kind::Pod, "shop", "web-1"));
    assert_eq!((uid(&of_service), uid(&of_pod)), (None, None));
}

#[test]
fn unknown_addresses_have_plain_profile() {
    let mut index = index(&two_pods());
    let plain = profile_at(&mut index, "192.0.2.1:80");
    let endpoint = plain.borrow().endpoint.clone().unwrap();
    assert_eq!(endpoint.addr, "192.0.2.1:80".parse().unwrap());
    assert!(endpoint.labels.is_empty());
    assert!(profile_at(&mut index, "192.0.2.1:25").borrow().opaque);
}

#[test]
fn ambiguous_addresses_are_errors() {
    let twin = SERVICE.replace("name: web,", "name: twin,");
    let mut index = index(&(two_pods() + &twin + &pod("web-3", "10.1.0.1", true, "")));
    let error = |index: &mut DestinationIndex, addr: &str| {
        index
            .profile(profile_key(ProfileTarget::Addr(addr.parse().unwrap())))
            .unwrap_err()
    };
    assert!(matches!(
        error(&mut index, "10.96.0.1:80"),
        ProfileError::AmbiguousService(..)
    ));
    assert!(matches!(
        error(&mut index, "10.1.0.1:8080"),
        ProfileError::AmbiguousPod(..)
    ));
}

#[test]
fn profiles_are_found_by_name_and_instance() {
    let mut index = index(&two_pods());
    let web = Name::new("shop", "web");
    let by_name = |service: &Name| {
        profile_key(ProfileTarget::Service {
            service: service.clone(),
            port: 80,
            fqn: "web.shop.svc.cluster.local".into(),
        })
    };
    assert!(index.profile(by_name(&web)).is_ok());
    let gone = Name::new("shop", "gone");
    assert_eq!(
        index.profile(by_name(&gone)).unwrap_err(),
        ProfileError::NoSuchService(gone)
    );
    let instance = |hostname: &str| {
        profile_key(ProfileTarget::Instance {
            service: web.clone(),
            hostname: hostname.into(),
            port: 8080,
        })
    };
    assert!(index.profile(instance("web-1")).is_err());
    let named = endpoint("web-1", "10.1.0.1", ", hostname: web-1");
    index.apply(apply(&slice(&format!("[{named}]"))));
    let rx = cached(index.profile(instance("web-1")).unwrap());
    assert_eq!(
        rx.borrow().endpoint.as_ref().unwrap().addr,
        "10.1.0.1:8080".parse().unwrap()
    );
}

/// Clients can send any node, name or address.
#[test]
fn nonexistent_names_and_addresses_are_not_cached() {
    let mut index = index(&two_pods());
    let mut held = Vec::new();
    for n in 0..1_000 {
        let node = Some(Arc::from(format!("made-up-{n}")));
        held.push(endpoints(&mut index, EndpointsKey { node, ..key(80) }));
        let addr = format!("192.0.2.{}:{}", n % 256, 1 + n);
        let profile = index.profile(profile_key(ProfileTarget::Addr(addr.parse().unwrap())));
        assert!(
            matches!(profile, Ok(Subscription::Uncached { .. })),
            "{addr}"
        );
        let hostname = Some(Arc::from(format!("made-up-{n}")));
        let instance = index.endpoints(EndpointsKey {
            hostname,
            ..key(80)
        });
        assert!(matches!(instance, Ok(Subscription::Uncached { .. })), "{n}");
    }
    assert_eq!(index.watched(), (1, 0));
    let nowhere = endpoints(&mut index, key(80));
    assert!(held.iter().all(|rx| rx.same_channel(&nowhere)));
    let node = Some(Arc::from("node-a"));
    let somewhere = endpoints(&mut index, EndpointsKey { node, ..key(80) });
    assert!(!somewhere.same_channel(&nowhere));
}

#[test]
fn values_are_cached_once_their_target_exists() {
    let mut index = index(&two_pods());
    let addr = || profile_key(ProfileTarget::Addr("10.1.0.9:8080".parse().unwrap()));
    let instance = || EndpointsKey {
        hostname: Some("web-9".into()),
        ..key(80)
    };
    let Ok(Subscription::Uncached {
        value,
        mut generation,
    }) = index.profile(addr())
    else {
        panic!("the value is cached");
    };
    assert!(value.endpoint.as_ref().unwrap().labels.is_empty());
    assert!(!generation.has_changed().unwrap());
    assert!(!index.has_profile(&addr()) && !index.has_endpoints(&instance()));

    index.apply(apply(&pod("web-9", "10.1.0.9", true, "")));
    let named = endpoint("web-9", "10.1.0.9", ", hostname: web-9");
    index.apply(apply(&slice(&format!("[{named}]"))));
    assert!(generation.has_changed().unwrap());
    generation.borrow_and_update();
    assert!(index.has_profile(&addr()) && index.has_endpoints(&instance()));
    let endpoint = profile_at(&mut index, "10.1.0.9:8080")
        .borrow()
        .endpoint
        .clone();
    assert!(endpoint.unwrap().tls.is_some());
    assert_eq!(addrs(&endpoints(&mut index, instance())), ["10.1.0.9:8080"]);
}
