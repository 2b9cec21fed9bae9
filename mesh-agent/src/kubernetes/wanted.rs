//! Which pods of the node should be enrolled, and when to look at each again. Pure: time comes with
//! each call.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use mesh_core::node::WaitingPod;
use tokio::time::Instant;

use super::meshed_pod::MeshedPod;

/// While a pod's sandbox is coming up, which takes a second or two: what the plugin should do and
/// does not is then made good within a second.
const SOON: Duration = Duration::from_millis(250);
const COMING_UP: Duration = Duration::from_secs(5);
/// For a pod that waits for longer, for a volume perhaps. Each look reads a file of every process
/// of the node.
const WAITING: Duration = Duration::from_secs(1);
/// For a pod whose enrolment failed: what is wrong with it seldom goes away by itself.
const FAILED: Duration = Duration::from_secs(10);
/// For a pod that is enrolled; somebody may un-enrol it by hand.
const ENROLLED: Duration = Duration::from_secs(10);
/// The plugin is given this long before a pod counts as waiting.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// By the API server's UID.
    pods: BTreeMap<String, Entry>,
    /// While a list is being read: the pods in it so far.
    listed: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct Entry {
    pod: MeshedPod,
    /// When its object last said something new.
    changed: Instant,
    due: Instant,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Enrolled,
    /// Since when, and why.
    Missing(Instant, String),
}

impl Wanted {
    pub(super) fn apply(&mut self, event: Event<Pod>, now: Instant) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.listed, &pod.metadata.uid) {
                    listed.insert(uid.clone());
                }
                self.put(pod, now);
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    self.pods.retain(|uid, _| listed.contains(uid));
                }
            }
            Event::Apply(pod) => self.put(pod, now),
            Event::Delete(pod) => {
                self.pods.remove(&pod.metadata.uid.unwrap_or_default());
            }
        }
    }

    fn put(&mut self, pod: Pod, now: Instant) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let Some(pod) = MeshedPod::read(pod) else {
            self.pods.remove(&uid);
            return;
        };
        match self.pods.get_mut(&uid) {
            Some(entry) if entry.pod == pod => {}
            Some(entry) => {
                (entry.changed, entry.due) = (now, now);
                entry.pod = pod;
            }
            None => {
                let entry = Entry {
                    pod,
                    changed: now,
                    due: now,
                    state: State::Unknown,
                };
                self.pods.insert(uid, entry);
            }
        }
    }

    /// When the next pod is to be looked at.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pods.values().map(|entry| entry.due).min()
    }

    pub(super) fn due(&self, now: Instant) -> Vec<MeshedPod> {
        let due = self.pods.values().filter(|entry| entry.due <= now);
        due.map(|entry| entry.pod.clone()).collect()
    }

    pub(super) fn is_enrolled(&mut self, pod: &MeshedPod, now: Instant) {
        if let Some(entry) = self.pods.get_mut(&pod.object_uid) {
            entry.state = State::Enrolled;
            entry.due = now + ENROLLED;
        }
    }

    /// The pod cannot be enrolled yet.
    pub(super) fn waits(&mut self, pod: &MeshedPod, reason: String, now: Instant) {
        if let Some(entry) = self.pods.get_mut(&pod.object_uid) {
            let is_coming_up = now.duration_since(entry.changed) < COMING_UP;
            entry.due = now + if is_coming_up { SOON } else { WAITING };
            entry.miss(reason, now);
        }
    }

    /// The pod's enrolment failed. True when that, or the reason, is new.
    pub(super) fn has_failed(&mut self, pod: &MeshedPod, reason: String, now: Instant) -> bool {
        let Some(entry) = self.pods.get_mut(&pod.object_uid) else {
            return false;
        };
        entry.due = now + FAILED;
        let is_known = matches!(&entry.state, State::Missing(_, known) if *known == reason);
        entry.miss(reason, now);
        !is_known
    }

    /// The pods that are not enrolled, and should be by now.
    pub(super) fn waiting(&self, now: Instant) -> Vec<WaitingPod> {
        let waiting = self.pods.values().filter_map(|entry| match &entry.state {
            State::Missing(since, reason) if now.duration_since(*since) >= PATIENCE => {
                Some(WaitingPod {
                    pod: entry.pod.pod.clone(),
                    reason: reason.clone(),
                })
            }
            _ => None,
        });
        waiting.collect()
    }
}

