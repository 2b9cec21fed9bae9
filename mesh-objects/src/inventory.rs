//! The objects that the metrics API lists and a tap selects, and the pods that belong to each.
//!
//! A pod belongs to itself, its namespace, its owner, the owner of its ReplicaSet or Job, and the
//! Services whose selector matches it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::{
    Labels, ListedKind, ListedObject, Name, OwnerRef, PodDetail, PodPhase, Selector,
};

pub mod tap;

/// Objects sorted by namespace and name, so that a namespace's objects are adjacent.
type Table = BTreeMap<Name, Arc<ListedObject>>;

#[derive(Debug, Default)]
pub struct Inventory {
    tables: BTreeMap<ListedKind, Table>,
}

/// Objects of a kind, by namespace, name and labels. An empty namespace or name means all.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    pub kind: ListedKind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub labels: &'a Selector,
}

/// The pods of an object.
#[derive(Clone, Debug, Default)]
pub struct PodCounts {
    /// Pods that are pending or running.
    pub running: u64,
    /// The pending or running pods that belong to the mesh.
    pub meshed: u64,
    pub failed: u64,
    /// The pods with container errors, at most [`MAX_PODS_WITH_ERRORS`].
    pub with_errors: Vec<Arc<ListedObject>>,
}

/// Bounds the size of a row. The command line prints each error.
const MAX_PODS_WITH_ERRORS: usize = 100;

impl Inventory {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object, or replaces the one of the same kind and name.
    pub fn insert(&mut self, object: Arc<ListedObject>) {
        let table = self.tables.entry(object.kind).or_default();
        table.insert(object.name.clone(), object);
    }

    pub fn remove(&mut self, kind: ListedKind, name: &Name) {
        if let Some(table) = self.tables.get_mut(&kind) {
            table.remove(name);
        }
    }

    pub fn clear(&mut self) {
        self.tables.clear();
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.tables.values().map(Table::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, kind: ListedKind, name: &Name) -> Option<&Arc<ListedObject>> {
        self.tables.get(&kind)?.get(name)
    }

    /// Returns the selected objects, sorted by namespace and name.
    pub fn select<'a>(
        &'a self,
        selection: Selection<'a>,
    ) -> impl Iterator<Item = &'a Arc<ListedObject>> + 'a {
        // Namespaces are not in a namespace.
        let namespace = match selection.kind {
            ListedKind::Namespace => "",
            _ => selection.namespace,
        };
        self.in_namespace(selection.kind, namespace)
            .filter(move |object| {
                (selection.name.is_empty() || *object.name.name == *selection.name)
                    && selection.labels.matches(&object.labels)
            })
    }

