//! The pods of a linked cluster, which are replaced, and the other objects of the cluster.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::kube_api::population::{FIRST_POD, Pod, Population, pod_name, slice_of};

/// The pods of a cluster.
pub(super) struct Pods {
    population: Population,
    cluster: u32,
    /// How often each pod has been replaced, in the order of their numbers.
    generations: Vec<u32>,
}

/// A pod, by its Service and its number there.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) service: u32,
    pub(super) pod: u32,
}

/// The pods of a cluster have this many addresses, which they use again after that.
const ADDRESSES: u32 = 65_536;
/// Containers in the fields that an object's managers own.
const CONTAINERS: [&str; 2] = ["app", "linkerd-proxy"];

impl Pods {
    /// Returns the first pods of the cluster with this number.
    pub(super) fn new(population: Population, cluster: u32) -> Self {
        Self {
            population,
            cluster,
            generations: vec![0; population.total() as usize],
        }
    }

    /// Returns the objects of a kind, by its plural.
    pub(super) fn objects(&self, plural: &str) -> Box<dyn Iterator<Item = Value>> {
        let services = 0..self.population.services;
        let objects: Vec<Value> = match plural {
            "pods" => {
                let places = services.flat_map(|service| {
                    let pods = 0..self.population.pods;
                    pods.map(move |pod| Place { service, pod })
                });
                places.map(|place| ready(&self.current(place))).collect()
            }
            "endpointslices" => services
                .map(|service| slice_of(service, 0, &self.endpoints(service)))
                .collect(),
            "services" => self.population.services().map(exported).collect(),
            _ => return self.population.objects(plural),
        };
        Box::new(objects.into_iter())
    }

    /// Returns the pod at each place in turn.
    pub(super) fn place(&self, turn: u32) -> Place {
        let Population { services, pods } = self.population;
        Place {
            service: turn % services,
            pod: (turn / services) % pods,
        }
    }

    pub(super) fn current(&self, place: Place) -> Pod {
        self.at(place, self.generation(place))
    }

    /// Returns the pod that replaces the current one.
    pub(super) fn next(&self, place: Place) -> Pod {
        self.at(place, self.generation(place) + 1)
    }

    pub(super) fn replace(&mut self, place: Place) {
        self.generations[self.population.number(place.service, place.pod) as usize] += 1;
    }

    /// Returns the endpoints of a Service: its current pods.
    pub(super) fn endpoints(&self, service: u32) -> Vec<Value> {
        let pods = 0..self.population.pods;
        let current = pods.map(|pod| self.current(Place { service, pod }));
        current.map(|pod| pod.endpoint(true)).collect()
    }

    fn generation(&self, place: Place) -> u32 {
        self.generations[self.population.number(place.service, place.pod) as usize]
    }

    fn at(&self, Place { service, pod }: Place, generation: u32) -> Pod {
        let number = self.population.number(service, pod);
        let serial = number + generation * self.population.total();
        // The cluster that links this one has the first addresses.
        let first = FIRST_POD + (self.cluster + 1) * ADDRESSES;
        Pod {
            service,
            name: pod_name(service, pod + generation * self.population.pods),
            ip: Ipv4Addr::from(first + serial % ADDRESSES),
            node: self.population.node(service, pod),
        }
    }
}

/// Returns a pod that has been created, and has neither node nor address.
pub(super) fn pending(pod: &Pod) -> Value {
    let mut object = stored(pod);
    object["spec"]["nodeName"] = Value::Null;
    object["status"] = json!({"phase": "Pending"});
    object
}

/// Returns a pod whose containers have started.
pub(super) fn started(pod: &Pod) -> Value {
    let mut object = ready(pod);
    object["status"]["conditions"][2]["status"] = json!("False");
    object["status"]["conditions"][3]["status"] = json!("False");
    object
}

/// Returns a pod that serves.
pub(super) fn ready(pod: &Pod) -> Value {
    let mut object = stored(pod);
    let types = ["PodScheduled", "Initialized", "Ready", "ContainersReady"];
    let conditions = types.map(|name| {
        json!({
            "type": name, "status": "True", "lastProbeTime": null,
            "lastTransitionTime": "2026-11-01T00:00:00Z",
        })
    });
    let containers = CONTAINERS.map(|name| {
        json!({
            "name": name, "ready": true, "started": true, "restartCount": 0,
            "image": "example.com/shop/web:1",
            "imageID": format!("example.com/shop/web@sha256:{}", "0".repeat(64)),
            "containerID": format!("containerd://{}", "0".repeat(64)),
            "state": {"running": {"startedAt": "2026-11-01T00:00:00Z"}},
            "lastState": {},
        })
    });
    object["status"]["conditions"] = json!(conditions);
    object["status"]["containerStatuses"] = json!(containers);
    object
}

