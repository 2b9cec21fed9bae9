//! Watches the DaemonSets of agents, and asks for them when the agent stops; [`decision`] tells
//! from them whether the agent is uninstalled. docs/adr/0192 explains how each response of the API
//! server is interpreted.

use std::time::Duration;

use backon::ExponentialBuilder;
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Api, Client};
use mesh_runtime::log::chain;
use tokio::sync::watch;
use tokio::time::timeout;

pub(super) use self::decision::WatchState;
pub use self::decision::{DaemonSetRef, ShutdownAction};
use self::decision::{OwnState, QueryResult, SetState, Sets, decide, label_selector};

mod decision;

/// Limits the last request of an agent that the kubelet is stopping.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Limits the wait for a deletion that the watch has not reported yet.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);

/// The label of a DaemonSet that a chart leaves, for no node, in a former namespace of the agents.
const MOVED: &str = "mesh-agent/moved-to";

/// Records the state of the DaemonSets. Never returns.
pub(super) async fn watch(
    client: &Client,
    daemon_set: Option<&DaemonSetRef>,
    state: &watch::Sender<WatchState>,
) {
    let Some(daemon_set) = daemon_set else {
        return std::future::pending().await;
    };
    let config = watcher::Config {
        label_selector: Some(label_selector()),
        field_selector: Some(daemon_set.field_selector()),
        ..watcher::Config::default()
    };
    let mut stream =
        std::pin::pin!(watcher(Api::all(client.clone()), config).backoff(watch_backoff()));
    let mut is_reported = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => state.send_modify(|state| state.apply(event, daemon_set)),
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
/// Few objects are watched, so even a thousand agents with this backoff cause little load.
fn watch_backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(4))
        .with_jitter()
        .without_max_times()
        .into()
}

/// Requests the DaemonSets once more and decides.
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
        let deletion = state.wait_for(|state| state.own != OwnState::Present);
        timeout(WATCH_TIMEOUT, deletion).await.ok();
    }
    decide(&state.borrow(), &result, daemon_set)
}

async fn query(client: &Client, daemon_set: &DaemonSetRef) -> QueryResult {
    let api: Api<DaemonSet> = Api::all(client.clone());
    let selected = ListParams::default()
        .labels(&label_selector())
        .fields(&daemon_set.field_selector());
    match timeout(QUERY_TIMEOUT, api.list(&selected)).await {
        Ok(Ok(list)) => {
            let mut sets = Sets::default();
            list.items.iter().for_each(|found| insert(&mut sets, found));
            QueryResult::Found(sets)
        }
        Ok(Err(error)) => QueryResult::Unknown(chain(&error)),
        Err(_) => QueryResult::Unknown(format!("no response within {QUERY_TIMEOUT:?}")),
    }
}

impl DaemonSetRef {
    /// A role can restrict requests with this selector to the name.
    fn field_selector(&self) -> String {
        format!("metadata.name={}", self.name)
    }
}

impl WatchState {
    fn apply(&mut self, event: Event<DaemonSet>, own: &DaemonSetRef) {
        match event {
            Event::Init => self.listing = Sets::default(),
            Event::InitApply(found) => insert(&mut self.listing, &found),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                self.see(own, |sets| *sets = listed);
            }
            Event::Apply(found) => self.see(own, |sets| insert(sets, &found)),
            Event::Delete(found) => self.see(own, |sets| sets.remove(namespace(&found))),
        }
    }
}

fn insert(sets: &mut Sets, found: &DaemonSet) {
    sets.insert(namespace(found), state_of(found));
}

fn namespace(found: &DaemonSet) -> &str {
    found.metadata.namespace.as_deref().unwrap_or_default()
}