impl Entry {
    fn miss(&mut self, reason: String, now: Instant) {
        let since = match self.state {
            State::Missing(since, _) => since,
            _ => now,
        };
        self.state = State::Missing(since, reason);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, address: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": name, "uid": format!("uid-of-{name}"),
                "annotations": {"linkerd.io/proxy-version": "x"},
            },
            "spec": {"containers": []},
            "status": {"podIPs": [{"ip": address}]},
        }))
        .unwrap()
    }

    fn names(wanted: &Wanted, now: Instant) -> Vec<String> {
        let due = wanted.due(now);
        due.into_iter().map(|pod| pod.pod.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_replaces_what_was_known() {
        let now = Instant::now();
        let mut wanted = Wanted::default();
        wanted.apply(Event::Apply(pod("old", "10.0.0.1")), now);
        wanted.apply(Event::Init, now);
        wanted.apply(Event::InitApply(pod("a", "10.0.0.2")), now);
        assert_eq!(names(&wanted, now), ["a", "old"]);
        wanted.apply(Event::InitApply(pod("b", "10.0.0.3")), now);
        wanted.apply(Event::InitDone, now);
        assert_eq!(names(&wanted, now), ["a", "b"]);
        wanted.apply(Event::Delete(pod("a", "10.0.0.2")), now);
        let mut plain = pod("b", "10.0.0.3");
        plain.metadata.annotations = None;
        wanted.apply(Event::Apply(plain), now);
        assert_eq!(wanted.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_looked_at_when_it_changes_and_as_often_as_it_needs() {
        let start = Instant::now();
        let mut wanted = Wanted::default();
        wanted.apply(Event::Apply(pod("a", "10.0.0.1")), start);
        let a = wanted.due(start).remove(0);
        let wait = |wanted: &mut Wanted, now: Instant| {
            wanted.waits(&a, "no process".to_owned(), now);
            wanted.next().unwrap() - now
        };
        assert_eq!(wait(&mut wanted, start), SOON);
        assert!(wanted.waiting(start).is_empty(), "it has just come");
        let later = start + COMING_UP;
        assert_eq!(wait(&mut wanted, later), WAITING);
        assert_eq!(wanted.waiting(later)[0].reason, "no process");

        wanted.is_enrolled(&a, later);
        assert_eq!(wanted.next(), Some(later + ENROLLED));
        assert!(wanted.waiting(later).is_empty());
        wanted.apply(Event::Apply(pod("a", "10.0.0.1")), later);
        assert_eq!(wanted.next(), Some(later + ENROLLED), "nothing new");
        wanted.apply(Event::Apply(pod("a", "10.0.0.9")), later);
        assert_eq!(wanted.next(), Some(later));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_news_once() {
        let now = Instant::now();
        let mut wanted = Wanted::default();
        wanted.apply(Event::Apply(pod("a", "10.0.0.1")), now);
        let a = wanted.due(now).remove(0);
        assert!(wanted.has_failed(&a, "x".to_owned(), now));
        assert!(!wanted.has_failed(&a, "x".to_owned(), now));
        assert!(wanted.has_failed(&a, "y".to_owned(), now));
        assert_eq!(wanted.next(), Some(now + FAILED));
        wanted.apply(Event::Delete(pod("a", "10.0.0.1")), now);
        assert!(!wanted.has_failed(&a, "z".to_owned(), now));
    }
}
