//! Endpoints and profiles of ExternalWorkloads.

use super::*;

const VM: &str = "---
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata:
  name: vm
  namespace: shop
  labels: {app: web, topology.kubernetes.io/zone: east}
  ownerReferences: [{apiVersion: example.org/v1, kind: Group, name: vms, uid: u}]
spec:
  meshTLS: {identity: 'spiffe://example.org/vm', serverName: vm.example}
  workloadIPs: [{ip: 192.0.2.7}]
  ports: [{name: http, port: 8080}, {name: db, port: 3306}, {name: linkerd-proxy, port: 4150}]
";

const SERVER: &str = "---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: vm-http, namespace: shop}
spec: {externalWorkloadSelector: {}, port: http, proxyProtocol: opaque}
";

/// The Service with a machine and a pod.
fn cluster() -> String {
    let machine = "{addresses: ['192.0.2.7'], zone: east, targetRef: {kind: ExternalWorkload, name: vm, \
                   namespace: shop}}";
    [
        SERVICE.to_owned(),
        VM.to_owned(),
        pod("web-1", "10.1.0.1", true, ""),
        slice(&format!(
            "[{machine}, {}]",
            endpoint("web-1", "10.1.0.1", "")
        )),
    ]
    .concat()
}

#[test]
fn external_workload_is_an_endpoint_with_its_identity() {
    let mut index = index(&cluster());
    let node = Some(Arc::from("node-a"));
    let rx = endpoints(&mut index, EndpointsKey { node, ..key(80) });
    assert_eq!(addrs(&rx), ["10.1.0.1:8080", "192.0.2.7:8080"]);
    let machine = at(&rx, "192.0.2.7:8080");
    let tls = machine.tls.as_ref().unwrap();
    let expected = ("spiffe://example.org/vm", "vm.example");
    assert_eq!((tls.id.as_str(), &*tls.server_name), expected);
    assert_eq!(machine.hint, ProtocolHint::Http2);
    assert_eq!(machine.opaque_transport_port, Some(4150));
    let expected = [
        "external_workload=vm",
        "group=vms",
        "zone=east",
        "zone_locality=local",
    ];
    assert_eq!(labels(&machine), expected);
}

#[test]
fn ports_of_external_workload_are_opaque_by_default_by_server_and_by_annotation() {
    let mut index = index(&cluster());
    let (http, db) = (
        endpoints(&mut index, key(80)),
        endpoints(&mut index, key(3306)),
    );
    let hints = || {
        let hint = |rx, addr| at(rx, addr).hint;
        (hint(&http, "192.0.2.7:8080"), hint(&db, "192.0.2.7:3306"))
    };
    assert_eq!(hints(), (ProtocolHint::Http2, ProtocolHint::Opaque));
    index.apply(apply(SERVER));
    assert_eq!(hints(), (ProtocolHint::Opaque, ProtocolHint::Opaque));
    index.apply(delete(Kind::Server, "shop", "vm-http"));
    let annotated = VM.replace(
        "  labels:",
        "  annotations: {config.linkerd.io/opaque-ports: 'http'}\n  labels:",
    );
    index.apply(apply(&annotated));
    assert_eq!(hints(), (ProtocolHint::Opaque, ProtocolHint::Http2));
}

#[test]
fn endpoint_follows_its_external_workload() {
    let mut index = index(&cluster());
    let rx = endpoints(&mut index, key(80));
    index.apply(apply(&VM.replace("example.org/vm", "example.org/other")));
    let id = at(&rx, "192.0.2.7:8080").tls.unwrap().id;
    assert_eq!(id.as_str(), "spiffe://example.org/other");
    index.apply(apply(&VM.replace("spiffe://", "https://")));
    assert_eq!(addrs(&rx), ["10.1.0.1:8080"], "without a valid identity");
    index.apply(apply(VM));
    index.apply(delete(Kind::ExternalWorkload, "shop", "vm"));
    assert_eq!(addrs(&rx), ["10.1.0.1:8080"], "without its object");
    index.apply(apply(VM));
    assert_eq!(addrs(&rx), ["10.1.0.1:8080", "192.0.2.7:8080"]);
}

#[test]
fn address_of_external_workload_has_a_profile() {
    let mut index = index(&cluster());
    let rx = profile_at(&mut index, "192.0.2.7:8080");
    let profile = rx.borrow().value().clone();
    let endpoint = profile.endpoint.as_ref().unwrap();
    assert!(endpoint.tls.is_some() && !profile.opaque);
    let expected = [
        "external_workload=vm",
        "group=vms",
        "namespace=shop",
        "zone=east",
    ];
    assert_eq!(labels(endpoint), expected);
    let undeclared = profile_at(&mut index, "192.0.2.7:9")
        .borrow()
        .value()
        .clone();
    assert_eq!(undeclared.endpoint.as_ref().unwrap().tls, None);
    index.apply(apply(SERVER));
    assert!(rx.borrow().value().opaque);
    index.apply(delete(Kind::ExternalWorkload, "shop", "vm"));
    assert_eq!(rx.borrow().value().endpoint.as_ref().unwrap().tls, None);
}

#[test]
fn two_external_workloads_with_one_address_have_no_profile() {
    let other = VM.replace("name: vm\n", "name: vm-2\n");
    let mut index = index(&[VM, &other].concat());
    let key = profile_key(ProfileTarget::Addr("192.0.2.7:8080".parse().unwrap()));
    let error = index.profile(key).unwrap_err().to_string();
    let expected = "external workloads shop/vm and shop/vm-2 both have the address 192.0.2.7:8080";
    assert_eq!(error, expected);
}
