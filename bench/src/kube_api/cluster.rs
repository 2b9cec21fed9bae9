//! The objects that the front serves, and the events of their changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::population::{Population, service_name, service_namespace};

/// A kind that the front serves.
struct Api {
    /// Empty for the core group.
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
}

/// All kinds. Those of the mesh and of the Gateway API have no objects.
const APIS: [Api; 22] = [
    api("", "v1", "pods", "Pod"),
    api("", "v1", "services", "Service"),
    api("", "v1", "nodes", "Node"),
    api("", "v1", "namespaces", "Namespace"),
    api("apps", "v1", "replicasets", "ReplicaSet"),
    api("batch", "v1", "jobs", "Job"),
    api("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    api(
        DEFINITIONS,
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
    ),
    api(POLICY, "v1beta3", "servers", "Server"),
    api(
        POLICY,
        "v1beta1",
        "serverauthorizations",
        "ServerAuthorization",
    ),
    api(
        POLICY,
        "v1alpha1",
        "authorizationpolicies",
        "AuthorizationPolicy",
    ),
    api(
        POLICY,
        "v1alpha1",
        "meshtlsauthentications",
        "MeshTLSAuthentication",
    ),
    api(
        POLICY,
        "v1alpha1",
        "networkauthentications",
        "NetworkAuthentication",
    ),
    api(
        POLICY,
        "v1alpha1",
        "httplocalratelimitpolicies",
        "HTTPLocalRateLimitPolicy",
    ),
    api(POLICY, "v1alpha1", "egressnetworks", "EgressNetwork"),
    api(POLICY, "v1beta3", "httproutes", "HTTPRoute"),
    api(
        "workload.linkerd.io",
        "v1beta1",
        "externalworkloads",
        "ExternalWorkload",
    ),
    api(
        "linkerd.io",
        "v1alpha2",
        "serviceprofiles",
        "ServiceProfile",
    ),
    api(GATEWAY, "v1", "httproutes", "HTTPRoute"),
    api(GATEWAY, "v1", "grpcroutes", "GRPCRoute"),
    api(GATEWAY, "v1", "tlsroutes", "TLSRoute"),
    api(GATEWAY, "v1", "tcproutes", "TCPRoute"),
];

const DEFINITIONS: &str = "apiextensions.k8s.io";
const POLICY: &str = "policy.linkerd.io";
const GATEWAY: &str = "gateway.networking.k8s.io";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

pub(super) struct Cluster {
    population: Population,
    state: Mutex<State>,
    /// The latest resource version.
    version: watch::Sender<u64>,
}

struct State {
    /// By the path of their list.
    collections: HashMap<String, Collection>,
    /// Objects that clients wrote, by path.
    written: BTreeMap<String, Value>,
    /// Services whose first endpoint is not ready.
    unready: HashSet<u32>,
}

struct Collection {
    api: &'static Api,
    objects: Vec<Value>,
    /// All changes, with their resource versions.
    events: Vec<(u64, Value)>,
}

/// The resource version of the first objects.
const FIRST_VERSION: u64 = 1;

const fn api(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Api {
    Api {
        group,
        version,
        plural,
        kind,
    }
}

impl Api {
    fn group_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Returns the path of the list of all namespaces.
    fn path(&self) -> String {
        let root = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{root}/{}/{}", self.group_version(), self.plural)
    }
}

impl Cluster {
    pub(super) fn new(population: Population) -> Self {
        let collection = |api: &'static Api| {
            let objects = match api.plural {
                "pods" => population.pods(),
                "services" => population.services(),
                "nodes" => population.nodes(),
                "namespaces" => population.namespaces(),
                "replicasets" => population.replica_sets(),
                "endpointslices" => population.slices(),
                _ => Vec::new(),
            };
            let objects = objects.into_iter();
            let collection = Collection {
                api,
                objects: objects.map(|it| with_version(it, FIRST_VERSION)).collect(),
                events: Vec::new(),
            };
            (api.path(), collection)
        };
        let state = State {
            collections: APIS.iter().map(collection).collect(),
            written: BTreeMap::new(),
            unready: HashSet::new(),
        };
        Self {
            population,
            state: Mutex::new(state),
            version: watch::Sender::new(FIRST_VERSION),
        }
    }

    /// Returns the list of a path, or `None` if the path is not a list.
    pub(super) fn list(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let Collection { api, objects, .. } = state.collections.get(path)?;
        let list = json!({
            "apiVersion": api.group_version(),
            "kind": format!("{}List", api.kind),
            "metadata": {"resourceVersion": self.version.borrow().to_string()},
            "items": objects,
        });
        Some(list.to_string().into_bytes())
    }

    pub(super) fn has_list(&self, path: &str) -> bool {
        self.state.lock().collections.contains_key(path)
    }

    /// Returns the events of a list after a resource version, one JSON object per line. Without a
    /// version they begin with an event for each object.
    pub(super) fn events(&self, path: &str, after: Option<u64>) -> Vec<u8> {
        let state = self.state.lock();
        let Some(collection) = state.collections.get(path) else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        let mut push = |kind: &str, object: &Value| {
            // The type first, as API servers send it: clients read the object by its type.
            let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            lines.extend_from_slice(line.as_bytes());
        };
        match after {
            None => collection.objects.iter().for_each(|it| push("ADDED", it)),
            Some(after) => {
                let from = collection.events.partition_point(|event| event.0 <= after);
                for (_, object) in &collection.events[from..] {
                    push("MODIFIED", object);
                }
            }
        }
        lines
    }

    /// Returns the latest resource version, which is notified of each change.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Changes whether the first endpoint of a Service is ready. Returns the resource version of
    /// the change, or `None` if there is no such Service.
    pub(super) fn toggle(&self, namespace: &str, name: &str) -> Option<u64> {
        let service: u32 = name.rsplit_once('-')?.1.parse().ok()?;
        let exists = service < self.population.services
            && service_namespace(service) == namespace
            && service_name(service) == name;
        if !exists {
            return None;
        }
        let mut state = self.state.lock();
        let is_ready = state.unready.remove(&service);
        if !is_ready {
            state.unready.insert(service);
        }
        let version = *self.version.borrow() + 1;
        let slice = with_version(self.population.slice(service, 0, is_ready), version);
        let index = service * self.population.slices_per_service();
        let slices = state.collections.get_mut(SLICES)?;
        *slices.objects.get_mut(index as usize)? = slice.clone();
        slices.events.push((version, slice));
        drop(state);
        self.version.send_replace(version);
        Some(version)
    }

    /// Returns an object that a client has written.
    pub(super) fn written(&self, path: &str) -> Option<Value> {
        self.state.lock().written.get(path).cloned()
    }

    /// Merges a written object into the stored one, and returns the result.
    pub(super) fn write(&self, path: &str, object: &Value) -> Value {
        let mut state = self.state.lock();
        let stored = state.written.entry(path.to_owned()).or_default();
        merge(stored, object);
        let version = *self.version.borrow() + 1;
        stored["metadata"]["resourceVersion"] = json!(version.to_string());
        let stored = stored.clone();
        drop(state);
        self.version.send_replace(version);
        stored
    }
}