    /// Returns the objects of a namespace, or all of them if `namespace` is empty.
    pub fn in_namespace<'a>(
        &'a self,
        kind: ListedKind,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<ListedObject>> + 'a {
        let first = Name::new(namespace, "");
        let table = self.tables.get(&kind);
        table
            .into_iter()
            .flat_map(move |table| table.range(first.clone()..))
            .take_while(move |(name, _)| namespace.is_empty() || *name.namespace == *namespace)
            .map(|(_, object)| object)
    }

    /// Counts the pods of objects, which are all of one kind. A pod is meshed if it belongs to the
    /// control plane in `control_namespace`.
    pub fn count_pods<'a>(
        &self,
        objects: impl Iterator<Item = &'a ListedObject>,
        control_namespace: &str,
    ) -> HashMap<Name, PodCounts> {
        let mut counts: HashMap<Name, PodCounts> = HashMap::new();
        let mut services: HashMap<&str, Vec<&ListedObject>> = HashMap::new();
        let mut kind = None;
        let mut namespaces: BTreeSet<&str> = BTreeSet::new();
        for object in objects {
            kind = Some(object.kind);
            counts.insert(object.name.clone(), PodCounts::default());
            let namespace = match object.kind {
                ListedKind::Namespace => &object.name.name,
                _ => &object.name.namespace,
            };
            namespaces.insert(namespace);
            if object.kind == ListedKind::Service {
                services.entry(namespace).or_default().push(object);
            }
        }
        let Some(kind) = kind else {
            return counts;
        };
        let pods = namespaces
            .iter()
            .flat_map(|namespace| self.in_namespace(ListedKind::Pod, namespace));
        for object in pods {
            let Some(pod) = object.pod() else {
                continue;
            };
            let mut count = |name: &Name| {
                if let Some(counts) = counts.get_mut(name) {
                    counts.add(object, pod, control_namespace);
                }
            };
            match kind {
                ListedKind::Pod => count(&object.name),
                ListedKind::Namespace => count(&Name::new("", &object.name.namespace)),
                ListedKind::Service => {
                    let of_namespace = services.get(&*object.name.namespace);
                    for service in of_namespace.into_iter().flatten() {
                        if service.selects(&object.labels) {
                            count(&service.name);
                        }
                    }
                }
                _ => {
                    if let Some(name) = self.owner_of_kind(object, kind) {
                        count(&name);
                    }
                }
            }
        }
        counts
    }

    /// Returns the direct or indirect owner of this kind.
    fn owner_of_kind(&self, pod: &ListedObject, kind: ListedKind) -> Option<Name> {
        let direct = pod.owner.as_ref()?;
        let namespace = &pod.name.namespace;
        let owner = if *direct.kind == *kind.resource_type() {
            direct
        } else {
            let between = self.intermediate(pod)?;
            let owner = between.owner.as_ref();
            owner.filter(|owner| *owner.kind == *kind.resource_type())?
        };
        Some(Name {
            namespace: namespace.clone(),
            name: owner.name.clone(),
        })
    }

    /// Returns the ReplicaSet or Job that owns the pod.
    fn intermediate(&self, pod: &ListedObject) -> Option<&Arc<ListedObject>> {
        let owner = pod.owner.as_ref()?;
        let kind = match &*owner.kind {
            "replicaset" => ListedKind::ReplicaSet,
            "job" => ListedKind::Job,
            _ => return None,
        };
        let name = Name {
            namespace: pod.name.namespace.clone(),
            name: owner.name.clone(),
        };
        self.get(kind, &name)
    }

    /// Returns the workload of a pod: the owner of its ReplicaSet or Job, its owner, or itself.
    pub fn workload(&self, pod: &ListedObject) -> OwnerRef {
        let Some(direct) = &pod.owner else {
            return OwnerRef {
                kind: "pod".into(),
                name: pod.name.name.clone(),
            };
        };
        let indirect = self.intermediate(pod).and_then(|it| it.owner.as_ref());
        indirect.unwrap_or(direct).clone()
    }

    /// Returns the pods of an object: a pod itself, the pods in a namespace, the pods that a
    /// Service selects, or the pods that the object owns.
    pub fn pods<'a>(
        &'a self,
        object: &'a ListedObject,
    ) -> impl Iterator<Item = (&'a Arc<ListedObject>, &'a PodDetail)> + 'a {
        let namespace: &str = match object.kind {
            ListedKind::Namespace => &object.name.name,
            _ => &object.name.namespace,
        };
        self.in_namespace(ListedKind::Pod, namespace)
            .filter(|pod| match object.kind {
                ListedKind::Namespace => true,
                ListedKind::Pod => pod.name == object.name,
                ListedKind::Service => object.selects(&pod.labels),
                kind => self.owner_of_kind(pod, kind).as_ref() == Some(&object.name),
            })
            .filter_map(|pod| Some((pod, pod.pod()?)))
    }

    /// Returns the Services of an object: a Service itself, all Services of a namespace, or for any
    /// other object the Services that select one of its pods. Terminated pods do not count.
    pub fn services<'a>(&'a self, object: &'a Arc<ListedObject>) -> Vec<&'a Arc<ListedObject>> {
        let namespace: &str = match object.kind {
            ListedKind::Service => return vec![object],
            ListedKind::Namespace => {
                return self
                    .in_namespace(ListedKind::Service, &object.name.name)
                    .collect();
            }
            _ => &object.name.namespace,
        };
        let pods: Vec<&Labels> = self
            .pods(object)
            .filter(|(_, pod)| pod.is_active())
            .map(|(object, _)| &object.labels)
            .collect();
        self.in_namespace(ListedKind::Service, namespace)
            .filter(|service| pods.iter().any(|labels| service.selects(labels)))
            .collect()
    }
}

impl PodCounts {
    fn add(&mut self, object: &Arc<ListedObject>, pod: &PodDetail, control_namespace: &str) {
        match pod.phase {
            PodPhase::Succeeded => return,
            PodPhase::Failed => self.failed += 1,
            PodPhase::Pending | PodPhase::Running => {
                self.running += 1;
                self.meshed += u64::from(*pod.control_plane_ns == *control_namespace);
            }
        }
        if !pod.errors.is_empty() && self.with_errors.len() < MAX_PODS_WITH_ERRORS {
            self.with_errors.push(object.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_k8s::kinds::LabelSelector;
    use serde::Deserialize as _;

    use super::*;
    use crate::convert;

    /// Returns an inventory of the manifests.
    pub(super) fn of_manifests(text: &str) -> Inventory {
        let mut inventory = Inventory::new();
        for document in serde_norway::Deserializer::from_str(text) {
            let json = serde_json::Value::deserialize(document).unwrap();
            let mut kinds = ListedKind::ALL.into_iter();
            let kind = kinds.find(|kind| json["kind"] == kind.as_str()).unwrap();
            inventory.insert(convert::listed_object(kind, json).unwrap());
        }
        inventory
    }

    const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: a}]}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: shop}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: nightly-1, namespace: shop, ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: nightly, uid: b}]}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {selector: {app: web}}}
