//! Is the agent being uninstalled, or only restarted? Its DaemonSet tells: it is gone, or going, in
//! the first case and stays in the second. Why each answer of the API server means what it means
//! here: docs/adr/0022.

use std::{fmt, time::Duration};

use backon::ExponentialBuilder;
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, ExponentialBackoff},
    },
};
use mesh_runtime::log::chain;
use tokio::{sync::watch, time::timeout};

/// The kubelet has told the agent to stop; what can be asked within this is asked.
const LAST_QUESTION: Duration = Duration::from_secs(3);

/// The DaemonSet that the agent's pod belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetRef {
    pub namespace: String,
    pub name: String,
}

/// What the watch saw of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Seen {
    #[default]
    Never,
    Present,
    /// Gone, or marked for deletion, and it was there before.
    Leaving,
}

/// What one last question was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Present,
    Leaving,
    Absent,
    /// Refused, or no answer at all.
    Nothing(String),
}

/// What is to be done with the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Leave everything in place: pods stay redirected, and the next agent takes over.
    Stay(String),
    /// Remove everything.
    Leave(String),
}

/// Notes what happens to the DaemonSet. Never returns.
pub(super) async fn watch(
    client: &Client,
    daemon_set: Option<&DaemonSetRef>,
    seen: &watch::Sender<Seen>,
) {
    let Some(daemon_set) = daemon_set else {
        return std::future::pending().await;
    };
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    let mut stream =
        std::pin::pin!(watcher::watch_object(api, &daemon_set.name).backoff(patience()));
    let mut has_complained = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(found) => seen.send_modify(|seen| *seen = next(seen, found.as_ref())),
            Err(error) if !has_complained => {
                has_complained = true;
                tracing::warn!(
                    error = chain(&error),
                    "Cannot watch {daemon_set}; if it is deleted meanwhile, the mesh may stay on this node"
                );
            }
            Err(_) => {}
        }
    }
}

/// From half a second to eight, with jitter. kube's own goes up to a minute: an uninstall that
/// follows soon on an absence of the API server would be missed, and the mesh would stay on the
/// node. A single object is watched, so that even a thousand agents that ask this often are a small
/// burden.
fn patience() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(4))
        .with_jitter()
        .without_max_times()
        .into()
}

/// Asks once more and decides.
pub(super) async fn departure(
    client: Option<&Client>,
    daemon_set: Option<&DaemonSetRef>,
    seen: &Seen,
) -> Departure {
    let Some(daemon_set) = daemon_set else {
        return Departure::Stay("it belongs to no DaemonSet".to_owned());
    };
    let told = match client {
        Some(client) => ask(client, daemon_set).await,
        None => Told::Nothing("there was no connection to the API server".to_owned()),
    };
    decide(seen, &told, daemon_set)
}

async fn ask(client: &Client, daemon_set: &DaemonSetRef) -> Told {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &daemon_set.namespace);
    match timeout(LAST_QUESTION, api.get_opt(&daemon_set.name)).await {
        Ok(Ok(Some(found))) if is_leaving(&found) => Told::Leaving,
        Ok(Ok(Some(_))) => Told::Present,
        Ok(Ok(None)) => Told::Absent,
        Ok(Err(error)) => Told::Nothing(chain(&error)),
        Err(_) => Told::Nothing(format!("no answer within {LAST_QUESTION:?}")),
    }
}

fn is_leaving(daemon_set: &DaemonSet) -> bool {
    daemon_set.metadata.deletion_timestamp.is_some()
}

fn next(before: &Seen, found: Option<&DaemonSet>) -> Seen {
    match found {
        Some(found) if is_leaving(found) => Seen::Leaving,
        Some(_) => Seen::Present,
        // One that never was is another's, or misspelt.
        None if *before == Seen::Never => Seen::Never,
        None => Seen::Leaving,
    }
}

/// The mistake to avoid is to leave when only a restart was meant: every pod of the node would be
/// in the clear. The other mistake leaves a plugin that still works.
fn decide(seen: &Seen, told: &Told, daemon_set: &DaemonSetRef) -> Departure {
    match (seen, told) {
        (_, Told::Present) => Departure::Stay(format!("{daemon_set} is there")),
        (_, Told::Leaving) => Departure::Leave(format!("{daemon_set} is being deleted")),
        (Seen::Never, Told::Absent) => Departure::Stay(format!(
            "{daemon_set} was never seen; check MESH_AGENT_NAMESPACE and MESH_AGENT_DAEMONSET"
        )),
        (_, Told::Absent) => Departure::Leave(format!("{daemon_set} was deleted")),
        (Seen::Leaving, Told::Nothing(_)) => Departure::Leave(format!("{daemon_set} was deleted")),
        (_, Told::Nothing(why)) => Departure::Stay(format!(
            "it is not known whether {daemon_set} is still there ({why}); if the mesh was uninstalled, run mesh-agent uninstall on this node"
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
    use serde_json::{Value, json};

    use super::*;

    fn daemon_set(deleted: Value) -> DaemonSet {
        serde_json::from_value(json!({"metadata": {"name": "a", "deletionTimestamp": deleted}}))
            .unwrap()
    }

    #[test]
    fn the_watch_remembers_whether_it_was_ever_there() {
        let (present, leaving) = (
            daemon_set(Value::Null),
            daemon_set("2026-01-01T00:00:00Z".into()),
        );
        assert_eq!(next(&Seen::Never, None), Seen::Never);
        assert_eq!(next(&Seen::Never, Some(&present)), Seen::Present);
        assert_eq!(next(&Seen::Present, Some(&leaving)), Seen::Leaving);
        assert_eq!(next(&Seen::Present, None), Seen::Leaving);
        assert_eq!(next(&Seen::Leaving, None), Seen::Leaving);
        assert_eq!(
            next(&Seen::Leaving, Some(&present)),
            Seen::Present,
            "made anew"
        );
    }

    #[test]
    fn only_a_daemon_set_that_was_there_and_is_gone_ends_the_mesh() {
        use Seen::{Leaving, Never, Present};
        let nothing = || Told::Nothing("403 Forbidden".to_owned());
        let own = DaemonSetRef {
            namespace: "linkerd".to_owned(),
            name: "mesh-agent".to_owned(),
        };
        let table = [
            (Never, Told::Present, false),
            (Present, Told::Present, false),
            (Leaving, Told::Present, false),
            (Never, Told::Leaving, true),
            (Present, Told::Leaving, true),
            (Never, Told::Absent, false),
            (Present, Told::Absent, true),
            (Leaving, Told::Absent, true),
            (Never, nothing(), false),
            (Present, nothing(), false),
            (Leaving, nothing(), true),
        ];
        for (seen, told, leaves) in table {
            let departure = decide(&seen, &told, &own);
            let found = matches!(departure, Departure::Leave(_));
            assert_eq!(found, leaves, "{seen:?} {told:?}: {departure:?}");
        }
    }
}
