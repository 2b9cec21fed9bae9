//! What the agent tells in the events of a pod.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use mesh_core::node::Tier;
use mesh_runtime::log::chain;

use super::meshed_pod::MeshedPod;

/// Who the events are from, as `kubectl describe` shows it.
const CONTROLLER: &str = "mesh-agent";
/// The API server refuses longer notes (1 KiB); in bytes.
const LONGEST_NOTE: usize = 1000;

pub(super) struct Events {
    recorder: Recorder,
}

impl Events {
    pub(super) fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: Some(node.to_owned()),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    pub(super) async fn repaired(&self, pod: &MeshedPod, tier: Tier) {
        let note = format!(
            "The pod has a proxy and was not redirected to it when it started; it is from now on (tier {tier})"
        );
        self.tell(pod, EventType::Normal, "Repaired", note).await;
    }

    pub(super) async fn failed(&self, pod: &MeshedPod, reason: &str) {
        let note = format!("The pod has a proxy and cannot be redirected to it: {reason}");
        self.tell(pod, EventType::Warning, "RedirectionFailed", note)
            .await;
    }

    /// An event that cannot be told is no reason to stop: the log has said the same.
    async fn tell(&self, pod: &MeshedPod, kind: EventType, reason: &str, mut note: String) {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Redirect".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &reference(pod)).await {
            tracing::warn!(pod = %pod.pod, error = chain(&error), "Cannot write an event of a pod");
        }
    }
}

fn reference(pod: &MeshedPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.pod.namespace.clone()),
        name: Some(pod.pod.name.clone()),
        uid: Some(pod.object_uid.clone()),
        ..ObjectReference::default()
    }
}
