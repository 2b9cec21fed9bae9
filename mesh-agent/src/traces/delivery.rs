//! Gives each decision to the clients that trace its pod, and counts those that are missing.

use std::collections::HashMap;

use mesh_core::node::TraceLine;
use tokio::sync::mpsc;

use crate::ebpf::{TraceLog, TracedDecision};

/// Lines that wait for one client, each about 300 bytes. A connection has three.
const QUEUE_LENGTH: usize = 1_024;

/// What the log of the kernel programs offers; tests have another one.
pub(super) trait Decisions {
    /// Returns the decisions that the log contains, and removes them from it.
    fn take(&mut self) -> Vec<TracedDecision>;
    /// Returns how many decisions about a pod the programs have written to the log, or tried to;
    /// `None` when the pod is not traced any more.
    fn attempts(&self, cookie: u64) -> Option<u64>;
}

impl Decisions for TraceLog {
    fn take(&mut self) -> Vec<TracedDecision> {
        self.read()
    }

    fn attempts(&self, cookie: u64) -> Option<u64> {
        self.attempts(cookie)
    }
}

#[derive(Debug, Default)]
pub(super) struct Delivery {
    pods: HashMap<u64, Pod>,
    last_id: u64,
}

#[derive(Debug, Default)]
struct Pod {
    clients: Vec<Client>,
    /// Whether the programs have been told to report.
    has_begun: bool,
    received: u64,
    /// Missing at the last review. A decision that is being written looks missing until it is read,
    /// so only those that are missing twice are reported.
    suspected: u64,
    reported: u64,
}

#[derive(Debug)]
struct Client {
    id: u64,
    lines: mpsc::Sender<TraceLine>,
    /// Missing, and not reported yet.
    dropped: u64,
}

impl Delivery {
    pub(super) fn clients(&self) -> usize {
        self.pods.values().map(|pod| pod.clients.len()).sum()
    }

    pub(super) fn add(&mut self, cookie: u64) -> (u64, mpsc::Receiver<TraceLine>) {
        let (lines, receiver) = mpsc::channel(QUEUE_LENGTH);
        self.last_id += 1;
        let id = self.last_id;
        let client = Client {
            id,
            lines,
            dropped: 0,
        };
        self.pods.entry(cookie).or_default().clients.push(client);
        (id, receiver)
    }

    /// Records that the programs report the pod's decisions from now on.
    pub(super) fn begin(&mut self, cookie: u64) {
        if let Some(pod) = self.pods.get_mut(&cookie) {
            pod.has_begun = true;
        }
    }

    /// Removes a client; returns whether the pod has no other.
    pub(super) fn remove(&mut self, cookie: u64, id: u64) -> bool {
        let Some(pod) = self.pods.get_mut(&cookie) else {
            return true;
        };
        pod.clients.retain(|client| client.id != id);
        let is_last = pod.clients.is_empty();
        if is_last {
            self.pods.remove(&cookie);
        }
        is_last
    }

    pub(super) fn deliver(&mut self, log: &mut impl Decisions) {
        for decision in log.take() {
            // A pod whose trace has just ended has none.
            if let Some(pod) = self.pods.get_mut(&decision.cookie) {
                pod.received += 1;
                for client in &mut pod.clients {
                    client.send(TraceLine::Event(decision.event.clone()));
                }
            }
        }
    }

    /// Reports missing decisions, and ends the traces of pods that are not traced any more.
    pub(super) fn review(&mut self, log: &mut impl Decisions) {
        let begun = self.pods.iter().filter(|(_, pod)| pod.has_begun);
        // Before the decisions are read, so that none of them is counted and not read.
        let attempts: Vec<(u64, Option<u64>)> = begun
            .map(|(cookie, _)| (*cookie, log.attempts(*cookie)))
            .collect();
        self.deliver(log);
        for (cookie, attempts) in attempts {
            let Some(pod) = self.pods.get_mut(&cookie) else {
                continue;
            };
            match attempts {
                Some(attempts) => pod.report_missing(attempts),
                None => pod.end(
                    "the pod is not enrolled any more, or the kernel programs were loaded again",
                ),
            }
        }
    }

    pub(super) fn end_all(&mut self, reason: &str) {
        for pod in self.pods.values_mut() {
            pod.end(reason);
        }
    }
}

impl Pod {
    fn report_missing(&mut self, attempts: u64) {
        let missing = attempts.saturating_sub(self.received);
        let certain = missing.min(self.suspected);
        self.suspected = missing;
        let new = certain.saturating_sub(self.reported);
        self.reported += new;
        for client in &mut self.clients {
            client.dropped += new;
            client.report_dropped();
        }
    }

    fn end(&self, reason: &str) {
        for client in &self.clients {
            client.end(reason);
        }
    }
}

impl Client {
    fn send(&mut self, line: TraceLine) {
        self.report_dropped();
        if self.lines.try_send(line).is_err() {
            self.dropped += 1;
        }
    }

