//! CustomResourceDefinitions: new ones are detected by watching them, and whether one is being
//! deleted is asked for.
//!
//! The watch only makes detection faster. Without permission to watch definitions, or after a
//! missed event, polling finds a new API (see `watch`).

use std::time::Duration;

use futures_util::StreamExt as _;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::{Config, Event};
use kube::{Api, Client};
use mesh_objects::model::{Kind, ListedKind};

use super::kinds::WatchedKind;
use super::notices;
use crate::api_server::{self, Backoff};

type Definitions = Api<PartialObjectMeta<DynamicObject>>;

/// Notifies `changed` of each change of a relevant definition.
pub(super) async fn watch_definitions(client: Client, changed: notices::Sender) {
    let api = definitions(client);
    // The watch only saves some seconds, and without permission frequent retries are useless.
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
    let what = "CustomResourceDefinitions, to detect new APIs";
    let mut events = Box::pin(api_server::watch_objects(
        api,
        Config::default(),
        what,
        backoff,
    ));
    while let Some(event) = events.next().await {
        if is_relevant(&event) {
            changed.notify();
        }
    }
}

/// Returns whether a kind has a definition that is not being deleted.
///
/// The API server marks a definition as deleted before it deletes the objects, and answers with its
/// current state. So the answer to a request that is sent after the deletion of an object was
/// received tells whether the object was deleted with its definition.
pub(super) async fn is_defined(
    client: &Client,
    watched: &WatchedKind,
) -> Result<bool, kube::Error> {
    let name = format!("{}.{}", watched.api().plural, watched.kind.group());
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let listed = definitions(client.clone()).list_metadata(&named).await?;
    let mut all = listed.items.into_iter().map(|it| it.metadata);
    Ok(all.any(|it| it.name.as_deref() == Some(&name) && it.deletion_timestamp.is_none()))
}

fn definitions(client: Client) -> Definitions {
    let named = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&named, "customresourcedefinitions");
    Api::all_with(client, &resource)
}

fn is_relevant(event: &Event<PartialObjectMeta<DynamicObject>>) -> bool {
    match event {
        Event::Apply(definition) | Event::InitApply(definition) | Event::Delete(definition) => {
            let name = definition.metadata.name.as_deref().unwrap_or_default();
            is_watched_group(name)
        }
        Event::Init | Event::InitDone => false,
    }
}

/// Definitions are named `<plural>.<group>`.
fn is_watched_group(name: &str) -> bool {
    let group = name.split_once('.').map_or("", |(_, group)| group);
    let kinds = Kind::ALL.into_iter();
    kinds
        .chain(ListedKind::ALL.map(Kind::Listed))
        .any(|kind| kind.group() == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_compared_as_a_whole() {
        assert!(is_watched_group("servers.policy.linkerd.io"));
        assert!(is_watched_group("httproutes.gateway.networking.k8s.io"));
        assert!(is_watched_group("serviceprofiles.linkerd.io"));
        assert!(!is_watched_group("links.multicluster.linkerd.io"));
        assert!(!is_watched_group("servers.policy.linkerd.io.example.com"));
    }
}
