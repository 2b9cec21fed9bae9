//! Slices of objects that are read from YAML. The controller's writes are read again, as a watch
//! would bring them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use mesh_cluster::source::Change;
use mesh_objects::convert::{self, Json};
use mesh_objects::model::{ExternalKind, Kind};
use serde_json::{Value, json};

use super::ExternalSlices;
use crate::writer::{Action, Written as _};

/// An API server with the objects of the namespace `shop`, and the controller.
#[derive(Default)]
struct Cluster {
    controller: ExternalSlices,
    slices: BTreeMap<String, Value>,
    version: u32,
}

impl Cluster {
    /// Returns a cluster with the Service `web` and no workload.
    fn new() -> Self {
        let mut cluster = Self::default();
        cluster.put(ExternalKind::Service, service());
        cluster
    }

    fn put(&mut self, kind: ExternalKind, object: Value) {
        let kind = Kind::External(kind);
        let read = convert::object(kind, &Json(object)).unwrap_or_else(|it| panic!("{it:?}"));
        self.controller.apply(&[Change::Apply(read)]);
    }

    fn put_workloads(&mut self, numbers: impl IntoIterator<Item = u8>) {
        for number in numbers {
            self.put(ExternalKind::Workload, workload(number));
        }
    }

    fn delete(&mut self, kind: ExternalKind, name: &str) {
        let object = json!({ "metadata": { "name": name, "namespace": "shop" }, "spec": {
            "meshTLS": { "identity": "vm", "serverName": "vm" },
        }, "addressType": "IPv4", "endpoints": [] });
        let kind = Kind::External(kind);
        let read = convert::object(kind, &Json(object)).unwrap_or_else(|it| panic!("{it:?}"));
        self.controller.apply(&[Change::Delete(read.key())]);
    }

    /// Writes until nothing differs, and returns the names of the writes and the slices.
    fn settle(&mut self) -> Vec<(&'static str, String)> {
        let mut writes = Vec::new();
        for _round in 0..100 {
            let keys: Vec<_> = self.controller.keys().cloned().collect();
            let write = keys
                .iter()
                .find_map(|key| self.controller.write(key, Timestamp::UNIX_EPOCH));
            let Some(write) = write else {
                return writes;
            };
            let name = write.name.name.to_string();
            match write.action {
                Action::Create(object) => {
                    assert!(!self.slices.contains_key(&name), "{name} exists");
                    self.store(&name, object);
                    writes.push(("create", name));
                }
                Action::Replace(object) => {
                    let before = &self.slices[&name];
                    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                    assert_eq!(version(before), version(&object));
                    assert_eq!(before["addressType"], object["addressType"]);
                    self.store(&name, object);
                    writes.push(("replace", name));
                }
                Action::Delete { .. } => {
                    self.slices.remove(&name).expect("a slice that exists");
                    self.delete(ExternalKind::Slice, &name);
                    writes.push(("delete", name));
                }
                other => panic!("{other:?}"),
            }
        }
        panic!("it never ends: {writes:?}");
    }

    fn store(&mut self, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.slices.insert(name.to_owned(), object.clone());
        self.put(ExternalKind::Slice, object);
    }

    /// Returns the only slice.
    fn only(&self) -> &Value {
        assert_eq!(self.slices.len(), 1, "{:?}", self.slices);
        self.slices.values().next().unwrap()
    }

    /// Returns the numbers of endpoints, in the order of the names of slices.
    fn sizes(&self) -> Vec<usize> {
        let slices = self.slices.values();
        slices
            .map(|slice| slice["endpoints"].as_array().unwrap().len())
            .collect()
    }

    /// Returns the workloads of all endpoints.
    fn workloads(&self) -> Vec<String> {
        let slices = self.slices.values();
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().unwrap());
        let mut names: Vec<String> = endpoints
            .map(|it| it["targetRef"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }
}

fn service() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "uid-web", "labels": { "team": "a" },
        },
        "spec": {
            "clusterIP": "10.96.0.1",
            "ipFamilies": ["IPv4"],
            "selector": { "app": "web" },
            "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http" }],
        },
    })
}

