//! Determines from the agent's DaemonSet whether the agent is uninstalled or only restarted: the
//! DaemonSet is deleted in the first case and remains in the second. docs/adr/0022 explains how
//! each response of the API server is interpreted.

use std::fmt;
use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, ExponentialBackoff};
use kube::{Api, Client};
use mesh_runtime::log::chain;
use tokio::sync::watch;
use tokio::time::timeout;

/// Limits the last request of an agent that the kubelet is stopping.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Limits the wait for a deletion that the watch has not reported yet.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetRef {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum WatchState {
    #[default]
    NotSeen,
    Present,
    /// Deleted or marked for deletion, and it existed before.
    Deleting,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueryResult {
    Present,
    Deleting,
    Absent,
    /// Request denied, or no response.
    Unknown(String),
}

/// What a stopping agent does with the mesh on its node, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownAction {
    /// Leave everything in place: pods stay redirected, and the next agent adopts them.
    Keep(String),
    Uninstall(String),
}

/// Records the state of the DaemonSet. Never returns.
pub(super) async fn watch(
    client: &Client,
    daemon_set: Option<&DaemonSetRef>,
    state: &watch::Sender<WatchState>,
) {
    let Some(daemon_set) = daemon_set else {
        return std::future::pending().await;
    };
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    let mut stream =
        std::pin::pin!(watcher::watch_object(api, &daemon_set.name).backoff(watch_backoff()));
    let mut is_reported = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(found) => state.send_modify(|state| *state = next_state(state, found.as_ref())),
            Err(error) if !is_reported => {
                is_reported = true;
                tracing::warn!(
                    error = chain(&error),
                    "Cannot watch {daemon_set}; if it is deleted meanwhile, the mesh may stay on this node"
                );
            }
            Err(_) => {}
        }
    }
}

/// From half a second to eight, with jitter. kube's default goes up to a minute: an uninstallation
/// soon after an outage of the API server would be missed, and the mesh would stay on the node.
/// Only one object is watched, so even a thousand agents with this backoff cause little load.
fn watch_backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(4))
        .with_jitter()
        .without_max_times()
        .into()
}

/// Requests the DaemonSet once more and decides.
pub(super) async fn shutdown_action(
    client: Option<&Client>,
    daemon_set: Option<&DaemonSetRef>,
    mut state: watch::Receiver<WatchState>,
) -> ShutdownAction {
    let Some(daemon_set) = daemon_set else {
        return ShutdownAction::Keep("the agent belongs to no DaemonSet".to_owned());
    };
    let result = match client {
        Some(client) => query(client, daemon_set).await,
        None => QueryResult::Unknown("there was no connection to the API server".to_owned()),
    };
    if matches!(result, QueryResult::Unknown(_)) {
        // An uninstallation deletes the roles right after the DaemonSet. The request can be denied
        // before the watch, which is a connection of its own, has reported the deletion. A watch
        // that never saw the DaemonSet will not.
        let deletion = state.wait_for(|state| *state != WatchState::Present);
        timeout(WATCH_TIMEOUT, deletion).await.ok();
    }
    decide(&state.borrow(), &result, daemon_set)
}

async fn query(client: &Client, daemon_set: &DaemonSetRef) -> QueryResult {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    match timeout(QUERY_TIMEOUT, api.get_opt(&daemon_set.name)).await {
        Ok(Ok(Some(found))) if is_deleting(&found) => QueryResult::Deleting,
        Ok(Ok(Some(_))) => QueryResult::Present,
        Ok(Ok(None)) => QueryResult::Absent,
        Ok(Err(error)) => QueryResult::Unknown(chain(&error)),
        Err(_) => QueryResult::Unknown(format!("no response within {QUERY_TIMEOUT:?}")),
    }
}

fn is_deleting(daemon_set: &DaemonSet) -> bool {
    daemon_set.metadata.deletion_timestamp.is_some()
}

fn next_state(previous: &WatchState, found: Option<&DaemonSet>) -> WatchState {
    match found {
        Some(found) if is_deleting(found) => WatchState::Deleting,
        Some(_) => WatchState::Present,
        // A DaemonSet that never existed may belong to another installation, or be misspelt.
        None if *previous == WatchState::NotSeen => WatchState::NotSeen,
        None => WatchState::Deleting,
    }
}