/// Returns a pod that is being deleted.
pub(super) fn ending(pod: &Pod) -> Value {
    let mut object = ready(pod);
    object["metadata"]["deletionTimestamp"] = json!("2026-11-01T00:00:30Z");
    object["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    object
}

/// Returns the object of a pod with the fields that its managers own, which are half of it on a
/// cluster.
fn stored(pod: &Pod) -> Value {
    let owned = |fields: &[&str]| -> Value {
        let fields = fields.iter().map(|field| (format!("f:{field}"), json!({})));
        Value::Object(fields.collect())
    };
    let containers = CONTAINERS.map(|name| {
        let fields = [
            "name",
            "image",
            "imagePullPolicy",
            "ports",
            "env",
            "resources",
            "volumeMounts",
            "livenessProbe",
            "readinessProbe",
            "securityContext",
            "terminationMessagePath",
            "terminationMessagePolicy",
        ];
        (format!("k:{{\"name\":\"{name}\"}}"), owned(&fields))
    });
    let conditions = ["ContainersReady", "Initialized", "Ready", "PodScheduled"];
    let conditions = conditions.map(|name| {
        let fields = ["type", "status", "lastProbeTime", "lastTransitionTime"];
        (format!("k:{{\"type\":\"{name}\"}}"), owned(&fields))
    });
    let manager = |name: &str, fields: Value| {
        json!({
            "manager": name, "operation": "Update", "apiVersion": "v1",
            "time": "2026-11-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    };
    let mut object = pod.object();
    object["metadata"]["managedFields"] = json!([
        manager(
            "kube-controller-manager",
            json!({
                "f:metadata": {
                    "f:annotations": owned(&[".", "linkerd.io/proxy-version", "linkerd.io/inject"]),
                    "f:labels": owned(&[".", "app", "pod-template-hash", "linkerd.io/control-plane-ns"]),
                    "f:generateName": {},
                    "f:ownerReferences": {},
                },
                "f:spec": {
                    "f:containers": Value::Object(containers.into_iter().collect()),
                    "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {},
                    "f:serviceAccountName": {}, "f:terminationGracePeriodSeconds": {},
                },
            })
        ),
        manager(
            "kubelet",
            json!({
                "f:status": {
                    "f:conditions": Value::Object(conditions.into_iter().collect()),
                    "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {},
                    "f:podIP": {}, "f:podIPs": {}, "f:startTime": {},
                },
            })
        ),
    ]);
    object
}

/// Returns a Service that Links select.
fn exported(mut service: Value) -> Value {
    service["metadata"]["labels"] = json!({
        "app": service["metadata"]["name"], "team": "shop",
        "mirror.linkerd.io/exported": "true",
    });
    service
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pods(cluster: u32) -> Pods {
        let population = Population {
            services: 100,
            pods: 3,
        };
        Pods::new(population, cluster)
    }

    #[test]
    fn each_pod_is_replaced_once_in_a_round_by_one_with_another_name_and_address() {
        let mut pods = pods(7);
        let names = |pods: &Pods| -> HashSet<String> {
            let all = pods.objects("pods");
            all.map(|pod| format!("{} {}", pod["metadata"]["name"], pod["status"]["podIP"]))
                .collect()
        };
        let before = names(&pods);
        for turn in 0..300 {
            let place = pods.place(turn);
            let next = pods.next(place).name;
            pods.replace(place);
            assert_eq!(pods.current(place).name, next);
        }
        let after = names(&pods);
        assert_eq!((before.len(), after.len()), (300, 300));
        assert!(before.is_disjoint(&after));
    }

    #[test]
    fn clusters_have_addresses_of_their_own() {
        let place = Place { service: 0, pod: 0 };
        let addresses = (0..200).map(|cluster| pods(cluster).current(place).ip);
        let octets = addresses.map(|ip| (ip.octets()[0], ip.octets()[1]));
        let networks: HashSet<(u8, u8)> = octets.collect();
        assert_eq!(networks.len(), 200);
        assert!(networks.iter().all(|(first, _)| *first == 10));
    }

    #[test]
    fn slice_of_a_service_has_its_current_pods() {
        let mut pods = pods(0);
        let place = pods.place(0);
        let replaced = pods.current(place).ip.to_string();
        pods.replace(place);
        let endpoints = pods.endpoints(place.service);
        assert_eq!(endpoints.len(), 3);
        assert!(endpoints.iter().all(|it| it["addresses"][0] != *replaced));
    }
}