fn workload(number: u8) -> Value {
    json!({
        "metadata": {
            "name": format!("vm-{number:03}"), "namespace": "shop", "uid": format!("uid-{number}"),
            "labels": { "app": "web", "topology.kubernetes.io/zone": "east" },
        },
        "spec": {
            "meshTLS": { "identity": "vm.example", "serverName": "vm.example" },
            "workloadIPs": [{ "ip": format!("192.0.2.{number}") }],
            "ports": [{ "name": "admin", "port": 9000 }],
        },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    })
}

#[test]
fn slice_has_the_fields_of_linkerds() {
    let mut cluster = Cluster::new();
    cluster.put_workloads([1]);
    let writes = cluster.settle();
    assert!(
        matches!(&writes[..], [("create", name)] if name.starts_with("linkerd-external-web-")),
        "{writes:?}"
    );
    let slice = cluster.only();
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({
            "team": "a",
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "linkerd-external-workloads-controller",
        })
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "v1", "kind": "Service", "name": "web", "uid": "uid-web",
            "controller": true,
        }])
    );
    assert_eq!(
        slice["ports"],
        json!([{ "name": "http", "protocol": "TCP", "port": 8080, "appProtocol": "http" }])
    );
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": ["192.0.2.1"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "hostname": null,
            "zone": "east",
            "targetRef": {
                "kind": "ExternalWorkload", "namespace": "shop", "name": "vm-001", "uid": "uid-1",
            },
        }])
    );
}

#[test]
fn endpoint_is_ready_as_the_condition_of_its_workload_says() {
    let mut cluster = Cluster::new();
    for (status, ready) in [
        (
            json!({ "conditions": [{ "type": "Ready", "status": "False" }] }),
            false,
        ),
        (
            json!({ "conditions": [{ "type": "Ready", "status": "True" }] }),
            true,
        ),
        (
            json!({ "conditions": [{ "type": "Ready", "status": "Unknown" }] }),
            false,
        ),
        (
            json!({ "conditions": [{ "type": "Healthy", "status": "True" }] }),
            false,
        ),
        (Value::Null, false),
        (json!({ "conditions": "none" }), false),
    ] {
        let mut vm = workload(1);
        vm["status"] = status;
        cluster.put(ExternalKind::Workload, vm);
        cluster.settle();
        let conditions = &cluster.only()["endpoints"][0]["conditions"];
        let expected = json!({ "ready": ready, "serving": ready, "terminating": false });
        assert_eq!(*conditions, expected);
    }
}

#[test]
fn service_that_selects_no_workload_has_no_slice() {
    let change = |field: &str, value: Value| {
        let mut service = service();
        service["spec"][field] = value;
        service
    };
    let mut elsewhere = service();
    elsewhere["metadata"]["namespace"] = "other".into();
    for service in [
        change("selector", json!({ "app": "api" })),
        change("selector", json!({})),
        change("selector", Value::Null),
        change("type", json!("ExternalName")),
        change("ipFamilies", json!(["IPv6"])),
        elsewhere,
    ] {
        let mut cluster = Cluster::default();
        cluster.put(ExternalKind::Service, service);
        cluster.put_workloads([1]);
        assert_eq!(cluster.settle(), []);
    }
    let mut system = service();
    let mut vm = workload(1);
    for object in [&mut system, &mut vm] {
        object["metadata"]["namespace"] = "kube-system".into();
    }
    let mut cluster = Cluster::default();
    cluster.put(ExternalKind::Service, system);
    cluster.put(ExternalKind::Workload, vm);
    assert_eq!(cluster.settle(), []);
}

#[test]
fn slices_are_deleted_when_nothing_is_selected_any_longer() {
    let deletions: [fn(&mut Cluster); 4] = [
        |cluster| cluster.delete(ExternalKind::Service, "web"),
        |cluster| cluster.delete(ExternalKind::Workload, "vm-001"),
        |cluster| {
            let mut other = workload(1);
            other["metadata"]["labels"]["app"] = "api".into();
            cluster.put(ExternalKind::Workload, other);
        },
        |cluster| {
            let mut other = service();
            other["spec"]["selector"] = Value::Null;
            cluster.put(ExternalKind::Service, other);
        },
    ];
    for delete in deletions {
        let mut cluster = Cluster::new();
        cluster.put_workloads([1]);
        cluster.settle();
        delete(&mut cluster);
        let writes = cluster.settle();
        assert!(matches!(&writes[..], [("delete", _)]), "{writes:?}");
        assert_eq!(cluster.slices.len(), 0);
    }
}

