//! The objects of a cluster of a given size: Services with pods of the same number each, their
//! ReplicaSets and EndpointSlices, nodes and namespaces. All pods run the proxy.

use std::net::Ipv4Addr;

use clap::Args;
use serde_json::{Value, json};

/// Services and their pods.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Population {
    /// Number of Services
    #[arg(long)]
    pub(crate) services: u32,
    /// Pods of each Service, at most 65,536
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) pods: u32,
}

/// The port of each Service.
pub(crate) const PORT: u16 = 80;
/// The port of each pod's application.
const TARGET_PORT: u16 = 8080;
const SERVICES_PER_NAMESPACE: u32 = 20;
/// Ordinary nodes of Amazon's and Google's clusters have about this number of pods.
const PODS_PER_NODE: u32 = 20;
/// The limit of Kubernetes' own controller.
pub(super) const ENDPOINTS_PER_SLICE: u32 = 100;
/// 10.0.0.0: pods. 16,000,000 addresses.
pub(super) const FIRST_POD: u32 = 0x0a00_0000;
/// 172.16.0.0: Services.
const FIRST_SERVICE: u32 = 0xac10_0000;

pub(crate) fn service_name(service: u32) -> String {
    format!("web-{service}")
}

pub(crate) fn service_namespace(service: u32) -> String {
    format!("shop-{}", service / SERVICES_PER_NAMESPACE)
}

/// A pod of a Service.
pub(super) struct Pod {
    pub(super) service: u32,
    pub(super) name: String,
    pub(super) ip: Ipv4Addr,
    pub(super) node: String,
}

impl Population {
    /// Returns the objects of a kind, by its plural.
    pub(super) fn objects(self, plural: &str) -> Box<dyn Iterator<Item = Value>> {
        match plural {
            "pods" => Box::new(self.pods()),
            "services" => Box::new(self.services()),
            "nodes" => Box::new(self.nodes()),
            "namespaces" => Box::new(self.namespaces()),
            "replicasets" => Box::new(self.replica_sets()),
            "endpointslices" => Box::new(self.slices()),
            _ => Box::new(std::iter::empty()),
        }
    }

    pub(super) fn namespaces(self) -> impl Iterator<Item = Value> {
        let count = self.services.div_ceil(SERVICES_PER_NAMESPACE);
        let names = (0..count).map(|number| service_namespace(number * SERVICES_PER_NAMESPACE));
        names.map(|name| {
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "uid": name},
            })
        })
    }

    pub(super) fn nodes(self) -> impl Iterator<Item = Value> {
        (0..self.total().div_ceil(PODS_PER_NODE)).map(|number| {
            let name = format!("node-{number}");
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "uid": name, "labels": {
                    "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
                }},
            })
        })
    }

    pub(super) fn services(self) -> impl Iterator<Item = Value> {
        (0..self.services).map(move |service| self.service(service, false))
    }

    /// `opaque` says whether its port is.
    pub(super) fn service(self, service: u32, opaque: bool) -> Value {
        let name = service_name(service);
        let ip = Ipv4Addr::from(FIRST_SERVICE + service + 1).to_string();
        let mut metadata = metadata(service, &name);
        if opaque {
            metadata["annotations"] = json!({"config.linkerd.io/opaque-ports": PORT.to_string()});
        }
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": metadata,
            "spec": {
                "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
                "selector": {"app": name},
                "ports": [{
                    "name": "http", "protocol": "TCP",
                    "port": PORT, "targetPort": TARGET_PORT,
                }],
            },
        })
    }

    pub(super) fn replica_sets(self) -> impl Iterator<Item = Value> {
        (0..self.services).map(|service| {
            let deployment = service_name(service);
            let mut metadata = metadata(service, &replica_set(service));
            metadata["ownerReferences"] = owner("Deployment", &deployment);
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata})
        })
    }

    pub(super) fn pods(self) -> impl Iterator<Item = Value> {
        let of_service =
            move |service| (0..self.pods).map(move |pod| self.pod(service, pod).object());
        (0..self.services).flat_map(of_service)
    }

    fn pod(self, service: u32, pod: u32) -> Pod {
        Pod {
            service,
            name: pod_name(service, pod),
            ip: self.ip(service, pod),
            node: self.node(service, pod),
        }
    }

    pub(super) fn slices(self) -> impl Iterator<Item = Value> {
        let slices = self.slices_per_service();
        let of_service =
            move |service| (0..slices).map(move |slice| self.slice(service, slice, true));
        (0..self.services).flat_map(of_service)
    }

    pub(super) fn slices_per_service(self) -> u32 {
        self.pods.div_ceil(ENDPOINTS_PER_SLICE)
    }

    /// `first_ready` says whether its first endpoint is ready; all others are.
    pub(super) fn slice(self, service: u32, slice: u32, first_ready: bool) -> Value {
        let first = slice * ENDPOINTS_PER_SLICE;
        let last = (first + ENDPOINTS_PER_SLICE).min(self.pods);
        let endpoints =
            (first..last).map(|pod| self.pod(service, pod).endpoint(pod != first || first_ready));
        slice_of(service, slice, &endpoints.collect::<Vec<_>>())
    }

    pub(super) fn total(self) -> u32 {
        self.services * self.pods
    }

    pub(super) fn number(self, service: u32, pod: u32) -> u32 {
        service * self.pods + pod
    }

    fn ip(self, service: u32, pod: u32) -> Ipv4Addr {
        Ipv4Addr::from(FIRST_POD + self.number(service, pod) + 1)
    }

    pub(super) fn node(self, service: u32, pod: u32) -> String {
        format!("node-{}", self.number(service, pod) / PODS_PER_NODE)
    }
}