/// The costly error is to uninstall when only a restart was meant: every pod of the node would then
/// be in clear text. The other error leaves a plugin that still works.
fn decide(state: &WatchState, result: &QueryResult, daemon_set: &DaemonSetRef) -> ShutdownAction {
    match (state, result) {
        (_, QueryResult::Present) => ShutdownAction::Keep(format!("{daemon_set} exists")),
        (_, QueryResult::Deleting) => {
            ShutdownAction::Uninstall(format!("{daemon_set} is being deleted"))
        }
        (WatchState::NotSeen, QueryResult::Absent) => ShutdownAction::Keep(format!(
            "{daemon_set} was never seen; check MESH_AGENT_NAMESPACE and MESH_AGENT_DAEMONSET"
        )),
        (_, QueryResult::Absent) => ShutdownAction::Uninstall(format!("{daemon_set} was deleted")),
        (WatchState::Deleting, QueryResult::Unknown(_)) => {
            ShutdownAction::Uninstall(format!("{daemon_set} was deleted"))
        }
        (_, QueryResult::Unknown(why)) => ShutdownAction::Keep(format!(
            "it is unknown whether {daemon_set} still exists ({why}); if the mesh was uninstalled, run mesh-agent uninstall on this node"
        )),
    }
}

impl fmt::Display for DaemonSetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DaemonSet {}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    fn own() -> DaemonSetRef {
        DaemonSetRef {
            namespace: "linkerd".to_owned(),
            name: "mesh-agent".to_owned(),
        }
    }

    fn daemon_set(deleted: Value) -> DaemonSet {
        serde_json::from_value(json!({"metadata": {"name": "a", "deletionTimestamp": deleted}}))
            .unwrap()
    }

    #[test]
    fn watch_state_distinguishes_deleted_from_never_seen() {
        let (present, leaving) = (
            daemon_set(Value::Null),
            daemon_set("2026-01-01T00:00:00Z".into()),
        );
        for (state, found, expected) in [
            (WatchState::NotSeen, None, WatchState::NotSeen),
            (WatchState::NotSeen, Some(&present), WatchState::Present),
            (WatchState::Present, Some(&leaving), WatchState::Deleting),
            (WatchState::Present, None, WatchState::Deleting),
            (WatchState::Deleting, None, WatchState::Deleting),
            // Recreated.
            (WatchState::Deleting, Some(&present), WatchState::Present),
        ] {
            assert_eq!(next_state(&state, found), expected, "{state:?}");
        }
    }

    #[test]
    fn agent_uninstalls_only_after_its_daemon_set_was_deleted() {
        use WatchState::{Deleting, NotSeen, Present};
        let nothing = || QueryResult::Unknown("403 Forbidden".to_owned());
        let table = [
            (NotSeen, QueryResult::Present, false),
            (Present, QueryResult::Present, false),
            (Deleting, QueryResult::Present, false),
            (NotSeen, QueryResult::Deleting, true),
            (Present, QueryResult::Deleting, true),
            (NotSeen, QueryResult::Absent, false),
            (Present, QueryResult::Absent, true),
            (Deleting, QueryResult::Absent, true),
            (NotSeen, nothing(), false),
            (Present, nothing(), false),
            (Deleting, nothing(), true),
        ];
        for (state, result, uninstalls) in table {
            let shutdown_action = decide(&state, &result, &own());
            let found = matches!(shutdown_action, ShutdownAction::Uninstall(_));
            assert_eq!(found, uninstalls, "{state:?} {result:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn denied_agent_waits_for_the_watch_to_report_the_deletion() {
        let denied = tower::service_fn(|_: Request<Body>| async {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(response)
        });
        let client = Client::new(denied, "linkerd");
        for (state, delay, uninstalls) in [
            (WatchState::Present, Duration::ZERO, true),
            (WatchState::Present, WATCH_TIMEOUT / 2, true),
            (WatchState::Present, WATCH_TIMEOUT * 2, false),
            (WatchState::NotSeen, WATCH_TIMEOUT / 2, false),
        ] {
            let (sender, state) = watch::channel(state);
            let own = own();
            let (action, ()) =
                tokio::join!(shutdown_action(Some(&client), Some(&own), state), async {
                    sleep(delay).await;
                    sender.send_replace(WatchState::Deleting);
                });
            let found = matches!(action, ShutdownAction::Uninstall(_));
            assert_eq!(found, uninstalls, "{delay:?} {action:?}");
        }
    }
}