#[test]
fn slice_has_100_endpoints_at_most_and_a_change_writes_one() {
    let mut cluster = Cluster::new();
    cluster.put_workloads(1..=250);
    assert_eq!(cluster.settle().len(), 3);
    let mut sizes = cluster.sizes();
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    let all = cluster.workloads();
    assert_eq!(all.len(), 250);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 250);

    // One that leaves changes its slice.
    cluster.delete(ExternalKind::Workload, "vm-003");
    assert_eq!(cluster.settle().len(), 1);
    assert_eq!(cluster.workloads().len(), 249);
    // One that is new fills a gap.
    cluster.put_workloads([3]);
    let writes = cluster.settle();
    assert!(matches!(&writes[..], [("replace", _)]), "{writes:?}");
    assert_eq!(cluster.workloads(), all);
    // One that becomes unready changes its slice.
    let mut unready = workload(120);
    unready["status"] = Value::Null;
    cluster.put(ExternalKind::Workload, unready);
    assert_eq!(cluster.settle().len(), 1);
}

#[test]
fn other_ports_take_over_the_slices() {
    let mut cluster = Cluster::new();
    cluster.put_workloads(1..=150);
    cluster.settle();
    let mut service = service();
    service["spec"]["ports"][0]["targetPort"] = 9090.into();
    cluster.put(ExternalKind::Service, service);
    let writes = cluster.settle();
    assert!(
        writes.len() == 2 && writes.iter().all(|(action, _)| *action == "replace"),
        "{writes:?}"
    );
    assert_eq!(cluster.workloads().len(), 150);
    assert!(
        cluster
            .slices
            .values()
            .all(|slice| slice["ports"][0]["port"] == 9090)
    );
}

#[test]
fn port_by_name_is_the_port_of_each_workload() {
    let mut cluster = Cluster::new();
    let mut service = service();
    service["spec"]["ports"] = json!([
        { "name": "admin", "port": 80, "targetPort": "admin" },
        { "name": "dns", "port": 53, "targetPort": "dns", "protocol": "UDP" },
        { "name": "absent", "port": 81, "targetPort": "absent" },
    ]);
    cluster.put(ExternalKind::Service, service);
    cluster.put_workloads([1, 2]);
    let mut other = workload(3);
    other["spec"]["ports"] = json!([
        { "name": "admin", "port": 9001 },
        { "name": "dns", "port": 54 },
        { "name": "dns", "port": 53, "protocol": "UDP" },
    ]);
    cluster.put(ExternalKind::Workload, other);
    assert_eq!(cluster.settle().len(), 2);
    let port = |name: &str, protocol: &str, number: u16| json!({ "name": name, "protocol": protocol, "port": number, "appProtocol": null });
    let ports = cluster.slices.values().map(|slice| {
        let endpoints = slice["endpoints"].as_array().unwrap();
        (endpoints.len(), slice["ports"].clone())
    });
    let ports: BTreeMap<usize, Value> = ports.collect();
    assert_eq!(ports[&2], json!([port("admin", "TCP", 9000)]));
    assert_eq!(
        ports[&1],
        json!([port("admin", "TCP", 9001), port("dns", "UDP", 53)])
    );
}

#[test]
fn each_family_of_the_service_has_its_slices() {
    let mut cluster = Cluster::new();
    let mut service = service();
    service["spec"]["ipFamilies"] = json!(["IPv6", "IPv4"]);
    service["spec"]["clusterIP"] = "None".into();
    cluster.put(ExternalKind::Service, service);
    let mut both = workload(1);
    both["spec"]["workloadIPs"] = json!([{ "ip": "192.0.2.1" }, { "ip": "2001:db8::1" }]);
    cluster.put(ExternalKind::Workload, both);
    assert_eq!(cluster.settle().len(), 2);
    for slice in cluster.slices.values() {
        let family = slice["addressType"].as_str().unwrap();
        let address = if family == "IPv4" {
            "192.0.2.1"
        } else {
            "2001:db8::1"
        };
        assert_eq!(slice["endpoints"][0]["addresses"], json!([address]));
        // A headless Service: each workload has a name in DNS.
        assert_eq!(slice["endpoints"][0]["hostname"], "vm-001");
        assert_eq!(
            slice["metadata"]["labels"]["service.kubernetes.io/headless"],
            ""
        );
    }
}

