//! Profiles of all kinds of addresses of a pod.

use super::*;

/// Pods of one node that listen on 8080, meshed and unmeshed, with and without host ports, one of
/// them in the host network, and their Services.
fn cluster() -> String {
    let ports = |name: &str, ip: &str, meshed: bool, port: &str| {
        pod(name, ip, meshed, "").replace(
            "containerPort: 8080}",
            &format!("containerPort: 8080, {port}}}"),
        )
    };
    let in_host_network = pod("agent", "192.168.0.1", false, "")
        .replace("spec:", "spec:\n  hostNetwork: true")
        .replace("containerPort: 8080", "containerPort: 9100, hostPort: 9100");
    let services = "---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.2
  externalIPs: [203.0.113.1]
  externalTrafficPolicy: Local
  ports: [{name: http, port: 80, targetPort: http, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.2}]}}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: headless-1, namespace: shop, labels: {kubernetes.io/service-name: headless}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1], hostname: web-0, targetRef: {kind: Pod, name: meshed, namespace: shop}}]
";
    [
        SERVICE.to_owned(),
        services.to_owned(),
        ports("meshed", "10.1.0.1", true, "hostPort: 80"),
        ports("plain", "10.1.0.2", false, "hostPort: 81"),
        ports(
            "bound",
            "10.1.0.3",
            true,
            "hostPort: 82, hostIP: 192.168.0.9",
        ),
        ports("open", "10.1.0.4", true, "hostPort: 83, hostIP: 0.0.0.0"),
        ports("datagrams", "10.1.0.5", true, "hostPort: 84, protocol: UDP"),
        in_host_network,
    ]
    .concat()
}

#[test]
fn profile_is_found_for_every_address_of_pod() {
    let mut index = index(&cluster());
    let mut check = |how: &str, requested: &str, expect: &str, pod: Option<&str>, meshed: bool| {
        let profile = profile_at(&mut index, requested).borrow().value().clone();
        let endpoint = profile.endpoint.as_ref().expect(how);
        assert_eq!(endpoint.addr.to_string(), expect, "{how}");
        assert_eq!(endpoint.labels.get("pod"), pod, "{how}");
        let transport = meshed.then_some(4143);
        assert_eq!(endpoint.tls.is_some(), meshed, "{how}");
        assert_eq!(endpoint.opaque_transport_port, transport, "{how}");
    };
    let (own, node) = ("10.1.0.1:8080", "192.168.0.1");
    let at = |port: u16| format!("{node}:{port}");
    check("pod IP", own, own, Some("meshed"), true);
    check("host port", &at(80), own, Some("meshed"), true);
    check(
        "host port, outside the mesh",
        &at(81),
        &at(81),
        Some("plain"),
        false,
    );
    check(
        "host port of another host IP",
        &at(82),
        &at(82),
        None,
        false,
    );
    check(
        "host port of every host IP",
        &at(83),
        "10.1.0.4:8080",
        Some("open"),
        true,
    );
    check("host port for UDP", &at(84), &at(84), None, false);
    check("host network", &at(9100), &at(9100), Some("agent"), false);
    check("node port", &at(30080), &at(30080), None, false);
    check(
        "external IP",
        "203.0.113.1:80",
        "203.0.113.1:80",
        None,
        false,
    );
    check(
        "load balancer IP",
        "203.0.113.2:80",
        "203.0.113.2:80",
        None,
        false,
    );
}

#[test]
fn headless_instance_profile_has_endpoint_and_service_profile_has_fqn() {
    let mut index = index(&cluster());
    for (cluster_ip, name) in [("10.96.0.1:80", "web"), ("10.96.0.2:80", "outside")] {
        let profile = profile_at(&mut index, cluster_ip).borrow().value().clone();
        let fqn = format!("{name}.shop.svc.cluster.local");
        assert_eq!(
            (profile.fqn.as_deref(), profile.endpoint.clone()),
            (Some(&*fqn), None)
        );
    }
    let instance = profile_key(ProfileTarget::Instance {
        service: Name::new("shop", "headless"),
        hostname: "web-0".into(),
        port: 8080,
    });
    let profile = cached(index.profile(instance).unwrap())
        .borrow()
        .value()
        .clone();
    let endpoint = profile.endpoint.as_ref().unwrap();
    assert_eq!(endpoint.addr.to_string(), "10.1.0.1:8080");
    assert!(endpoint.tls.is_some());
}

#[test]
fn opaque_port_is_opaque_through_host_port() {
    let annotated = "annotations: {config.linkerd.io/opaque-ports: '8080'}";
    let hosted = pod("web-1", "10.1.0.1", true, annotated)
        .replace("containerPort: 8080}", "containerPort: 8080, hostPort: 80}");
    let mut index = index(&hosted);
    let profile = profile_at(&mut index, "192.168.0.1:80")
        .borrow()
        .value()
        .clone();
    assert!(profile.opaque);
    assert_eq!(
        profile.endpoint.as_ref().unwrap().hint,
        ProtocolHint::Opaque
    );
}

#[test]
fn host_port_maps_to_pod_address_of_same_family() {
    let hosted = pod("web-1", "10.1.0.1", true, "")
        .replace("containerPort: 8080}", "containerPort: 8080, hostPort: 80}")
        .replace(
            "podIPs: [{ip: 10.1.0.1}]",
            "podIPs: [{ip: 10.1.0.1}, {ip: fd00::1}]",
        )
        .replace(
            "hostIP: 192.168.0.1",
            "hostIP: 192.168.0.1, hostIPs: [{ip: 192.168.0.1}, {ip: fd01::1}]",
        );
    let mut index = index(&hosted);
    for (asked, own) in [
        ("192.168.0.1:80", "10.1.0.1:8080"),
        ("[fd01::1]:80", "[fd00::1]:8080"),
    ] {
        let profile = profile_at(&mut index, asked).borrow().value().clone();
        assert_eq!(profile.endpoint.as_ref().unwrap().addr.to_string(), own);
    }
}

#[test]
fn terminating_pod_keeps_identity_until_terminated() {
    let hosted = pod("web-1", "10.1.0.1", true, "")
        .replace("containerPort: 8080}", "containerPort: 8080, hostPort: 80}");
    let terminating = hosted.replace(
        "name: web-1",
        "name: web-1\n  deletionTimestamp: '2026-01-01T00:00:00Z'",
    );
    let mut index = index(&terminating);
    let pod_of = |rx: &watch::Receiver<Arc<Version<Profile>>>| {
        let endpoint = rx.borrow().endpoint.clone().unwrap();
        assert_eq!(endpoint.tls.is_some(), !endpoint.labels.is_empty());
        endpoint.labels.get("pod").map(str::to_owned)
    };
    let own = profile_at(&mut index, "10.1.0.1:8080");
    let host = profile_at(&mut index, "192.168.0.1:80");
    assert_eq!(
        (pod_of(&own), pod_of(&host)),
        (Some("web-1".into()), Some("web-1".into()))
    );

    // A pod that is not terminating takes precedence.
    index.apply(apply(&hosted.replace("web-1", "web-2")));
    assert_eq!(
        (pod_of(&own), pod_of(&host)),
        (Some("web-2".into()), Some("web-2".into()))
    );
    index.apply(delete(Kind::Pod, "shop", "web-2"));
    index.apply(apply(&terminating.replace("Running", "Succeeded")));
    assert_eq!((pod_of(&own), pod_of(&host)), (None, None));
}
