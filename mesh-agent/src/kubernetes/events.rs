//! What the agent tells in the events of a pod, and of its node.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use mesh_core::node::{RepairKind, Tier};
use mesh_runtime::log::chain;

use tokio::sync::mpsc;

use super::meshed_pod::MeshedPod;
use crate::repairs::Repaired;

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
        let pod = pod_reference(pod);
        self.tell(&pod, EventType::Normal, "Repaired", "Redirect", note)
            .await;
    }

    /// On the node, because it is the node's administrator who has to find out what did the damage.
    async fn repaired_node(&self, node: &str, repaired: &Repaired) {
        let note = format!(
            "The mesh agent repaired this node: {} ({})",
            repaired.kind.describe(),
            repaired.detail
        );
        self.tell(
            &node_reference(node),
            EventType::Warning,
            reason(repaired.kind),
            "Repair",
            note,
        )
        .await;
    }

    pub(super) async fn failed(&self, pod: &MeshedPod, reason: &str) {
        let note = format!("The pod has a proxy and cannot be redirected to it: {reason}");
        let (pod, reason) = (pod_reference(pod), "RedirectionFailed");
        self.tell(&pod, EventType::Warning, reason, "Redirect", note)
            .await;
    }

    /// An event that cannot be told is no reason to stop: the log has said the same.
    async fn tell(
        &self,
        regarding: &ObjectReference,
        kind: EventType,
        reason: &str,
        action: &str,
        mut note: String,
    ) {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let event = Event {
            type_: kind,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, regarding).await {
            tracing::warn!(
                namespace = regarding.namespace.as_deref(),
                name = regarding.name.as_deref(),
                error = chain(&error),
                "Cannot write an event"
            );
        }
    }
}

/// Never returns. A repair of one kind soon after another is counted in the same event.
pub(super) async fn tell_repairs(
    client: &Client,
    node: &str,
    mut repaired: mpsc::Receiver<Repaired>,
) {
    let events = Events::new(client.clone(), node);
    while let Some(repaired) = repaired.recv().await {
        // A pod that was enrolled in place has an event of its own.
        if repaired.kind != RepairKind::NotEnrolled {
            events.repaired_node(node, &repaired).await;
        }
    }
    // The sender lives as long as the agent; without it there is nothing to tell any more.
    std::future::pending::<()>().await;
}

/// One reason for each kind, as `kubectl get events --field-selector reason=…` takes it.
fn reason(kind: RepairKind) -> &'static str {
    match kind {
        RepairKind::PluginUnchained => "CniPluginUnchained",
        RepairKind::PluginShadowed => "CniPluginShadowed",
        RepairKind::PluginMissing => "CniPluginMissing",
        RepairKind::PluginAltered => "CniPluginAltered",
        RepairKind::PluginNotExecutable => "CniPluginNotExecutable",
        RepairKind::ProgramsDetached => "KernelProgramsDetached",
        RepairKind::PinsDeleted => "KernelPinsDeleted",
        RepairKind::Incomplete => "RedirectionIncomplete",
        RepairKind::NotEnrolled | RepairKind::Other => "Repaired",
    }
}

/// As the kubelet refers to its node, so that `kubectl describe node` shows the event. A node has
/// no namespace; its events are in `default`.
fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

fn pod_reference(pod: &MeshedPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.pod.namespace.clone()),
        name: Some(pod.pod.name.clone()),
        uid: Some(pod.object_uid.clone()),
        ..ObjectReference::default()
    }
}