/// Returns the groups with their versions, as `GET /apis` responds.
pub(super) fn groups() -> Value {
    let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for api in APIS.iter().filter(|api| !api.group.is_empty()) {
        let version = json!({"groupVersion": api.group_version(), "version": api.version});
        let versions = groups.entry(api.group).or_default();
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let groups = groups.into_iter().map(|(name, versions)| {
        json!({"name": name, "preferredVersion": versions[0], "versions": versions})
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()})
}

/// Returns the kinds of a group and version, as `GET /apis/GROUP/VERSION` responds, or `None` if
/// there are none.
pub(super) fn resources(path: &str) -> Option<Value> {
    let is_in = |api: &&Api| api.path().strip_suffix(api.plural) == Some(&format!("{path}/"));
    let found: Vec<&Api> = APIS.iter().filter(is_in).collect();
    let group_version = found.first()?.group_version();
    let resources = found.iter().map(|api| {
        json!({
            "name": api.plural, "kind": api.kind, "singularName": "", "namespaced": true,
            "verbs": ["get", "list", "watch"],
        })
    });
    let resources: Vec<Value> = resources.collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": resources,
    }))
}

fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(target)) => drop(target.remove(key)),
            _ => merge(&mut target[key], value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::new(Population {
            services: 21,
            pods: 150,
        })
    }

    #[test]
    fn toggle_is_an_event_of_the_first_slice_and_changes_the_list() {
        let cluster = cluster();
        assert_eq!(
            cluster.toggle("shop-0", "web-20"),
            None,
            "another namespace"
        );
        assert_eq!(
            cluster.toggle("shop-1", "web-020"),
            None,
            "another spelling"
        );
        let first = cluster.toggle("shop-1", "web-20").expect("it exists");
        let second = cluster.toggle("shop-1", "web-20").expect("it exists");
        let lines = cluster.events(SLICES, Some(FIRST_VERSION));
        let lines = String::from_utf8(lines).expect("JSON");
        let ready: Vec<Value> = lines
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line).expect("an event");
                assert_eq!(event["object"]["metadata"]["name"], "web-20-0");
                event["object"]["endpoints"][0]["conditions"]["ready"].clone()
            })
            .collect();
        assert_eq!(ready, [false, true]);
        assert!(cluster.events(SLICES, Some(second)).is_empty());
        assert!(first < second);
        let list: Value =
            serde_json::from_slice(&cluster.list(SLICES).expect("a list")).expect("JSON");
        assert_eq!(list["metadata"]["resourceVersion"], second.to_string());
        assert_eq!(list["items"].as_array().map(Vec::len), Some(42));
    }

    #[test]
    fn each_group_lists_its_kinds() {
        for group in groups()["groups"].as_array().expect("groups") {
            for version in group["versions"].as_array().expect("versions") {
                let path = format!("/apis/{}", version["groupVersion"].as_str().expect("text"));
                let resources = resources(&path).expect("it is served");
                for resource in resources["resources"].as_array().expect("kinds") {
                    let path = format!("{path}/{}", resource["name"].as_str().expect("text"));
                    assert!(cluster().has_list(&path), "{path}");
                }
            }
        }
        assert!(resources("/apis/example.com/v1").is_none());
    }

    #[test]
    fn writes_are_merged() {
        let cluster = cluster();
        let path = "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/a";
        cluster.write(path, &json!({"spec": {"holder": "x", "seconds": 30}}));
        let merged = cluster.write(path, &json!({"spec": {"holder": null}}));
        assert_eq!(merged["spec"], json!({"seconds": 30}));
        assert_eq!(cluster.written(path), Some(merged));
    }
}