---
{apiVersion: v1, kind: Service, metadata: {name: none, namespace: shop}, spec: {}}
";

    fn pod(name: &str, owner: &str, phase: &str, meshed: bool) -> String {
        let owner = match owner.split_once('/') {
            Some((kind, name)) => {
                format!("ownerReferences: [{{apiVersion: v1, kind: {kind}, name: {name}, uid: u}}]")
            }
            None => "annotations: {}".to_owned(),
        };
        let label = if meshed {
            "{app: web, linkerd.io/control-plane-ns: linkerd}"
        } else {
            "{app: web}"
        };
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {label}, {owner}}}\nspec: {{containers: []}}\nstatus: {{phase: {phase}}}\n"
        )
    }

    fn inventory(more: &str) -> Inventory {
        of_manifests(&format!("{OBJECTS}{more}"))
    }

    fn counts(inventory: &Inventory, kind: ListedKind, name: &str) -> (u64, u64, u64) {
        let selection = Selection {
            kind,
            namespace: "shop",
            name,
            labels: &Selector::default(),
        };
        let objects: Vec<_> = inventory.select(selection).cloned().collect();
        assert_eq!(objects.len(), 1, "{kind} {name}");
        let counts = inventory.count_pods(objects.iter().map(Arc::as_ref), "linkerd");
        let counts = &counts[&objects[0].name];
        (counts.meshed, counts.running, counts.failed)
    }

    #[test]
    fn pods_count_for_owners_namespace_and_services() {
        let inventory = inventory(
            &[
                pod("web-1-a", "ReplicaSet/web-1", "Running", true),
                pod("web-1-b", "ReplicaSet/web-1", "Pending", false),
                pod("web-1-c", "ReplicaSet/web-1", "Failed", true),
                pod("nightly-1-a", "Job/nightly-1", "Succeeded", true),
                pod("nightly-1-b", "Job/nightly-1", "Running", true),
                pod("bare", "", "Running", false),
            ]
            .concat(),
        );
        for (kind, name, expect) in [
            (ListedKind::Deployment, "web", (1, 2, 1)),
            (ListedKind::ReplicaSet, "web-1", (1, 2, 1)),
            (ListedKind::CronJob, "nightly", (1, 1, 0)),
            (ListedKind::Job, "nightly-1", (1, 1, 0)),
            (ListedKind::Service, "web", (2, 4, 1)),
            (ListedKind::Service, "none", (0, 0, 0)),
            (ListedKind::Namespace, "shop", (2, 4, 1)),
            (ListedKind::Pod, "bare", (0, 1, 0)),
        ] {
            assert_eq!(counts(&inventory, kind, name), expect, "{kind} {name}");
        }
        let workloads: Vec<String> = inventory
            .in_namespace(ListedKind::Pod, "")
            .map(|pod| {
                let owner = inventory.workload(pod);
                format!("{}/{}", owner.kind, owner.name)
            })
            .collect();
        assert_eq!(
            workloads,
            [
                "pod/bare",
                "cronjob/nightly",
                "cronjob/nightly",
                "deployment/web",
                "deployment/web",
                "deployment/web"
            ]
        );
        let name = Name::new("shop", "web");
        let web = inventory.get(ListedKind::Deployment, &name).unwrap();
        let services = inventory.services(web);
        let services: Vec<&str> = services.iter().map(|it| &*it.name.name).collect();
        assert_eq!(services, ["web"]);
    }

    #[test]
    fn selection_is_by_namespace_name_and_labels() {
        let mut inventory = inventory("");
        let with_label = |inventory: &Inventory, label: &str| {
            let labels = Selector::from(LabelSelector {
                match_labels: Some([("team".to_owned(), label.to_owned())].into()),
                match_expressions: None,
            });
            let selection = Selection {
                kind: ListedKind::Namespace,
                namespace: "other",
                name: "",
                labels: &labels,
            };
            inventory.select(selection).count()
        };
        assert_eq!(with_label(&inventory, "a"), 1);
        assert_eq!(with_label(&inventory, "b"), 0);
        assert_eq!(
            inventory.in_namespace(ListedKind::Service, "sho").count(),
            0
        );
        inventory.remove(ListedKind::Namespace, &Name::new("", "shop"));
        assert_eq!(with_label(&inventory, "a"), 0);
    }
}
