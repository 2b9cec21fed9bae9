//! The status of objects that are read from YAML.

use mesh_objects::model::{Kind, Object, ReportedKind, ReportedObject};

use mesh_cluster::source::Change;
use mesh_cluster::source::manifest::{self, Document};

use super::*;

mod agreement;
mod merging;
mod policies;
mod routes;
mod writing;

/// Each kind of object with a status is read as its record with the status.
const KINDS: [Kind; 9] = [
    Kind::Reported(ReportedKind::PolicyHttpRoute),
    Kind::Reported(ReportedKind::GatewayHttpRoute),
    Kind::Reported(ReportedKind::GatewayGrpcRoute),
    Kind::Reported(ReportedKind::GatewayTlsRoute),
    Kind::Reported(ReportedKind::GatewayTcpRoute),
    Kind::Reported(ReportedKind::RateLimitPolicy),
    Kind::Reported(ReportedKind::EgressNetwork),
    Kind::Service,
    Kind::Server,
];

const CLUSTER: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{name: http, port: 80}, {name: admin, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: other}
spec: {clusterIP: 10.96.0.3, clusterIPs: [10.96.0.3], ports: [{port: 7000}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: external, namespace: shop}
spec: {type: ExternalName, externalName: example.com, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: portless, namespace: shop}
spec: {clusterIP: 10.96.0.4, clusterIPs: [10.96.0.4]}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: detect, namespace: shop}
spec: {podSelector: {}, port: 8080}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: http2, namespace: shop}
spec: {podSelector: {}, port: 8081, proxyProtocol: HTTP/2}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: grpc, namespace: shop}
spec: {podSelector: {}, port: 8082, proxyProtocol: gRPC}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: opaque, namespace: shop}
spec: {podSelector: {}, port: 8083, proxyProtocol: opaque}
---
apiVersion: policy.linkerd.io/v1beta3
kind: Server
metadata: {name: detect, namespace: other}
spec: {podSelector: {}, port: 8080}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: outside, namespace: shop}
spec: {trafficPolicy: Deny}
---
apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {name: inside, namespace: shop}
spec: {trafficPolicy: Deny, networks: [{cidr: 10.9.0.0/16}]}
";

/// Returns the objects of a manifest, which must all be valid documents.
fn read(text: &str) -> Vec<Object> {
    let documents = manifest::read(text, &KINDS).into_iter();
    let object = |document| match document {
        Document::Object { object, .. } => object,
        other => panic!("{other:?} in {text}"),
    };
    documents.map(object).collect()
}

/// Returns the cluster with the objects of a manifest.
fn objects(text: &str) -> StatusObjects {
    let mut objects = StatusObjects::new(&["10.0.0.0/8".parse().unwrap()]);
    let cluster = read(CLUSTER).into_iter().chain(read(text));
    let changes: Vec<Change> = cluster.map(Change::Apply).collect();
    assert!(objects.apply(&changes));
    objects
}

fn find<'a>(objects: &'a StatusObjects, name: &str) -> &'a ReportedObject {
    let mut found = objects.reported.iter().filter(|(key, _)| {
        let name = name.rsplit_once('/').unwrap_or(("shop", name));
        (&*key.name.namespace, &*key.name.name) == name
    });
    found.next().unwrap_or_else(|| panic!("no {name}")).1
}
