//! An ExternalWorkload behind a Service: clients authenticate it by its object.
//!
//! The machine is a pod, but only its address is known of it: an EndpointSlice that refers to the
//! ExternalWorkload, as for a machine outside of the cluster.

use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use super::access::has_metric;
use super::manifests;
use super::tap::WEB;
use crate::harness::mesh::Mesh;

/// The Service `machine` without selector, with one address.
fn machine(address: &str, identity: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: machine, namespace: app}}
spec: {{ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: machine-1, namespace: app, labels: {{kubernetes.io/service-name: machine}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints:
- addresses: ['{address}']
  conditions: {{ready: true}}
  targetRef: {{kind: ExternalWorkload, name: vm, namespace: app}}
---
apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {{name: vm, namespace: app}}
spec:
  meshTLS: {{identity: {identity}, serverName: {identity}}}
  workloadIPs: [{{ip: {address}}}]
  ports: [{{name: http, port: 8080}}]
"
    )
}

#[test]
fn external_workload_is_reached_by_mutual_tls_with_its_identity_only() {
    require_root!();
    let app = manifests::app();
    let mesh = Mesh::up(&[("app.yaml", &app)]);
    let address = mesh.address("app", "web");
    mesh.write("machine.yaml", &machine(&address, WEB));
    mesh.meshctl("local apply");
    let status = || {
        let curl = "curl -s -m 5 -o /dev/null -w %{http_code} http://machine/";
        mesh.exec("app/client", curl)
    };
    let server_id = format!("server_id=\"{WEB}\"");
    let labels = ["dst_external_workload=\"vm\"", "tls=\"true\"", &server_id];
    // Requests to a Service that is new to the controllers are forwarded to its address.
    eventually("the machine responds by mutual TLS", || {
        status() == "200" && has_metric(&mesh, "app/client", "request_total{", &labels)
    });

    // Another machine has got the address.
    let other = "other.app.serviceaccount.identity.linkerd.cluster.local";
    mesh.write("machine.yaml", &machine(&address, other));
    mesh.meshctl("local apply");
    eventually("the machine is refused", || status() != "200");
}