#[test]
fn addresses_that_api_servers_refuse_are_left_out() {
    let mut cluster = Cluster::new();
    for ip in ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1"] {
        let mut vm = workload(1);
        vm["spec"]["workloadIPs"] = json!([{ "ip": ip }]);
        cluster.put(ExternalKind::Workload, vm);
        assert_eq!(cluster.settle(), [], "{ip}");
    }
    let mut service = service();
    service["spec"]["ipFamilies"] = json!(["IPv6"]);
    cluster.put(ExternalKind::Service, service);
    for (ip, slices) in [
        ("::1", 0),
        ("::", 0),
        ("fe80::1", 0),
        ("ff02::1", 0),
        ("fd00::1", 1),
    ] {
        let mut vm = workload(1);
        vm["spec"]["workloadIPs"] = json!([{ "ip": ip }]);
        cluster.put(ExternalKind::Workload, vm);
        assert_eq!(cluster.settle().len(), slices, "{ip}");
    }
}

#[test]
fn slices_of_linkerds_controller_are_continued() {
    let mut cluster = Cluster::new();
    cluster.put_workloads([1]);
    cluster.settle();
    let (ours, mut theirs) = cluster.slices.pop_first().unwrap();
    cluster.delete(ExternalKind::Slice, &ours);
    theirs["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into();
    let name = "linkerd-external-web-x7k2p".to_owned();
    theirs["metadata"]["name"] = name.as_str().into();
    cluster.store(&name, theirs);
    assert_eq!(cluster.settle(), []);
    cluster.put_workloads([2]);
    assert_eq!(cluster.settle(), [("replace", name)]);
}

#[test]
fn slices_that_another_client_changes_are_repaired_and_other_slices_stay() {
    let mut cluster = Cluster::new();
    cluster.put_workloads([1]);
    cluster.settle();
    let (name, slice) = cluster.slices.first_key_value().unwrap();
    let (name, slice) = (name.clone(), slice.clone());
    let mut changed = slice.clone();
    changed["endpoints"][0]["conditions"]["ready"] = false.into();
    cluster.store(&name, changed);
    assert_eq!(cluster.settle(), [("replace", name.clone())]);
    // A slice without its required fields is replaced by another one.
    let mut spoilt = slice.clone();
    spoilt["endpoints"][0]["addresses"] = json!(["vm.example"]);
    cluster.store(&name, spoilt);
    let writes = cluster.settle();
    assert!(
        matches!(&writes[..], [("create", _), ("delete", spoilt)] if *spoilt == name),
        "{writes:?}"
    );
    assert_eq!(cluster.only()["endpoints"], slice["endpoints"]);
    // The slices of Kubernetes and of users are not touched.
    let mut foreign = slice;
    foreign["metadata"]["name"] = "web-1".into();
    for manager in [
        "endpointslice-controller.k8s.io",
        "endpointslicemirroring-controller.k8s.io",
    ] {
        let labels = &mut foreign["metadata"]["labels"];
        labels["endpointslice.kubernetes.io/managed-by"] = manager.into();
        cluster.put(ExternalKind::Slice, foreign.clone());
        assert_eq!(cluster.settle(), []);
    }
    foreign["metadata"]["labels"] = json!({ "kubernetes.io/service-name": "web" });
    cluster.put(ExternalKind::Slice, foreign);
    assert_eq!(cluster.settle(), []);
}

#[test]
fn service_that_is_made_again_owns_its_slices() {
    let mut cluster = Cluster::new();
    cluster.put_workloads([1]);
    cluster.settle();
    let mut again = service();
    again["metadata"]["uid"] = "uid-again".into();
    cluster.put(ExternalKind::Service, again);
    let writes = cluster.settle();
    assert!(matches!(&writes[..], [("replace", _)]), "{writes:?}");
    assert_eq!(
        cluster.only()["metadata"]["ownerReferences"][0]["uid"],
        "uid-again"
    );
}