impl Pod {
    /// Returns the object of the pod, which is ready.
    pub(super) fn object(&self) -> Value {
        let service = self.service;
        let mut metadata = metadata(service, &self.name);
        metadata["labels"] = json!({
            "app": service_name(service),
            "pod-template-hash": "7d9c6b5f4",
            "linkerd.io/control-plane-ns": "linkerd",
        });
        metadata["annotations"] = json!({"linkerd.io/proxy-version": "bench"});
        metadata["ownerReferences"] = owner("ReplicaSet", &replica_set(service));
        let ip = self.ip.to_string();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "nodeName": self.node,
                "serviceAccountName": service_name(service),
                "containers": [
                    {
                        "name": "app", "image": "example.com/shop/web:1",
                        "ports": [{"containerPort": TARGET_PORT}],
                    },
                    {
                        "name": "linkerd-proxy", "image": "example.com/mesh/proxy:1",
                        "ports": [{"containerPort": 4143, "name": "linkerd-proxy"}],
                        "env": [
                            {"name": "LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "value": "0.0.0.0:4143"},
                            {"name": "LINKERD2_PROXY_CONTROL_LISTEN_ADDR", "value": "0.0.0.0:4190"},
                            {"name": "LINKERD2_PROXY_ADMIN_LISTEN_ADDR", "value": "0.0.0.0:4191"},
                        ],
                    },
                ],
            },
            "status": {
                "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }

    /// Returns its endpoint in an EndpointSlice.
    pub(super) fn endpoint(&self, ready: bool) -> Value {
        json!({
            "addresses": [self.ip.to_string()],
            "conditions": {"ready": ready},
            "nodeName": self.node,
            "targetRef": {
                "kind": "Pod",
                "namespace": service_namespace(self.service),
                "name": self.name,
            },
        })
    }
}

/// Returns an EndpointSlice of a Service.
pub(super) fn slice_of(service: u32, slice: u32, endpoints: &[Value]) -> Value {
    let name = service_name(service);
    let mut metadata = metadata(service, &format!("{name}-{slice}"));
    metadata["labels"] = json!({"kubernetes.io/service-name": name});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": TARGET_PORT, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Returns a pod of a Service before the injector has seen it.
pub(crate) fn new_pod(service: u32, containers: u32) -> Value {
    let containers = (0..containers).map(|number| {
        json!({
            "name": format!("app-{number}"), "image": "example.com/shop/web:1",
            "ports": [{"containerPort": u32::from(TARGET_PORT) + number}],
            "env": [{"name": "MODE", "value": "production"}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "volumeMounts": [{
                "name": "token", "readOnly": true,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }],
        })
    });
    let containers: Vec<Value> = containers.collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-", replica_set(service)),
            "namespace": service_namespace(service),
            "labels": {"app": service_name(service), "pod-template-hash": "7d9c6b5f4"},
            "annotations": {"linkerd.io/inject": "enabled"},
            "ownerReferences": owner("ReplicaSet", &replica_set(service)),
        },
        "spec": {
            "serviceAccountName": service_name(service),
            "containers": containers,
            "volumes": [{"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            ]}}],
        },
    })
}

fn replica_set(service: u32) -> String {
    format!("{}-7d9c6b5f4", service_name(service))
}

pub(super) fn pod_name(service: u32, pod: u32) -> String {
    format!("{}-{pod:05}", replica_set(service))
}

fn metadata(service: u32, name: &str) -> Value {
    let namespace = service_namespace(service);
    json!({"name": name, "namespace": namespace, "uid": format!("{namespace}/{name}")})
}

fn owner(kind: &str, name: &str) -> Value {
    json!([{
        "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true,
    }])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_pod_is_in_one_slice_with_its_address() {
        let population = Population {
            services: 3,
            pods: 250,
        };
        let pods: HashSet<String> = population
            .pods()
            .map(|pod| format!("{} {}", pod["metadata"]["name"], pod["status"]["podIP"]))
            .collect();
        let slices: Vec<Value> = population.slices().collect();
        assert_eq!(slices.len(), 9);
        let endpoints: Vec<String> = slices
            .iter()
            .filter_map(|slice| slice["endpoints"].as_array())
            .flatten()
            .map(|endpoint| {
                format!(
                    "{} {}",
                    endpoint["targetRef"]["name"], endpoint["addresses"][0]
                )
            })
            .collect();
        assert_eq!(endpoints.len(), 750);
        assert_eq!(endpoints.into_iter().collect::<HashSet<_>>(), pods);
    }
}
