//! Pods of the node that should be enrolled, and when to check each again. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use mesh_core::node::WaitingPod;
use tokio::time::Instant;

use super::meshed_pod::MeshedPod;

/// While a pod's sandbox starts, which takes a second or two: a pod that the plugin missed is then
/// enrolled within a second.
const STARTUP_INTERVAL: Duration = Duration::from_millis(250);
const STARTUP_PERIOD: Duration = Duration::from_secs(5);
/// For a pod that starts more slowly, for example because of a volume. Each check reads a file of
/// every process of the node.
const WAITING_INTERVAL: Duration = Duration::from_secs(1);
/// For a pod whose enrolment failed: the causes seldom disappear by themselves.
const FAILED_INTERVAL: Duration = Duration::from_secs(10);
/// For an enrolled pod, whose enrolment could be removed manually.
const ENROLLED_INTERVAL: Duration = Duration::from_secs(10);
/// The plugin has this long to enrol a pod before it is reported as waiting.
const REPORT_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct EnrolQueue {
    /// By the UID of the API server's object.
    pods: BTreeMap<String, Entry>,
    /// The UIDs of all objects on the node, also of pods that are not meshed.
    uids: BTreeSet<String>,
    /// While the watcher lists pods: those received so far.
    listed: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct Entry {
    pod: MeshedPod,
    /// When the pod's object last changed.
    changed: Instant,
    due: Instant,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Enrolled,
    /// Not enrolled: since when, and why.
    Missing(Instant, String),
}

impl EnrolQueue {
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
                    self.uids = listed;
                }
            }
            Event::Apply(pod) => self.put(pod, now),
            Event::Delete(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                self.pods.remove(&uid);
                self.uids.remove(&uid);
            }
        }
    }

    fn put(&mut self, pod: Pod, now: Instant) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        self.uids.insert(uid.clone());
        let Some(pod) = MeshedPod::from_pod(pod) else {
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

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.pods.values().map(|entry| entry.due).min()
    }

    pub(super) fn due(&self, now: Instant) -> Vec<MeshedPod> {
        let due = self.pods.values().filter(|entry| entry.due <= now);
        due.map(|entry| entry.pod.clone()).collect()
    }

    /// Returns whether the pod claims to be the static pod with a UID that belongs to an object of
    /// the API server, which no static pod has.
    pub(super) fn is_impostor(&self, pod: &MeshedPod) -> bool {
        let claimed = pod.mirrored_uid.as_ref();
        claimed.is_some_and(|uid| self.uids.contains(uid))
    }

    pub(super) fn mark_enrolled(&mut self, pod: &MeshedPod, now: Instant) {
        if let Some(entry) = self.pods.get_mut(&pod.pod.uid) {
            entry.state = State::Enrolled;
            entry.due = now + ENROLLED_INTERVAL;
        }
    }

    /// The pod cannot be enrolled yet.
    pub(super) fn mark_waiting(&mut self, pod: &MeshedPod, reason: String, now: Instant) {
        if let Some(entry) = self.pods.get_mut(&pod.pod.uid) {
            let is_starting = now.duration_since(entry.changed) < STARTUP_PERIOD;
            entry.due = now
                + if is_starting {
                    STARTUP_INTERVAL
                } else {
                    WAITING_INTERVAL
                };
            entry.set_missing(reason, now);
        }
    }

    /// The pod's enrolment failed. Returns whether that, or the reason, is new.
    pub(super) fn mark_failed(&mut self, pod: &MeshedPod, reason: String, now: Instant) -> bool {
        let Some(entry) = self.pods.get_mut(&pod.pod.uid) else {
            return false;
        };
        entry.due = now + FAILED_INTERVAL;
        let is_known = matches!(&entry.state, State::Missing(_, known) if *known == reason);
        entry.set_missing(reason, now);
        !is_known
    }

    /// Returns the pods that are not enrolled although they should be by now.
    pub(super) fn waiting(&self, now: Instant) -> Vec<WaitingPod> {
        let waiting = self.pods.values().filter_map(|entry| match &entry.state {
            State::Missing(since, reason) if now.duration_since(*since) >= REPORT_DELAY => {
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
    fn set_missing(&mut self, reason: String, now: Instant) {
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

    fn names(queue: &EnrolQueue, now: Instant) -> Vec<String> {
        let due = queue.due(now);
        due.into_iter().map(|pod| pod.pod.name).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn list_replaces_known_pods() {
        let now = Instant::now();
        let mut queue = EnrolQueue::default();
        queue.apply(Event::Apply(pod("old", "10.0.0.1")), now);
        queue.apply(Event::Init, now);
        queue.apply(Event::InitApply(pod("a", "10.0.0.2")), now);
        assert_eq!(names(&queue, now), ["a", "old"]);
        queue.apply(Event::InitApply(pod("b", "10.0.0.3")), now);
        queue.apply(Event::InitDone, now);
        assert_eq!(names(&queue, now), ["a", "b"]);
        queue.apply(Event::Delete(pod("a", "10.0.0.2")), now);
        let mut plain = pod("b", "10.0.0.3");
        plain.metadata.annotations = None;
        queue.apply(Event::Apply(plain), now);
        assert_eq!(queue.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn mirror_of_an_object_is_an_impostor() {
        let now = Instant::now();
        let mut queue = EnrolQueue::default();
        let claims = |uid: &str| {
            let mut pod = pod("impostor", "10.0.0.1");
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.insert("kubernetes.io/config.mirror".to_owned(), uid.to_owned());
            MeshedPod::from_pod(pod).unwrap()
        };
        let mut plain = pod("plain", "10.0.0.2");
        plain.metadata.annotations = None;
        queue.apply(Event::Apply(plain.clone()), now);
        assert!(queue.is_impostor(&claims("uid-of-plain")));
        assert!(!queue.is_impostor(&claims("9c0a2f1d4e5b6a7c8d9e0f1a2b3c4d5e")));
        queue.apply(Event::Delete(plain.clone()), now);
        assert!(!queue.is_impostor(&claims("uid-of-plain")));
        queue.apply(Event::Init, now);
        queue.apply(Event::InitApply(plain), now);
        queue.apply(Event::InitDone, now);
        assert!(queue.is_impostor(&claims("uid-of-plain")));
    }

    #[tokio::test(start_paused = true)]
    async fn check_interval_depends_on_pod_state() {
        let start = Instant::now();
        let mut queue = EnrolQueue::default();
        queue.apply(Event::Apply(pod("a", "10.0.0.1")), start);
        let a = queue.due(start).remove(0);
        let wait = |queue: &mut EnrolQueue, now: Instant| {
            queue.mark_waiting(&a, "no process".to_owned(), now);
            queue.next_due().unwrap() - now
        };
        assert_eq!(wait(&mut queue, start), STARTUP_INTERVAL);
        assert!(queue.waiting(start).is_empty(), "within the report delay");
        let later = start + STARTUP_PERIOD;
        assert_eq!(wait(&mut queue, later), WAITING_INTERVAL);
        assert_eq!(queue.waiting(later)[0].reason, "no process");

        queue.mark_enrolled(&a, later);
        assert_eq!(queue.next_due(), Some(later + ENROLLED_INTERVAL));
        assert!(queue.waiting(later).is_empty());
        queue.apply(Event::Apply(pod("a", "10.0.0.1")), later);
        let unchanged = Some(later + ENROLLED_INTERVAL);
        assert_eq!(queue.next_due(), unchanged);
        queue.apply(Event::Apply(pod("a", "10.0.0.9")), later);
        assert_eq!(queue.next_due(), Some(later));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_is_new_only_once_per_reason() {
        let now = Instant::now();
        let mut queue = EnrolQueue::default();
        queue.apply(Event::Apply(pod("a", "10.0.0.1")), now);
        let a = queue.due(now).remove(0);
        assert!(queue.mark_failed(&a, "x".to_owned(), now));
        assert!(!queue.mark_failed(&a, "x".to_owned(), now));
        assert!(queue.mark_failed(&a, "y".to_owned(), now));
        assert_eq!(queue.next_due(), Some(now + FAILED_INTERVAL));
        queue.apply(Event::Delete(pod("a", "10.0.0.1")), now);
        assert!(!queue.mark_failed(&a, "z".to_owned(), now));
    }
}
