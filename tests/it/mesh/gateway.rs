//! A gateway between clusters: a client reaches a Service of another cluster by its mirror.
//!
//! Both clusters are the same one. The mirror is written as a service mirror and Kubernetes write
//! it for another one: its EndpointSlice has the address of the gateway.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use super::access::has_metric;
use super::manifests;
use super::tap::WEB;
use crate::harness::mesh::Mesh;

const GATEWAY: &str = "gateway.app.serviceaccount.identity.linkerd.cluster.local";

/// A pod whose proxy is a gateway.
fn gateway() -> String {
    let annotations = "  annotations: {config.linkerd.io/enable-gateway: 'true'}\n";
    let pod = manifests::pod("app", "gateway", &["sleep", "infinity"], &[], "");
    let labels = "  labels: {app: gateway}\n";
    assert!(pod.contains(labels));
    pod.replace(labels, &format!("{labels}{annotations}"))
}

/// The mirror of the Service `web`, with the address and the identity of its gateway.
fn mirror(address: &str, identity: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web-east, namespace: app}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-east-1
  namespace: app
  labels: {{kubernetes.io/service-name: web-east, mirror.linkerd.io/cluster-name: east}}
  annotations:
    mirror.linkerd.io/remote-svc-fq-name: web.app.svc.cluster.local
    mirror.linkerd.io/remote-gateway-identity: {identity}
addressType: IPv4
ports: [{{name: http, port: 4143}}]
endpoints: [{{addresses: ['{address}'], conditions: {{ready: true}}}}]
"
    )
}

#[test]
fn mirrored_service_is_reached_through_the_gateway_of_its_cluster() {
    require_root!();
    let app = manifests::app() + &gateway();
    let mesh = Mesh::up(&[("app.yaml", &app)]);
    let address = mesh.address("app", "gateway");
    mesh.write("mirror.yaml", &mirror(&address, GATEWAY));
    mesh.meshctl("local apply");
    let curl = |pod: &str, url: &str| {
        let command = format!("curl -s -m 5 -w %{{http_code}} {url}");
        mesh.exec(pod, &command)
    };
    // Requests to a Service that is new to the controllers are forwarded to its address.
    eventually("the Service responds through the gateway", || {
        curl("app/client", "http://web-east/") == "hello\n200"
    });
    // The application gets the name that its own cluster knows it by.
    let seen = curl("app/client", "http://web-east/headers");
    assert!(seen.contains("web.app.svc.cluster.local"), "{seen}");
    let (gateway_id, web_id) = (format!("\"{GATEWAY}\""), format!("server_id=\"{WEB}\""));
    let server_id = format!("server_id={gateway_id}");
    let labels = [
        "dst_target_cluster=\"east\"",
        "dst_target_service=\"web\"",
        &server_id,
    ];
    assert!(has_metric(&mesh, "app/client", "request_total{", &labels));
    let direction = "direction=\"outbound\"";
    let labels = [direction, &*web_id];
    assert!(has_metric(&mesh, "app/gateway", "request_total{", &labels));
    let client_id = format!("client_id={gateway_id}");
    let labels = ["direction=\"inbound\"", &*client_id];
    assert!(has_metric(&mesh, "app/web", "request_total{", &labels));

    // Without the mesh's identity the gateway forwards nothing.
    mesh.write("mirror.yaml", &mirror(&address, WEB));
    mesh.meshctl("local apply");
    eventually("another gateway than the expected one is refused", || {
        !curl("app/client", "http://web-east/").ends_with("200")
    });
}
