//! Notices when APIs appear: CustomResourceDefinitions of the groups that we read.
//!
//! This makes it quick and nothing else. Who may not watch definitions, or misses an event, finds a
//! new API at the next look (see `watch`).

use std::time::Duration;

use futures_util::StreamExt as _;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta},
    runtime::watcher::{Config, Event},
};
use tokio::sync::watch;

use crate::{
    cluster::{self, Backoff},
    model::Kind,
};

/// Tells `changed` about each change of a definition, as long as the process lives.
pub(super) async fn follow(client: Client, changed: watch::Sender<()>) {
    let named = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let resource = ApiResource::from_gvk_with_plural(&named, "customresourcedefinitions");
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
    // Nothing hangs on this watch but a few seconds; when the role forbids it there is no point in
    // asking often.
    let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
    let what = "CustomResourceDefinitions, to notice new APIs at once";
    let mut events = Box::pin(cluster::follow(api, Config::default(), what, backoff));
    while let Some(event) = events.next().await {
        if concerns_us(&event) {
            changed.send_replace(());
        }
    }
}

fn concerns_us(event: &Event<PartialObjectMeta<DynamicObject>>) -> bool {
    match event {
        Event::Apply(definition) | Event::InitApply(definition) | Event::Delete(definition) => {
            let name = definition.metadata.name.as_deref().unwrap_or_default();
            is_of_our_groups(name)
        }
        Event::Init | Event::InitDone => false,
    }
}

/// Definitions are named `<plural>.<group>`.
fn is_of_our_groups(name: &str) -> bool {
    let group = name.split_once('.').map_or("", |(_, group)| group);
    Kind::ALL.iter().any(|kind| kind.group() == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_compared_whole() {
        assert!(is_of_our_groups("servers.policy.linkerd.io"));
        assert!(is_of_our_groups("httproutes.gateway.networking.k8s.io"));
        assert!(!is_of_our_groups("links.multicluster.linkerd.io"));
        assert!(!is_of_our_groups("servers.policy.linkerd.io.example.com"));
    }
}
