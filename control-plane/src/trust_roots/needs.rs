//! Which namespaces need a copy of the trust anchors, and which have one. Pure; the publisher feeds
//! it with what its watches say.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::{core::PartialObjectMeta, runtime::watcher::Event};
use mesh_core::annotation::INJECT;
use mesh_k8s::kinds::ObjectMeta;

pub(super) struct Needs {
    /// The original is there.
    control_namespace: String,
    /// All namespaces that are not being deleted, and whether pods that are created there become
    /// meshed.
    namespaces: Table<bool>,
    /// Meshed pods.
    pods: Table<()>,
    /// What each copy says; nothing for one that lacks the key.
    copies: Table<Option<String>>,
}

/// Objects by namespace and name. A list that is under way has no effect before it is complete.
struct Table<T> {
    objects: BTreeMap<(String, String), T>,
    listing: Option<BTreeMap<(String, String), T>>,
    listed: bool,
}

impl Needs {
    pub(super) fn new(control_namespace: &str) -> Self {
        Self {
            control_namespace: control_namespace.to_owned(),
            namespaces: Table::new(),
            pods: Table::new(),
            copies: Table::new(),
        }
    }

    pub(super) fn namespace(&mut self, event: Event<PartialObjectMeta<Namespace>>) {
        self.namespaces.note(event, |namespace| {
            let meta = &namespace.metadata;
            let living = meta.deletion_timestamp.is_none();
            let inject = meta.annotations.as_ref().and_then(|all| all.get(INJECT));
            let asks = inject.is_some_and(|value| value == "enabled" || value == "ingress");
            living.then_some(asks)
        });
    }

    pub(super) fn pod(&mut self, event: Event<PartialObjectMeta<Pod>>) {
        self.pods.note(event, |_| Some(()));
    }

    pub(super) fn copy(&mut self, event: Event<ConfigMap>, key: &str) {
        self.copies.note(event, |copy| {
            Some(copy.data.as_ref().and_then(|data| data.get(key)).cloned())
        });
    }

    /// We wrote this copy; the watch will say so a little later.
    pub(super) fn written(&mut self, namespace: &str, bundle: &str) {
        self.copies.objects.insert(
            (namespace.to_owned(), super::NAME.to_owned()),
            Some(bundle.to_owned()),
        );
    }

    /// Everything has been listed once.
    pub(super) fn known(&self) -> bool {
        self.namespaces.listed && self.pods.listed && self.copies.listed
    }

    /// Namespaces that need a copy and have none that says this.
    pub(super) fn due(&self, bundle: &str) -> BTreeSet<String> {
        let pods = self.pods.objects.keys().map(|(namespace, _)| namespace);
        let asking = self
            .namespaces
            .objects
            .iter()
            .filter(|(_, asks)| **asks)
            .map(|((_, name), _)| name);
        // Thousands of pods are in a few namespaces.
        let wanting: BTreeSet<&String> = pods.chain(asking).collect();
        wanting
            .into_iter()
            .filter(|namespace| **namespace != self.control_namespace)
            .filter(|namespace| self.is_living(namespace) && !self.has(namespace, bundle))
            .cloned()
            .collect()
    }

    fn is_living(&self, namespace: &str) -> bool {
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

    /// `read` says what is of interest in an object; nothing when it is as good as deleted.
    fn note<K: kube::Resource>(&mut self, event: Event<K>, read: impl Fn(&K) -> Option<T>) {
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

    fn needs() -> Needs {
        let mut needs = Needs::new("linkerd");
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
            needs.namespace(event);
        }
        assert!(!needs.known());
        let pods = vec![
            pod("linkerd", "identity"),
            pod("quiet", "a"),
            pod("gone", "b"),
        ];
        for event in listed(pods) {
            needs.pod(event);
        }
        for event in listed(vec![copy("shop", "old"), copy("edge", "new")]) {
            needs.copy(event, "ca-bundle.crt");
        }
        needs
    }

    fn due(needs: &Needs) -> Vec<String> {
        needs.due("new").into_iter().collect()
    }

    #[test]
    fn who_asked_or_has_a_meshed_pod_and_no_current_copy() {
        let mut needs = needs();
        assert!(needs.known());
        assert_eq!(due(&needs), ["quiet", "shop"]);
        needs.written("shop", "new");
        needs.copy(Event::Apply(copy("quiet", "new")), "ca-bundle.crt");
        assert_eq!(due(&needs), [""; 0]);
        // Somebody touched one, and deleted another.
        needs.copy(Event::Apply(copy("shop", "evil")), "ca-bundle.crt");
        needs.copy(Event::Delete(copy("quiet", "new")), "ca-bundle.crt");
        assert_eq!(due(&needs), ["quiet", "shop"]);
    }

    #[test]
    fn a_namespace_that_is_being_deleted_is_left_alone() {
        let mut needs = needs();
        let mut shop = namespace("shop", "enabled");
        shop.metadata.deletion_timestamp = read(json!("2024-01-01T00:00:00Z"));
        needs.namespace(Event::Apply(shop));
        assert_eq!(due(&needs), ["quiet"]);
        needs.pod(Event::Delete(pod("quiet", "a")));
        assert_eq!(due(&needs), [""; 0]);
    }

    #[test]
    fn a_list_that_breaks_off_has_no_effect() {
        let mut needs = needs();
        needs.pod(Event::Init);
        assert_eq!(due(&needs), ["quiet", "shop"]);
        for event in listed(vec![]) {
            needs.pod(event);
        }
        assert_eq!(due(&needs), ["shop"]);
    }
}
