//! The objects that the front serves, and the events of their changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use mesh_test_support::kube_api::merge;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::kinds::{APIS, Api};
use super::population::{Population, service_name, service_namespace};

pub(super) struct Cluster {
    population: Population,
    state: Mutex<State>,
    /// The latest resource version.
    version: watch::Sender<u64>,
}

/// The property that a change of a Service toggles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Toggle {
    /// Whether its first endpoint is ready.
    Ready,
    /// Whether its port is opaque, which changes the policies of its clients.
    Opaque,
}

/// How much of each object a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
}

/// The objects that a list or a watch returns.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    /// The path of the list of all namespaces.
    collection: String,
    namespace: Option<String>,
    view: View,
}

struct State {
    /// By the path of their list.
    collections: HashMap<String, Collection>,
    /// Objects that clients wrote, by path.
    written: BTreeMap<String, Value>,
    /// Services with something that is not as at first.
    toggled: HashSet<(u32, Toggle)>,
}

struct Collection {
    api: &'static Api,
    objects: Vec<Object>,
    /// All changes.
    events: Vec<Event>,
}

struct Event {
    version: u64,
    kind: &'static str,
    object: Object,
}

/// Kept as text: a hundred thousand pods would be gigabytes as trees.
#[derive(Clone)]
struct Object {
    name: String,
    /// Empty if the kind has no namespaces.
    namespace: String,
    json: String,
}

/// A change of an object of a collection.
pub(super) enum Change {
    /// It is added or modified.
    Set(Value),
    Delete(Value),
}

/// Which objects of a list a request asks for.
#[derive(Clone, Copy)]
pub(super) struct Page {
    pub(super) start: usize,
    pub(super) limit: usize,
}

/// The resource version of the first objects.
const FIRST_VERSION: u64 = 1;
const SERVICES: &str = "/api/v1/services";
pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const PODS: &str = "/api/v1/pods";

impl Page {
    pub(super) const ALL: Self = Self {
        start: 0,
        limit: usize::MAX,
    };
}

impl Cluster {
    pub(super) fn new(population: Population) -> Self {
        Self::with(population, |plural| population.objects(plural))
    }

