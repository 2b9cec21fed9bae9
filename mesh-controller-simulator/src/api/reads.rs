//! Lists, single objects, and discovery.

use serde_json::{Map, Value, json};

use super::path::{Path, Query};
use super::{Read, State, failure};
use crate::resources::Resource;
use crate::store::Id;

impl State {
    /// Returns the status and the body of a response.
    pub(super) fn read(&self, read: &Read<'_>) -> (u16, Value) {
        match read.path {
            Path::Groups => (200, self.groups()),
            Path::Group { group, version } => self.resources(group, version),
            Path::Objects { resource } if resource.defines() => (200, self.definitions()),
            Path::Objects { resource } => self.list(*resource, read),
            Path::Object { id, .. } => match self.visible_objects().remove(id) {
                Some(object) => (200, shown(&object, read.only_metadata)),
                None => (404, failure(404)),
            },
        }
    }

    fn groups(&self) -> Value {
        let mut groups: Map<String, Value> = Map::new();
        for resource in Resource::all() {
            let (api, version) = (resource.api(), resource.api_version());
            if api.group.is_empty() || self.unserved.contains(&resource) {
                continue;
            }
            let named = json!({ "groupVersion": version, "version": api.version });
            let group = groups.entry(api.group).or_insert_with(
                || json!({ "name": api.group, "versions": [], "preferredVersion": named }),
            );
            if let Some(versions) = group["versions"].as_array_mut()
                && !versions.contains(&named)
            {
                versions.push(named);
            }
        }
        let groups: Vec<Value> = groups.into_iter().map(|(_, group)| group).collect();
        json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
    }

    fn resources(&self, group: &str, version: &str) -> (u16, Value) {
        let served = Resource::all().filter(|resource| {
            let api = resource.api();
            api.group == group && api.version == version && !self.unserved.contains(resource)
        });
        let served: Vec<Value> = served
            .map(|resource| {
                let api = resource.api();
                json!({
                    "name": api.plural, "singularName": "", "kind": api.kind, "namespaced": true,
                    "verbs": ["get", "list", "watch", "patch"],
                })
            })
            .collect();
        if served.is_empty() {
            return (404, failure(404));
        }
        let version = format!("{group}/{version}");
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
            "resources": served,
        });
        (200, list)
    }

    /// The definitions of all custom resources. A script makes them unserved, and deletes none.
    fn definitions(&self) -> Value {
        let custom = Resource::all().filter(|resource| resource.is_custom());
        let items = custom.map(|resource| {
            let api = resource.api();
            let name = format!("{}.{}", api.plural, api.group);
            json!({ "metadata": { "name": name, "resourceVersion": "1" } })
        });
        json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": self.visible().to_string() },
            "items": items.collect::<Vec<_>>(),
        })
    }

    /// Lists a page. A token has the version of the list and the last name before the page.
    fn list(&self, resource: Resource, read: &Read<'_>) -> (u16, Value) {
        let Query {
            limit, continue_, ..
        } = read.query;
        let token = continue_.as_deref().and_then(|token| {
            let (version, after) = token.split_once(' ')?;
            Some((version.parse::<u64>().ok()?, after.to_owned()))
        });
        let version = token
            .as_ref()
            .map_or(self.visible(), |(version, _)| *version);
        if version < self.store.compacted() || version > self.store.version() {
            return (410, failure(410));
        }
        let objects = self.store.at(version);
        let key = |id: &Id| format!("{}/{}", id.namespace, id.name);
        let selected = objects.iter().filter(|(id, object)| {
            id.resource == resource
                && is_selected(object, read.query)
                && token.as_ref().is_none_or(|(_, after)| key(id) > *after)
        });
        let mut selected: Vec<_> = selected.collect();
        let page = limit.map_or(usize::MAX, |limit| limit.min(self.page));
        let is_last = selected.len() <= page;
        selected.truncate(page);
        let last = selected.last().map(|(id, _)| key(id));
        let continue_ = last
            .filter(|_| !is_last)
            .map(|last| format!("{version} {last}"));
        let items = selected.iter().map(|(_, object)| {
            let mut item = shown(object, read.only_metadata);
            // As in lists of an API server, which name them once.
            if !resource.is_custom()
                && let Some(fields) = item.as_object_mut()
            {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            item
        });
        let items: Vec<Value> = items.collect();
        let (api_version, kind) = if read.only_metadata {
            (
                "meta.k8s.io/v1".to_owned(),
                "PartialObjectMetadataList".to_owned(),
            )
        } else {
            (
                resource.api_version(),
                format!("{}List", resource.api().kind),
            )
        };
        let list = json!({
            "kind": kind, "apiVersion": api_version,
            "metadata": {
                "resourceVersion": version.to_string(),
                "continue": continue_.unwrap_or_default(),
            },
            "items": items,
        });
        (200, list)
    }
}

/// Whether the label of the query exists. Field selectors match every object of a world.
pub(super) fn is_selected(object: &Value, query: &Query) -> bool {
    let labels = &object["metadata"]["labels"];
    query
        .label
        .as_ref()
        .is_none_or(|label| !labels[label].is_null())
}

pub(super) fn shown(object: &Value, only_metadata: bool) -> Value {
    if !only_metadata {
        return object.clone();
    }
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}
