//! The agent's Node object: removes the taint that keeps pods away until they can be enrolled, and
//! reads the container runtime. Writes nothing on the node that would remain after an
//! uninstallation, which may remove the permission to clean up first.

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use mesh_runtime::log::chain;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{Dependencies, Settings};

/// After a patch that the API server refused.
const RETRY: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Returns whether this container runtime tears pods down with the plugins that they were set up
/// with, even after its configuration changed. CRI-O does (ocicni caches the list), so a missing
/// plugin file prevents the teardown of every pod that had it.
pub fn caches_chains(container_runtime: &str) -> bool {
    container_runtime.starts_with("cri-o://")
}

/// Never returns.
pub(super) async fn run(
    client: &Client,
    settings: &Settings,
    deps: &Dependencies,
    runtime: &watch::Sender<Option<String>>,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut stream =
        std::pin::pin!(watcher::watch_object(nodes.clone(), &settings.node).default_backoff());
    let mut can_enrol = deps.can_enrol.clone();
    let mut node: Option<Node> = None;
    let mut retry = None;
    let (mut is_reported, mut is_watch_error_reported) = (false, false);
    loop {
        let can_enrol_now = *can_enrol.borrow_and_update();
        if let Some(known) = node.as_ref().filter(|_| can_enrol_now)
            && retry.is_none_or(|at| at <= Instant::now())
        {
            retry = match remove_taint(&nodes, known, settings).await {
                Ok(()) => None,
                Err(error) => {
                    report_patch_error(&error, &mut is_reported);
                    Some(Instant::now() + RETRY)
                }
            };
        }
        let next = retry.unwrap_or_else(|| Instant::now() + IDLE_TIMEOUT);
        tokio::select! {
            event = stream.next() => match event {
                Some(Ok(found)) => {
                    runtime.send_replace(found.as_ref().and_then(container_runtime));
                    node = found;
                }
                Some(Err(error)) => report_watch_error(&error, &mut is_watch_error_reported),
                None => return,
            },
            // The sender lives as long as the agent.
            _ = can_enrol.changed() => {}
            () = sleep_until(next) => {}
        }
    }
}

async fn remove_taint(
    nodes: &Api<Node>,
    node: &Node,
    settings: &Settings,
) -> Result<(), kube::Error> {
    let Some(patch) = taint_patch(node, &settings.startup_taint) else {
        return Ok(());
    };
    let patch = Patch::Merge(patch);
    nodes
        .patch(&settings.node, &PatchParams::default(), &patch)
        .await?;
    tracing::info!(
        taint = settings.startup_taint,
        "Removed the start-up taint from the node"
    );
    Ok(())
}

/// Returns the patch that removes the taint. It names the resource version that was read, so that
/// concurrent changes to taints are not overwritten.
fn taint_patch(node: &Node, taint: &str) -> Option<Value> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let others: Vec<_> = taints.iter().filter(|found| found.key != taint).collect();
    (others.len() < taints.len()).then(|| {
        json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": others},
        })
    })
}

/// A conflict is not reported: the watch delivers the other change, and the patch is retried.
fn report_patch_error(error: &kube::Error, is_reported: &mut bool) {
    let is_conflict = matches!(error, kube::Error::Api(status) if status.code == 409);
    if !is_conflict && !*is_reported {
        *is_reported = true;
        tracing::warn!(
            error = chain(error),
            "Cannot remove the start-up taint from the node; does the service account have the verb \"patch\" on nodes?"
        );
    }
}

fn report_watch_error(error: &watcher::Error, is_reported: &mut bool) {
    if !*is_reported {
        *is_reported = true;
        tracing::warn!(
            error = chain(error),
            "Cannot watch this node's object; its start-up taint remains meanwhile"
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
    fn only_the_startup_taint_is_removed() {
        let startup = json!({"key": TAINT, "effect": "NoSchedule"});
        let other = json!({"key": "disk", "effect": "NoExecute", "value": "x"});
        assert_eq!(taint_patch(&node(Value::Null), TAINT), None);
        assert_eq!(taint_patch(&node(json!([other])), TAINT), None);
        let patch = taint_patch(&node(json!([startup, other])), TAINT).unwrap();
        assert_eq!(patch["spec"], json!({"taints": [other]}));
        assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
        let patch = taint_patch(&node(json!([startup])), TAINT).unwrap();
        assert_eq!(patch["spec"], json!({"taints": []}));
    }

    #[test]
    fn only_crio_caches_chains() {
        assert!(caches_chains("cri-o://1.30.0"));
        assert!(!caches_chains("containerd://2.3.7"));
    }
}
