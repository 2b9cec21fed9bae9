//! Objects from YAML and settings, which the tests of the index share.

use mesh_cluster::source::manifest::{self, Document};
use mesh_cluster::source::{Batch, Change};
use mesh_objects::model::{Key, Kind, Name, Object};
use mesh_objects::policy::settings::PolicySettings;

use crate::index::{DestinationSettings, ProfileKey, ProfileTarget};

/// Returns the objects of a manifest, which must all be valid.
pub(crate) fn objects(text: &str) -> Vec<Object> {
    manifest::read(text, &Kind::ALL)
        .into_iter()
        .map(|document| match document {
            Document::Object { object, .. } => object,
            other => panic!("{other:?}"),
        })
        .collect()
}

pub(crate) fn apply(text: &str) -> Batch {
    objects(text).into_iter().map(Change::Apply).collect()
}

pub(crate) fn delete(kind: Kind, namespace: &str, name: &str) -> Batch {
    let name = Name::new(namespace, name);
    vec![Change::Delete(Key { kind, name })]
}

/// Returns the key of a client without namespace.
pub(in crate::index) fn profile_key(target: ProfileTarget) -> ProfileKey {
    ProfileKey {
        target,
        client_namespace: "".into(),
    }
}

pub(crate) fn destination_settings() -> DestinationSettings {
    DestinationSettings {
        cluster_domain: "cluster.local".into(),
        control_namespace: "linkerd".into(),
        trust_domain: Some("cluster.local".into()),
        default_opaque_ports: "25,3306".parse().unwrap(),
        h2_upgrade: true,
        transport_header: true,
        ipv6: false,
        meshed_http2_params: None,
        cluster: None,
    }
}

pub(crate) fn policy_settings() -> PolicySettings {
    PolicySettings {
        cluster_domain: "cluster.local".into(),
        control_namespace: "linkerd".into(),
        identity_domain: "cluster.local".into(),
        cluster_networks: vec!["10.0.0.0/8".parse().unwrap()],
        global_egress_namespace: "linkerd-egress".into(),
        default_policy: "all-unauthenticated".parse().unwrap(),
        probe_networks: vec!["0.0.0.0/0".parse().unwrap()],
        node_probe_sources: Vec::new(),
        default_opaque_ports: "25,3306".parse().unwrap(),
        allow_request_headers: true,
    }
}

/// Returns a running pod. `meshed` adds the proxy and the label of the control plane; `more` is
/// added to the metadata.
pub(crate) fn pod(name: &str, ip: &str, meshed: bool, more: &str) -> String {
    let label = if meshed {
        ", linkerd.io/control-plane-ns: linkerd"
    } else {
        ""
    };
    let proxy = if meshed {
        "
  - name: linkerd-proxy
    env:
    - {name: LINKERD2_PROXY_INBOUND_LISTEN_ADDR, value: '0.0.0.0:4143'}
    - {name: LINKERD2_PROXY_CONTROL_LISTEN_ADDR, value: '0.0.0.0:4190'}
    - {name: LINKERD2_PROXY_ADMIN_LISTEN_ADDR, value: '0.0.0.0:4191'}"
    } else {
        ""
    };
    format!(
        "---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: shop
  labels: {{app: web{label}}}
  ownerReferences: [{{apiVersion: apps/v1, kind: ReplicaSet, name: web-7f9c, uid: u}}]
  {more}
spec:
  nodeName: node-a
  serviceAccountName: web-sa
  containers:
  - name: web
    ports: [{{name: http, containerPort: 8080}}, {{name: db, containerPort: 3306}}]
    readinessProbe: {{httpGet: {{path: /ready, port: http}}}}
    livenessProbe: {{httpGet: {{path: '/live?x', port: 8080}}}}{proxy}
status: {{phase: Running, podIP: {ip}, podIPs: [{{ip: {ip}}}], hostIP: 192.168.0.1}}
"
    )
}

/// A Service with three ports, its ReplicaSet and the node.
pub(in crate::index) const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1]
  ports: [{name: http, port: 80, targetPort: http}, {name: db, port: 3306}, {name: plain, port: 81, appProtocol: HTTP}]
---
apiVersion: apps/v1
kind: ReplicaSet
metadata:
  name: web-7f9c
  namespace: shop
  ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u}]
---
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: east}}
";

/// Returns the Service's EndpointSlice; `endpoints` is a YAML list.
pub(in crate::index) fn slice(endpoints: &str) -> String {
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}, {{name: db, port: 3306}}, {{name: plain, port: 8080}}]
endpoints: {endpoints}
"
    )
}

/// Returns an endpoint of a pod.
pub(in crate::index) fn endpoint(pod: &str, ip: &str, more: &str) -> String {
    format!(
        "{{addresses: ['{ip}'], zone: east, targetRef: {{kind: Pod, name: {pod}, namespace: shop}}{more}}}"
    )
}
