//! Publishes Kubernetes events of pods and of the node.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mesh_core::node::{RepairKind, Tier};
use mesh_runtime::log::chain;
use tokio::sync::mpsc;

use super::meshed_pod::MeshedPod;
use crate::repairs::RepairEvent;

/// The events' source, as `kubectl describe` shows it.
const CONTROLLER: &str = "mesh-agent";
/// Below the API server's limit of 1 KiB.
const MAX_NOTE_BYTES: usize = 1000;

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

    pub(super) async fn publish_enrolled(&self, pod: &MeshedPod, tier: Tier) {
        let note = format!(
            "The pod has a proxy and was not redirected to it when it started; it is redirected now (tier {tier})"
        );
        let pod = pod_reference(pod);
        self.publish(&pod, EventType::Normal, "Repaired", "Redirect", note)
            .await;
    }

    /// Published on the node, whose administrator has to find the cause of the damage.
    async fn publish_node_repair(&self, node: &str, repair: &RepairEvent) {
        let note = format!(
            "The mesh agent repaired this node: {} ({})",
            repair.kind.describe(),
            repair.detail
        );
        self.publish(
            &node_reference(node),
            EventType::Warning,
            event_reason(repair.kind),
            "Repair",
            note,
        )
        .await;
    }

    pub(super) async fn publish_failure(&self, pod: &MeshedPod, reason: &str) {
        let note = format!("The pod has a proxy and cannot be redirected to it: {reason}");
        let (pod, reason) = (pod_reference(pod), "RedirectionFailed");
        self.publish(&pod, EventType::Warning, reason, "Redirect", note)
            .await;
    }

    /// Failures are only logged; the log contains the same information.
    async fn publish(
        &self,
        regarding: &ObjectReference,
        kind: EventType,
        reason: &str,
        action: &str,
        mut note: String,
    ) {
        note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
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

/// Never returns. Repeated repairs of one kind are counted in one event.
pub(super) async fn publish_repairs(
    client: &Client,
    node: &str,
    mut repairs: mpsc::Receiver<RepairEvent>,
) {
    let events = Events::new(client.clone(), node);
    while let Some(repair) = repairs.recv().await {
        // A pod that was enrolled in place has its own event.
        if repair.kind != RepairKind::NotEnrolled {
            events.publish_node_repair(node, &repair).await;
        }
    }
    // The sender lives as long as the agent.
    std::future::pending::<()>().await;
}

/// Returns the reason for each kind, for `kubectl get events --field-selector reason=…`.
fn event_reason(kind: RepairKind) -> &'static str {
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

/// Refers to the node as the kubelet does, so that `kubectl describe node` shows the event. Events
/// of a node, which has no namespace, are in `default`.
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
        uid: Some(pod.pod.uid.clone()),
        ..ObjectReference::default()
    }
}
