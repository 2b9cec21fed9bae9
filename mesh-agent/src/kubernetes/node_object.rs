//! The agent's node among the cluster's objects: the taint that keeps pods away until they can be
//! enrolled is taken from it, and its container runtime is learnt. Nothing is written on the node
//! that would stay behind: when the mesh is uninstalled, the right to take it away again may be
//! gone first.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use mesh_runtime::log::chain;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Settings, Surroundings};

/// After a patch that the API server refused, because somebody else changed the node or because it
/// may not be patched.
const RETRY: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(3600);

/// Does this container runtime tear pods down with the plugins that they were set up with, whatever
/// its configuration says by then? CRI-O does (ocicni caches the list), so that a plugin whose file
/// is gone keeps every pod that had it from ending.
pub fn keeps_chains(container_runtime: &str) -> bool {
    container_runtime.starts_with("cri-o://")
}

/// Never returns.
pub(super) async fn run(
    client: &Client,
    settings: &Settings,
    around: &Surroundings,
    runtime: &watch::Sender<Option<String>>,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut stream =
        std::pin::pin!(watcher::watch_object(nodes.clone(), &settings.node).default_backoff());
    let mut can_enrol = around.can_enrol.clone();
    let mut node: Option<Node> = None;
    let mut retry = None;
    let (mut has_complained, mut has_complained_of_watch) = (false, false);
    loop {
        let can_enrol_now = *can_enrol.borrow_and_update();
        if let Some(known) = node.as_ref().filter(|_| can_enrol_now)
            && retry.is_none_or(|at| at <= Instant::now())
        {
            retry = match take_taint(&nodes, known, settings).await {
                Ok(()) => None,
                Err(error) => {
                    complain(&error, &mut has_complained);
                    Some(Instant::now() + RETRY)
                }
            };
        }
        let next = retry.unwrap_or_else(|| Instant::now() + LONG);
        tokio::select! {
            event = stream.next() => match event {
                Some(Ok(found)) => {
                    runtime.send_replace(found.as_ref().and_then(container_runtime));
                    node = found;
                }
                Some(Err(error)) => complain_of_watch(&error, &mut has_complained_of_watch),
                None => return,
            },
            // The sender lives as long as the agent.
            _ = can_enrol.changed() => {}
            () = sleep_until(next) => {}
        }
    }
}

async fn take_taint(
    nodes: &Api<Node>,
    node: &Node,
    settings: &Settings,
) -> Result<(), kube::Error> {
    let Some(patch) = change(node, &settings.startup_taint) else {
        return Ok(());
    };
    let patch = Patch::Merge(patch);
    nodes
        .patch(&settings.node, &PatchParams::default(), &patch)
        .await?;
    tracing::info!(
        taint = settings.startup_taint,
        "Pods can be enrolled: took the taint from the node"
    );
    Ok(())
}

/// The patch that takes the taint away. It names the version that was read, so that taints of
/// others which came in between are not overwritten.
fn change(node: &Node, taint: &str) -> Option<Value> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let others: Vec<_> = taints.iter().filter(|found| found.key != taint).collect();
    (others.len() < taints.len()).then(|| {
        json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": others},
        })
    })
}

/// Another writer's change is no news: it is tried again with what the watch brings.
fn complain(error: &kube::Error, has_complained: &mut bool) {
    let is_conflict = matches!(error, kube::Error::Api(status) if status.code == 409);
    if !is_conflict && !*has_complained {
        *has_complained = true;
        tracing::warn!(
            error = chain(error),
            "Cannot take the start-up taint from the node; does the service account have the verb \"patch\" on nodes?"
        );
    }
}

fn complain_of_watch(error: &watcher::Error, has_complained: &mut bool) {
    if !*has_complained {
        *has_complained = true;
        tracing::warn!(
            error = chain(error),
            "Cannot watch this node's object; a start-up taint stays on it meanwhile"
        );
    }
}

fn container_runtime(node: &Node) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    Some(info.container_runtime_version.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAINT: &str = "mesh-agent/not-ready";

    fn node(taints: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "resourceVersion": "7"},
            "spec": {"taints": taints},
        }))
        .unwrap()
    }

    #[test]
    fn our_taint_alone_is_taken() {
        let ours = json!({"key": TAINT, "effect": "NoSchedule"});
        let other = json!({"key": "disk", "effect": "NoExecute", "value": "x"});
        assert_eq!(change(&node(Value::Null), TAINT), None);
        assert_eq!(change(&node(json!([other])), TAINT), None);
        let patch = change(&node(json!([ours, other])), TAINT).unwrap();
        assert_eq!(patch["spec"], json!({"taints": [other]}));
        assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
        let patch = change(&node(json!([ours])), TAINT).unwrap();
        assert_eq!(patch["spec"], json!({"taints": []}));
    }

    #[test]
    fn crio_remembers_chains() {
        assert!(keeps_chains("cri-o://1.30.0"));
        assert!(!keeps_chains("containerd://2.3.7"));
    }
}
