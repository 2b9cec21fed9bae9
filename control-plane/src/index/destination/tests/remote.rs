//! Endpoints of Services of other clusters, which their gateways reach.

use super::*;

/// The mirror of a Service, and the slice that Kubernetes makes of its Endpoints.
fn mirror(labels: &str, annotations: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: web-east, namespace: shop}}
spec: {{clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{{name: http, port: 80}}, {{name: db, port: 5432}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-east-1
  namespace: shop
  labels: {{kubernetes.io/service-name: web-east, {labels}}}
  annotations: {{{annotations}}}
addressType: IPv4
ports: [{{name: http, port: 4143}}, {{name: db, port: 4143}}]
endpoints: [{{addresses: [192.0.2.8]}}, {{addresses: [192.0.2.9]}}]
"
    )
}

const CLUSTER: &str = "mirror.linkerd.io/cluster-name: east";
const FQN: &str = "mirror.linkerd.io/remote-svc-fq-name: web.shop.svc.east.local";
const IDENTITY: &str = "mirror.linkerd.io/remote-gateway-identity: gateway.mc.example";

fn mirror_key(port: u16) -> EndpointsKey {
    EndpointsKey {
        service: Name::new("shop", "web-east"),
        ..key(port)
    }
}

#[test]
fn gateway_is_an_endpoint_with_the_name_of_the_remote_service() {
    let mut index = index(&mirror(CLUSTER, &format!("{FQN}, {IDENTITY}")));
    for port in [80, 5432] {
        let rx = endpoints(&mut index, mirror_key(port));
        assert_eq!(addrs(&rx), ["192.0.2.8:4143", "192.0.2.9:4143"]);
        let gateway = at(&rx, "192.0.2.8:4143");
        let authority = format!("web.shop.svc.east.local:{port}");
        assert_eq!(gateway.authority_override.as_deref(), Some(&*authority));
        let tls = gateway.tls.as_ref().unwrap();
        assert_eq!(tls.id.as_str(), "gateway.mc.example");
        assert_eq!(&*tls.server_name, "gateway.mc.example");
        assert_eq!(gateway.hint, ProtocolHint::Http2);
        assert_eq!(gateway.opaque_transport_port, None);
        assert_eq!(labels(&gateway), ["zone_locality=unknown"]);
        let set = rx.borrow().value().labels.clone();
        let expected = [
            ("namespace", "shop"),
            ("service", "web-east"),
            ("target_cluster", "east"),
            ("target_service", "web"),
            ("target_service_namespace", "shop"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(set, expected.into());
    }
}

#[test]
fn gateway_without_an_identity_is_plain_and_with_an_invalid_one_left_out() {
    let mut index = index(&mirror(CLUSTER, FQN));
    let rx = endpoints(&mut index, mirror_key(80));
    let gateway = at(&rx, "192.0.2.8:4143");
    assert_eq!(gateway.tls, None);
    assert_eq!(gateway.hint, ProtocolHint::Unknown);
    assert!(gateway.authority_override.is_some());
    for invalid in ["'a b'", "'spiffe://example.org/gateway'"] {
        let identity = format!("mirror.linkerd.io/remote-gateway-identity: {invalid}");
        index.apply(apply(&mirror(CLUSTER, &format!("{FQN}, {identity}"))));
        assert_eq!(addrs(&rx), [] as [&str; 0], "{invalid}");
    }
    index.apply(apply(&mirror(CLUSTER, &format!("{FQN}, {IDENTITY}"))));
    assert!(at(&rx, "192.0.2.8:4143").tls.is_some());
}

#[test]
fn labels_of_the_remote_service_need_its_cluster_and_its_name() {
    for (labels, annotations) in [
        ("", FQN),
        (CLUSTER, ""),
        (CLUSTER, "mirror.linkerd.io/remote-svc-fq-name: web"),
    ] {
        let mut index = index(&mirror(labels, annotations));
        let rx = endpoints(&mut index, mirror_key(80));
        let set = rx.borrow().value().labels.clone();
        let keys: Vec<_> = set.keys().map(String::as_str).collect();
        assert_eq!(keys, ["namespace", "service"], "{labels} {annotations}");
    }
}
