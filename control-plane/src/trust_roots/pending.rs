//! The namespaces that need a copy of the trust anchors, computed from the events of the
//! publisher's watches without I/O.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use mesh_core::annotation::INJECT;
use mesh_k8s::kinds::ObjectMeta;
use mesh_k8s::pod::meta_annotation;

pub(super) struct PendingNamespaces {
    /// The namespace of the original.
    control_namespace: String,
    /// All namespaces that are not being deleted, and whether they enable injection.
    namespaces: Table<bool>,
    /// Meshed pods.
    pods: Table<()>,
    /// The content of each copy; `None` if the key is missing.
    copies: Table<Option<String>>,
}

/// Objects by namespace and name. An incomplete list has no effect.
struct Table<T> {
    objects: BTreeMap<(String, String), T>,
    listing: Option<BTreeMap<(String, String), T>>,
    listed: bool,
}

impl PendingNamespaces {
    pub(super) fn new(control_namespace: &str) -> Self {
        Self {
            control_namespace: control_namespace.to_owned(),
            namespaces: Table::new(),
            pods: Table::new(),
            copies: Table::new(),
        }
    }

    pub(super) fn namespace(&mut self, event: Event<PartialObjectMeta<Namespace>>) {
        self.namespaces.apply(event, |namespace| {
            let meta = &namespace.metadata;
            let living = meta.deletion_timestamp.is_none();
            let injects = matches!(meta_annotation(meta, INJECT), Some("enabled" | "ingress"));
            living.then_some(injects)
        });
    }

    pub(super) fn pod(&mut self, event: Event<PartialObjectMeta<Pod>>) {
        self.pods.apply(event, |_| Some(()));
    }

    pub(super) fn copy(&mut self, event: Event<ConfigMap>, key: &str) {
        self.copies.apply(event, |copy| {
            Some(copy.data.as_ref().and_then(|data| data.get(key)).cloned())
        });
    }

    /// Records a written copy, before the watch reports it.
    pub(super) fn written(&mut self, namespace: &str, bundle: &str) {
        self.copies.objects.insert(
            (namespace.to_owned(), super::NAME.to_owned()),
            Some(bundle.to_owned()),
        );
    }

    /// Returns whether all kinds have been listed once.
    pub(super) fn is_listed(&self) -> bool {
        self.namespaces.listed && self.pods.listed && self.copies.listed
    }

    /// Returns the namespaces that need a copy and have none with this content.
    pub(super) fn outdated(&self, bundle: &str) -> BTreeSet<String> {
        let pods = self.pods.objects.keys().map(|(namespace, _)| namespace);
        let injecting = self
            .namespaces
            .objects
            .iter()
            .filter(|(_, injects)| **injects)
            .map(|((_, name), _)| name);
        // A set, because thousands of pods are in a few namespaces.
        let candidates: BTreeSet<&String> = pods.chain(injecting).collect();
        candidates
            .into_iter()
            .filter(|namespace| **namespace != self.control_namespace)
            .filter(|namespace| self.exists(namespace) && !self.has(namespace, bundle))
            .cloned()
            .collect()
    }

    fn exists(&self, namespace: &str) -> bool {
        let key = (String::new(), namespace.to_owned());
        self.namespaces.objects.contains_key(&key)
    }

    fn has(&self, namespace: &str, bundle: &str) -> bool {
        let key = (namespace.to_owned(), super::NAME.to_owned());
        let copy = self.copies.objects.get(&key);
        copy.is_some_and(|copy| copy.as_deref() == Some(bundle))
    }
}

impl<T> Table<T> {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            listing: None,
            listed: false,
        }
    }

    /// `read` returns the value of an object; `None` if the object counts as deleted.
    fn apply<K: kube::Resource>(&mut self, event: Event<K>, read: impl Fn(&K) -> Option<T>) {
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                if let (Some(listing), Some(value)) = (&mut self.listing, read(&object)) {
                    listing.insert(key(object.meta()), value);
                }
            }
            Event::InitDone => {
                if let Some(objects) = self.listing.take() {
                    self.objects = objects;
                }
                self.listed = true;
            }
            Event::Apply(object) => {
                let key = key(object.meta());
                match read(&object) {
                    Some(value) => self.objects.insert(key, value),
                    None => self.objects.remove(&key),
                };
            }
            Event::Delete(object) => {
                self.objects.remove(&key(object.meta()));
            }
        }
    }
}