fn state_of(found: &DaemonSet) -> SetState {
    let metadata = &found.metadata;
    let labels = metadata.labels.as_ref();
    if metadata.deletion_timestamp.is_some() {
        SetState::Deleting
    } else if labels.is_some_and(|labels| labels.contains_key(MOVED)) {
        SetState::Moved
    } else {
        SetState::Present
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use mesh_core::rights;
    use serde_json::json;
    use tokio::time::sleep;

    use super::decision::MAX_SETS;
    use super::*;
    use OwnState::{Deleting, NotSeen, Present};

    const HERE: SetState = SetState::Present;
    const GOING: SetState = SetState::Deleting;

    fn own() -> DaemonSetRef {
        DaemonSetRef {
            namespace: "linkerd".to_owned(),
            name: "mesh-agent".to_owned(),
        }
    }

    fn daemon_set(namespace: &str, state: SetState) -> DaemonSet {
        let deleted = (state == SetState::Deleting).then_some("2026-01-01T00:00:00Z");
        let moved = (state == SetState::Moved).then_some((MOVED, "linkerd-agent"));
        let labels: BTreeMap<_, _> = moved.into_iter().collect();
        serde_json::from_value(json!({
            "metadata": {
                "name": "mesh-agent", "namespace": namespace,
                "deletionTimestamp": deleted, "labels": labels,
            },
        }))
        .unwrap()
    }

    fn sets(all: &[(&str, SetState)]) -> Sets {
        let mut sets = Sets::default();
        for (namespace, state) in all {
            sets.insert(namespace, *state);
        }
        sets
    }

    fn state(own: OwnState, sets: Sets) -> WatchState {
        WatchState {
            own,
            sets,
            listing: Sets::default(),
        }
    }

    fn uninstalls(action: &ShutdownAction) -> bool {
        matches!(action, ShutdownAction::Uninstall(_))
    }

    #[test]
    fn watch_state_distinguishes_deleted_from_never_seen() {
        let (present, leaving) = (daemon_set("linkerd", HERE), daemon_set("linkerd", GOING));
        let moved = daemon_set("linkerd", SetState::Moved);
        let deleted = || Event::Delete(present.clone());
        for (before, event, expected) in [
            (NotSeen, Event::InitDone, NotSeen),
            (NotSeen, Event::Apply(daemon_set("other", HERE)), NotSeen),
            (NotSeen, Event::Apply(present.clone()), Present),
            (Present, Event::Apply(leaving), Deleting),
            (Present, deleted(), Deleting),
            (Present, Event::Apply(moved), Present),
            (Present, Event::Delete(daemon_set("other", HERE)), Present),
            (Deleting, Event::InitDone, Deleting),
            // Recreated.
            (Deleting, Event::Apply(present.clone()), Present),
        ] {
            let known = if before == Present {
                &[("linkerd", HERE)][..]
            } else {
                &[]
            };
            let mut state = state(before, sets(known));
            state.apply(event, &own());
            assert_eq!(state.own, expected, "{before:?}");
        }
    }

    #[test]
    fn repeated_list_has_an_effect_when_it_is_complete() {
        let all = [("linkerd", GOING), ("linkerd-agent", HERE)];
        let mut found = state(Deleting, sets(&all));
        let events = [
            Event::Init,
            Event::InitApply(daemon_set("linkerd-agent", HERE)),
        ];
        for event in events {
            found.apply(event, &own());
            assert_eq!(found.sets, sets(&all));
        }
        found.apply(Event::InitDone, &own());
        assert_eq!(found, state(Deleting, sets(&all[1..])));
    }

    #[test]
    fn agent_uninstalls_only_after_its_daemon_set_was_deleted() {
        let nothing = || QueryResult::Unknown("403 Forbidden".to_owned());
        let present = || QueryResult::Found(sets(&[("linkerd", HERE)]));
        let moved = || QueryResult::Found(sets(&[("linkerd", SetState::Moved)]));
        let deleting = || QueryResult::Found(sets(&[("linkerd", GOING)]));
        let absent = || QueryResult::Found(Sets::default());
        let table = [
            (NotSeen, present(), false),
            (Present, present(), false),
            (Deleting, present(), false),
            (Present, moved(), false),
            (NotSeen, moved(), false),
            (NotSeen, deleting(), true),
            (Present, deleting(), true),
            (NotSeen, absent(), false),
            (Present, absent(), true),
            (Deleting, absent(), true),
            (NotSeen, nothing(), false),
            (Present, nothing(), false),
            (Deleting, nothing(), true),
        ];
        for (own_state, result, expected) in table {
            let action = decide(&state(own_state, Sets::default()), &result, &own());
            assert_eq!(uninstalls(&action), expected, "{own_state:?} {result:?}");
        }
    }

    /// What `helm upgrade` does when the agents get a namespace of their own: it creates their new
    /// DaemonSet, then deletes account, roles and the old DaemonSet.
    #[test]
    fn agent_with_a_successor_keeps_the_mesh() {
        let denied = QueryResult::Unknown("401 Unauthorized".to_owned());
        let found = |all: &[_]| QueryResult::Found(sets(all));
        for (successors, result, expected) in [
            (&[("linkerd-agent", HERE)][..], &denied, false),
            (&[("linkerd-agent", GOING)], &denied, true),
            (&[("former", SetState::Moved)], &denied, true),
            (&[], &denied, true),
            (&[], &found(&[("linkerd-agent", HERE)]), false),
            (
                &[],
                &found(&[("linkerd", GOING), ("linkerd-agent", HERE)]),
                false,
            ),
            (
                &[],
                &found(&[("linkerd", GOING), ("linkerd-agent", GOING)]),
                true,
            ),
            // The response is newer than the watch.
            (&[("linkerd-agent", HERE)], &found(&[]), true),
        ] {
            let mut state = state(Present, sets(&[("linkerd", HERE)]));
            for (namespace, found) in successors {
                state.apply(Event::Apply(daemon_set(namespace, *found)), &own());
            }
            state.apply(Event::Delete(daemon_set("linkerd", HERE)), &own());
            let action = decide(&state, result, &own());
            assert_eq!(uninstalls(&action), expected, "{successors:?} {result:?}");
        }
    }

    #[test]
    fn agent_keeps_the_mesh_when_not_all_daemon_sets_fit() {
        let namespaces: Vec<String> = (0..=MAX_SETS).map(|number| format!("n{number}")).collect();
        let all: Vec<_> = namespaces
            .iter()
            .map(|name| (name.as_str(), GOING))
            .collect();
        let own_was_seen = state(Present, Sets::default());
        for (all, expected) in [(&all[1..], true), (&all, false)] {
            let sets = sets(all);
            assert_eq!(sets.len(), MAX_SETS);
            let action = decide(&own_was_seen, &QueryResult::Found(sets), &own());
            assert_eq!(uninstalls(&action), expected, "{action:?}");
        }
    }

    /// The role is restricted to the name for these requests.
    #[tokio::test(start_paused = true)]
    async fn requests_name_the_daemon_set_and_find_its_successor() {
        let rights: Arc<[_]> = super::super::rights::of_agent().into();
        let items = json!([
            daemon_set("linkerd", GOING),
            daemon_set("linkerd-agent", HERE)
        ]);
        let api_server = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let asked = (
                request.method().as_str(),
                request.uri().path(),
                query.as_str(),
            );
            assert_eq!(asked.1, "/apis/apps/v1/daemonsets");
            rights::check("mesh-agent", &rights, asked).unwrap();
            for selector in [
                "fieldSelector=metadata.name%3Dmesh-agent",
                "labelSelector=linkerd.io%2Fcontrol-plane-component%3Dmesh-agent",
            ] {
                assert!(query.contains(selector), "{query}");
            }
            let list = json!({
                "apiVersion": "apps/v1", "kind": "DaemonSetList",
                "metadata": {"resourceVersion": "7"}, "items": items,
            });
            async move {
                if query.contains("watch=") {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let client = Client::new(api_server, "linkerd");
        let (own, all) = (own(), sets(&[("linkerd", GOING), ("linkerd-agent", HERE)]));
        assert_eq!(query(&client, &own).await, QueryResult::Found(all.clone()));
        let (sender, mut receiver) = watch::channel(WatchState::default());
        tokio::select! {
            () = watch(&client, Some(&own), &sender) => {}
            seen = receiver.wait_for(|state| state.own == Deleting) => {
                assert_eq!(seen.unwrap().sets, all);
            }
        }
        let action = shutdown_action(Some(&client), Some(&own), receiver).await;
        let expected = "DaemonSet linkerd/mesh-agent is being deleted, and DaemonSet linkerd-agent/mesh-agent replaces it";
        assert_eq!(action, ShutdownAction::Keep(expected.to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn denied_agent_waits_for_the_watch_to_report_the_deletion() {
        let denied = tower::service_fn(|_: Request<Body>| async {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok::<_, Infallible>(response)
        });
        let client = Client::new(denied, "linkerd");
        for (before, delay, expected) in [
            (Present, Duration::ZERO, true),
            (Present, WATCH_TIMEOUT / 2, true),
            (Present, WATCH_TIMEOUT * 2, false),
            (NotSeen, WATCH_TIMEOUT / 2, false),
        ] {
            let (sender, receiver) = watch::channel(state(before, Sets::default()));
            let own = own();
            let (action, ()) = tokio::join!(
                shutdown_action(Some(&client), Some(&own), receiver),
                async {
                    sleep(delay).await;
                    sender.send_modify(|state| state.own = Deleting);
                }
            );
            assert_eq!(uninstalls(&action), expected, "{delay:?} {action:?}");
        }
    }
}