    /// Creates a cluster with the objects of each kind, by its plural.
    pub(super) fn with(
        population: Population,
        objects: impl Fn(&str) -> Box<dyn Iterator<Item = Value>>,
    ) -> Self {
        let collection = |api: &'static Api| {
            let objects = objects(api.plural);
            let collection = Collection {
                api,
                objects: objects.map(|it| Object::new(it, FIRST_VERSION)).collect(),
                events: Vec::new(),
            };
            (api.path(), collection)
        };
        let state = State {
            collections: APIS.iter().map(collection).collect(),
            written: BTreeMap::new(),
            toggled: HashSet::new(),
        };
        Self {
            population,
            state: Mutex::new(state),
            version: watch::Sender::new(FIRST_VERSION),
        }
    }

    /// Returns the objects that the path of a list selects, or `None` if the path is not a list.
    pub(super) fn select(&self, path: &str, view: View) -> Option<Selection> {
        let state = self.state.lock();
        let (collection, namespace) = state.locate(path)?;
        Some(Selection {
            collection,
            namespace,
            view,
        })
    }

    /// Returns a page of a list. Its `continue` is the start of the next one.
    pub(super) fn list(&self, selection: &Selection, page: Page) -> Vec<u8> {
        let state = self.state.lock();
        let Some(Collection { api, objects, .. }) = state.collections.get(&selection.collection)
        else {
            return Vec::new();
        };
        let (group_version, kind) = match selection.view {
            View::Full => (api.group_version(), api.kind),
            View::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
        };
        let version = *self.version.borrow();
        let mut list =
            format!("{{\"apiVersion\":\"{group_version}\",\"kind\":\"{kind}List\",\"items\":[");
        let selected = objects.iter().filter(|it| selection.has(it));
        let mut rest = selected.skip(page.start);
        for (number, object) in rest.by_ref().take(page.limit).enumerate() {
            if number > 0 {
                list.push(',');
            }
            object.append_to(&mut list, selection.view);
        }
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if rest.next().is_some() {
            metadata["continue"] = json!((page.start + page.limit).to_string());
        }
        list.push_str(&format!("],\"metadata\":{metadata}}}"));
        list.into_bytes()
    }

    /// Returns the events of a list after a resource version, one JSON object per line. Without a
    /// version they begin with an event for each object.
    pub(super) fn events(&self, selection: &Selection, after: Option<u64>) -> Vec<u8> {
        let state = self.state.lock();
        let Some(collection) = state.collections.get(&selection.collection) else {
            return Vec::new();
        };
        let mut lines = String::new();
        let mut push = |kind: &str, object: &Object| {
            if selection.has(object) {
                // The type first, as API servers send it: clients read the object by its type.
                lines.push_str(&format!("{{\"type\":\"{kind}\",\"object\":"));
                object.append_to(&mut lines, selection.view);
                lines.push_str("}\n");
            }
        };
        match after {
            None => collection.objects.iter().for_each(|it| push("ADDED", it)),
            Some(after) => {
                let from = collection.events.partition_point(|it| it.version <= after);
                for event in &collection.events[from..] {
                    push(event.kind, &event.object);
                }
            }
        }
        lines.into_bytes()
    }

    /// Returns the event that ends the first objects of a watch that began without a list.
    pub(super) fn initial_events_end(&self, selection: &Selection, version: u64) -> Vec<u8> {
        let state = self.state.lock();
        let kind = state.collections.get(&selection.collection);
        let (group_version, kind) = match (kind, selection.view) {
            (Some(Collection { api, .. }), View::Full) => (api.group_version(), api.kind),
            _ => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
        };
        let object = json!({
            "apiVersion": group_version, "kind": kind,
            "metadata": {
                "resourceVersion": version.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        });
        format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into_bytes()
    }

    /// Returns the latest resource version, which is notified of each change.
    pub(super) fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Changes a Service. Returns the resource version of the change, or `None` if there is no such
    /// Service.
    pub(super) fn toggle(&self, namespace: &str, name: &str, what: Toggle) -> Option<u64> {
        let service: u32 = name.rsplit_once('-')?.1.parse().ok()?;
        let exists = service < self.population.services
            && service_namespace(service) == namespace
            && service_name(service) == name;
        if !exists {
            return None;
        }
        let mut state = self.state.lock();
        let as_at_first = state.toggled.remove(&(service, what));
        if !as_at_first {
            state.toggled.insert((service, what));
        }
        let version = *self.version.borrow() + 1;
        let (path, index, object) = match what {
            Toggle::Ready => (
                SLICES,
                service * self.population.slices_per_service(),
                self.population.slice(service, 0, as_at_first),
            ),
            Toggle::Opaque => (
                SERVICES,
                service,
                self.population.service(service, !as_at_first),
            ),
        };
        let object = Object::new(object, version);
        let collection = state.collections.get_mut(path)?;
        *collection.objects.get_mut(index as usize)? = object.clone();
        collection.events.push(Event {
            version,
            kind: "MODIFIED",
            object,
        });
        drop(state);
        self.version.send_replace(version);
        Some(version)
    }

    /// Changes an object of the collection whose list of all namespaces has this path.
    pub(super) fn change(&self, path: &str, change: Change) {
        let mut state = self.state.lock();
        let Some(collection) = state.collections.get_mut(path) else {
            return;
        };
        let version = *self.version.borrow() + 1;
        collection.change(change, version);
        drop(state);
        self.version.send_replace(version);
    }

    /// Returns an object that a client has written, or one of the first.
    pub(super) fn object(&self, path: &str) -> Option<Value> {
        let state = self.state.lock();
        if let Some(written) = state.written.get(path) {
            return Some(written.clone());
        }
        let (list, name) = path.rsplit_once('/')?;
        let (collection, namespace) = state.locate(list)?;
        let namespace = namespace.unwrap_or_default();
        let objects = &state.collections.get(&collection)?.objects;
        let mut named = objects.iter().filter(|it| it.name == name);
        let found = named.find(|it| it.namespace == namespace)?;
        serde_json::from_str(&found.json).ok()
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

impl Collection {
    fn change(&mut self, change: Change, version: u64) {
        let (object, is_set) = match change {
            Change::Set(object) => (object, true),
            Change::Delete(object) => (object, false),
        };
        let object = Object::new(object, version);
        let same = |it: &Object| it.name == object.name && it.namespace == object.namespace;
        let kind = match (self.objects.iter().position(same), is_set) {
            (Some(at), true) => {
                self.objects[at] = object.clone();
                "MODIFIED"
            }
            (Some(at), false) => {
                self.objects.remove(at);
                "DELETED"
            }
            (None, true) => {
                self.objects.push(object.clone());
                "ADDED"
            }
            (None, false) => return,
        };
        self.events.push(Event {
            version,
            kind,
            object,
        });
    }
}

impl Selection {
    fn has(&self, object: &Object) -> bool {
        let namespace = self.namespace.as_ref();
        namespace.is_none_or(|namespace| object.namespace == *namespace)
    }
}

impl State {
    /// Returns the path of the collection that a path lists, and the namespace, if it lists one.
    fn locate(&self, path: &str) -> Option<(String, Option<String>)> {
        if self.collections.contains_key(path) {
            return Some((path.to_owned(), None));
        }
        let (root, rest) = path.split_once("/namespaces/")?;
        let (namespace, plural) = rest.split_once('/')?;
        let collection = format!("{root}/{plural}");
        let exists = self.collections.contains_key(&collection);
        exists.then(|| (collection, Some(namespace.to_owned())))
    }
}

impl Object {
    fn new(mut object: Value, version: u64) -> Self {
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        Self {
            name: text("name").to_owned(),
            namespace: text("namespace").to_owned(),
            json: object.to_string(),
        }
    }

    fn append_to(&self, text: &mut String, view: View) {
        match view {
            View::Full => text.push_str(&self.json),
            View::Metadata => text.push_str(&metadata_of(&self.json)),
        }
    }
}

fn metadata_of(object: &str) -> String {
    let object: Value = serde_json::from_str(object).unwrap_or_default();
    let partial = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": object["metadata"],
    });
    partial.to_string()
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

    fn list(cluster: &Cluster, path: &str, view: View) -> Value {
        let selection = cluster.select(path, view).expect("a list");
        serde_json::from_slice(&cluster.list(&selection, Page::ALL)).expect("JSON")
    }

    #[test]
    fn toggle_is_an_event_of_the_first_slice_and_changes_the_list() {
        let cluster = cluster();
        let toggle = |namespace, name| cluster.toggle(namespace, name, Toggle::Ready);
        assert_eq!(toggle("shop-0", "web-20"), None, "another namespace");
        assert_eq!(toggle("shop-1", "web-020"), None, "another spelling");
        let first = toggle("shop-1", "web-20").expect("it exists");
        let second = toggle("shop-1", "web-20").expect("it exists");
        let slices = cluster.select(SLICES, View::Full).expect("a list");
        let lines = cluster.events(&slices, Some(FIRST_VERSION));
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
        assert!(cluster.events(&slices, Some(second)).is_empty());
        assert!(first < second);
        let list = list(&cluster, SLICES, View::Full);
        assert_eq!(list["metadata"]["resourceVersion"], second.to_string());
        assert_eq!(list["items"].as_array().map(Vec::len), Some(42));
    }

    #[test]
    fn pages_are_a_list() {
        let cluster = cluster();
        let selection = cluster.select(SLICES, View::Full).expect("a list");
        let all = list(&cluster, SLICES, View::Full);
        assert_eq!(all["metadata"]["continue"], Value::Null);
        let (mut items, mut start) = (Vec::new(), Some(0));
        while let Some(first) = start {
            let page = Page {
                start: first,
                limit: 14,
            };
            let page = cluster.list(&selection, page);
            let page: Value = serde_json::from_slice(&page).expect("JSON");
            items.extend(page["items"].as_array().expect("a list").clone());
            let next = page["metadata"]["continue"].as_str();
            start = next.map(|next| next.parse().expect("a number"));
            assert!(items.len() == first + 14, "{} items", items.len());
        }
        assert_eq!(all["items"], Value::from(items));
    }

    #[test]
    fn opaque_port_comes_and_goes_with_each_toggle() {
        let cluster = cluster();
        let annotation = || {
            let service = cluster.object("/api/v1/namespaces/shop-1/services/web-20");
            service.expect("it exists")["metadata"]["annotations"].clone()
        };
        assert_eq!(annotation(), Value::Null);
        cluster.toggle("shop-1", "web-20", Toggle::Opaque);
        assert_eq!(
            annotation(),
            json!({"config.linkerd.io/opaque-ports": "80"})
        );
        cluster.toggle("shop-1", "web-20", Toggle::Opaque);
        assert_eq!(annotation(), Value::Null);
    }

    #[test]
    fn lists_are_of_one_namespace_and_of_metadata_alone_if_the_client_asks() {
        let cluster = cluster();
        let path = "/api/v1/namespaces/shop-1/services";
        let services = list(&cluster, path, View::Metadata);
        assert_eq!(services["kind"], "PartialObjectMetadataList");
        let items = services["items"].as_array().expect("a list");
        assert_eq!(items.len(), 1);
        assert_eq!(items[0]["kind"], "PartialObjectMetadata");
        assert_eq!(items[0]["metadata"]["name"], "web-20");
        assert_eq!(items[0]["spec"], Value::Null);
        assert!(cluster.select("/api/v1/anything", View::Full).is_none());
        assert!(cluster.object("/api/v1/namespaces/shop-2").is_none());
        assert!(cluster.object("/api/v1/namespaces/shop-1").is_some());
    }

    #[test]
    fn first_objects_of_a_watch_end_with_a_bookmark() {
        let cluster = cluster();
        let nodes = cluster.select("/api/v1/nodes", View::Full).expect("a list");
        let end = cluster.initial_events_end(&nodes, 7);
        let end: Value = serde_json::from_slice(&end).expect("JSON");
        assert_eq!(end["type"], "BOOKMARK");
        let metadata = &end["object"]["metadata"];
        assert_eq!(metadata["resourceVersion"], "7");
        assert_eq!(metadata["annotations"]["k8s.io/initial-events-end"], "true");
    }

    #[test]
    fn changes_are_events_by_whether_the_object_existed() {
        let cluster = cluster();
        let pods = cluster.select(PODS, View::Full).expect("a list");
        let pod = |phase: &str| {
            json!({
                "metadata": {"name": "new", "namespace": "shop-0"}, "status": {"phase": phase},
            })
        };
        for change in [
            Change::Set(pod("Pending")),
            Change::Set(pod("Running")),
            Change::Delete(pod("Running")),
            Change::Delete(pod("Running")),
        ] {
            cluster.change(PODS, change);
        }
        let lines = cluster.events(&pods, Some(FIRST_VERSION));
        let lines = String::from_utf8(lines).expect("JSON");
        let events = lines.lines().map(|line| {
            let event: Value = serde_json::from_str(line).expect("an event");
            format!("{} {}", event["type"], event["object"]["status"]["phase"])
        });
        let expected = [
            r#""ADDED" "Pending""#,
            r#""MODIFIED" "Running""#,
            r#""DELETED" "Running""#,
        ];
        assert_eq!(events.collect::<Vec<_>>(), expected);
        assert!(
            cluster
                .object("/api/v1/namespaces/shop-0/pods/new")
                .is_none()
        );
    }

    #[test]
    fn writes_are_merged() {
        let cluster = cluster();
        let path = "/apis/coordination.k8s.io/v1/namespaces/linkerd/leases/a";
        cluster.write(path, &json!({"spec": {"holder": "x", "seconds": 30}}));
        let merged = cluster.write(path, &json!({"spec": {"holder": null}}));
        assert_eq!(merged["spec"], json!({"seconds": 30}));
        assert_eq!(cluster.object(path), Some(merged));
    }
}