fn key(meta: &ObjectMeta) -> (String, String) {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<K: serde::de::DeserializeOwned>(object: serde_json::Value) -> K {
        serde_json::from_value(object).unwrap()
    }

    fn namespace(name: &str, inject: &str) -> PartialObjectMeta<Namespace> {
        read(
            json!({ "metadata": { "name": name, "annotations": { "linkerd.io/inject": inject } } }),
        )
    }

    fn pod(namespace: &str, name: &str) -> PartialObjectMeta<Pod> {
        read(json!({ "metadata": { "name": name, "namespace": namespace } }))
    }

    fn copy(namespace: &str, bundle: &str) -> ConfigMap {
        read(json!({
            "metadata": { "name": super::super::NAME, "namespace": namespace },
            "data": { "ca-bundle.crt": bundle },
        }))
    }

    fn listed<K>(objects: Vec<K>) -> Vec<Event<K>> {
        let mut events = vec![Event::Init];
        events.extend(objects.into_iter().map(Event::InitApply));
        events.push(Event::InitDone);
        events
    }

    fn pending() -> PendingNamespaces {
        let mut pending = PendingNamespaces::new("linkerd");
        let namespaces = [
            ("linkerd", "enabled"),
            ("shop", "enabled"),
            ("edge", "ingress"),
            ("off", "disabled"),
            ("quiet", ""),
        ];
        for event in listed(
            namespaces
                .map(|(name, inject)| namespace(name, inject))
                .into(),
        ) {
            pending.namespace(event);
        }
        assert!(!pending.is_listed());
        let pods = vec![
            pod("linkerd", "identity"),
            pod("quiet", "a"),
            pod("gone", "b"),
        ];
        for event in listed(pods) {
            pending.pod(event);
        }
        for event in listed(vec![copy("shop", "old"), copy("edge", "new")]) {
            pending.copy(event, "ca-bundle.crt");
        }
        pending
    }

    fn outdated(pending: &PendingNamespaces) -> Vec<String> {
        pending.outdated("new").into_iter().collect()
    }

    #[test]
    fn namespaces_with_injection_or_meshed_pods_without_current_copy_are_outdated() {
        let mut pending = pending();
        assert!(pending.is_listed());
        assert_eq!(outdated(&pending), ["quiet", "shop"]);
        pending.written("shop", "new");
        pending.copy(Event::Apply(copy("quiet", "new")), "ca-bundle.crt");
        assert_eq!(outdated(&pending), [""; 0]);
        // One copy is changed, and another one deleted.
        pending.copy(Event::Apply(copy("shop", "evil")), "ca-bundle.crt");
        pending.copy(Event::Delete(copy("quiet", "new")), "ca-bundle.crt");
        assert_eq!(outdated(&pending), ["quiet", "shop"]);
    }

    #[test]
    fn terminating_namespaces_are_skipped() {
        let mut pending = pending();
        let mut shop = namespace("shop", "enabled");
        shop.metadata.deletion_timestamp = read(json!("2024-01-01T00:00:00Z"));
        pending.namespace(Event::Apply(shop));
        assert_eq!(outdated(&pending), ["quiet"]);
        pending.pod(Event::Delete(pod("quiet", "a")));
        assert_eq!(outdated(&pending), [""; 0]);
    }

    #[test]
    fn incomplete_list_has_no_effect() {
        let mut pending = pending();
        pending.pod(Event::Init);
        assert_eq!(outdated(&pending), ["quiet", "shop"]);
        for event in listed(vec![]) {
            pending.pod(event);
        }
        assert_eq!(outdated(&pending), ["shop"]);
    }
}