    fn report_dropped(&mut self) {
        if self.dropped > 0
            && self
                .lines
                .try_send(TraceLine::Dropped(self.dropped))
                .is_ok()
        {
            self.dropped = 0;
        }
    }

    /// Repeated by the next review if the queue is full.
    fn end(&self, reason: &str) {
        let _ = self.lines.try_send(TraceLine::Ended(reason.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::redirection::{Hook, RedirectionEvent};

    use super::*;

    #[derive(Default)]
    struct Log {
        decisions: Vec<TracedDecision>,
        attempts: HashMap<u64, u64>,
    }

    impl Log {
        /// Has the programs decide about a pod; `is_read` is false for a full ring.
        fn decide(&mut self, cookie: u64, count: u64, is_read: bool) {
            *self.attempts.entry(cookie).or_default() += count;
            let decision = TracedDecision {
                cookie,
                event: event(),
            };
            if is_read {
                let decisions = (0..count).map(|_| decision.clone());
                self.decisions.extend(decisions);
            }
        }
    }

    impl Decisions for Log {
        fn take(&mut self) -> Vec<TracedDecision> {
            std::mem::take(&mut self.decisions)
        }

        fn attempts(&self, cookie: u64) -> Option<u64> {
            self.attempts.get(&cookie).copied()
        }
    }

    fn event() -> RedirectionEvent {
        RedirectionEvent {
            monotonic_ns: 1,
            hook: Hook::Connect,
            verdict: "outbound-redirected".to_owned(),
            source: None,
            destination: "192.0.2.1:80".parse().unwrap(),
            redirected_to: None,
        }
    }

    /// Returns a client of a pod that the programs report about.
    fn client(delivery: &mut Delivery, cookie: u64) -> (u64, mpsc::Receiver<TraceLine>) {
        let client = delivery.add(cookie);
        delivery.begin(cookie);
        client
    }

    fn received(lines: &mut mpsc::Receiver<TraceLine>) -> Vec<TraceLine> {
        std::iter::from_fn(|| lines.try_recv().ok()).collect()
    }

    #[test]
    fn decision_reaches_every_client_of_its_pod_and_no_other() {
        let mut delivery = Delivery::default();
        let mut log = Log::default();
        let (first, mut first_lines) = client(&mut delivery, 1);
        let (second, mut second_lines) = client(&mut delivery, 1);
        let (_, mut other_lines) = client(&mut delivery, 2);
        log.decide(1, 1, true);
        log.decide(3, 1, true);
        delivery.deliver(&mut log);
        assert_eq!(received(&mut first_lines), [TraceLine::Event(event())]);
        assert_eq!(received(&mut second_lines), [TraceLine::Event(event())]);
        assert_eq!(received(&mut other_lines), []);
        assert_eq!(delivery.clients(), 3);
        assert!(!delivery.remove(1, first));
        assert!(delivery.remove(1, second));
        assert_eq!(delivery.clients(), 1);
    }

    #[test]
    fn decisions_that_a_full_ring_drops_are_reported_once() {
        let mut delivery = Delivery::default();
        let mut log = Log::default();
        let (_, mut lines) = client(&mut delivery, 1);
        log.decide(1, 2, true);
        log.decide(1, 5, false);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), vec![TraceLine::Event(event()); 2]);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), [TraceLine::Dropped(5)]);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), []);
        log.decide(1, 1, false);
        delivery.review(&mut log);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), [TraceLine::Dropped(1)]);
    }

    #[test]
    fn decision_that_is_read_late_is_not_missing() {
        let mut delivery = Delivery::default();
        let mut log = Log::default();
        let (_, mut lines) = client(&mut delivery, 1);
        log.decide(1, 1, false);
        delivery.review(&mut log);
        log.decide(1, 0, true);
        log.decisions.push(TracedDecision {
            cookie: 1,
            event: event(),
        });
        delivery.review(&mut log);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), [TraceLine::Event(event())]);
    }

    #[test]
    fn client_that_does_not_read_loses_what_its_queue_cannot_hold() {
        let mut delivery = Delivery::default();
        let mut log = Log::default();
        let (_, mut lines) = client(&mut delivery, 1);
        let excess = 10;
        log.decide(1, QUEUE_LENGTH as u64 + excess, true);
        delivery.deliver(&mut log);
        assert_eq!(received(&mut lines).len(), QUEUE_LENGTH);
        delivery.review(&mut log);
        assert_eq!(received(&mut lines), [TraceLine::Dropped(excess)]);
    }

    #[test]
    fn trace_of_a_removed_pod_ends() {
        let mut delivery = Delivery::default();
        let (_, mut lines) = delivery.add(1);
        delivery.review(&mut Log::default());
        assert_eq!(received(&mut lines), [], "it has not begun");
        delivery.begin(1);
        delivery.review(&mut Log::default());
        let ended = received(&mut lines);
        assert!(matches!(&ended[..], [TraceLine::Ended(_)]), "{ended:?}");
    }
}
