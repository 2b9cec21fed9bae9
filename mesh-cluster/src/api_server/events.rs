//! Kubernetes events about objects.
//!
//! Best effort: an event that cannot be written is counted and dropped, and posting never blocks.
//! Events about one object with the same reason within minutes are merged into one with a count.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use mesh_core::rights::{self, Right};
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::mpsc;

use super::{Rate, RateLimiter, explain};

/// The sender of events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Events {
    events: mpsc::Sender<ObjectEvent>,
    dropped: Counter,
}

/// An event about an object.
#[derive(Debug)]
pub struct ObjectEvent {
    /// Without a namespace, the event is created in `default`.
    pub about: ObjectReference,
    pub severity: Severity,
    /// One word in camel case, for searching.
    pub reason: &'static str,
    /// The action of the controller, one word.
    pub action: &'static str,
    /// The message.
    pub note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// Returns the rights to write events. Repeated events are patched.
pub fn rights() -> impl Iterator<Item = Right> {
    rights::all("events.k8s.io", "events", &["create", "patch"])
}

/// When a whole cluster restarts, the first few hundred events suffice.
const CHANNEL_CAPACITY: usize = 256;

/// Events are stored in etcd for an hour, so their rate is limited.
const RATE: Rate = Rate {
    per_second: 10.0,
    burst: 50,
};

/// The API server rejects longer notes.
const MAX_NOTE_LENGTH: usize = 1024;

impl Events {
    /// Returns the sender and the task that writes events. The task ends when all senders are
    /// dropped.
    pub fn channel(
        client: Client,
        controller: &'static str,
        registry: &Registry,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let family = registry.counter_family(
            "kubernetes_events_total",
            "Events about objects of the cluster, by what became of them",
        );
        let result = |result: &'static str| family.with(&Labels::new().with("result", result));
        let (written, failed, dropped) = (result("written"), result("failed"), result("dropped"));
        let (events, received) = mpsc::channel(CHANNEL_CAPACITY);
        let reporter = Reporter {
            controller: controller.to_owned(),
            // The name of the pod.
            instance: std::env::var("HOSTNAME").ok(),
        };
        let recorder = Recorder::new(client, reporter);
        (
            Self { events, dropped },
            write(received, recorder, written, failed),
        )
    }

    pub fn post(&self, event: ObjectEvent) {
        if self.events.try_send(event).is_err() {
            self.dropped.inc();
        }
    }
}

async fn write(
    mut events: mpsc::Receiver<ObjectEvent>,
    recorder: Recorder,
    written: Counter,
    failed: Counter,
) {
    let limiter = RateLimiter::new(RATE);
    while let Some(event) = events.recv().await {
        // This is the only task that waits, so it never waits longer than for one event.
        limiter.acquire_within(Duration::from_secs(60)).await;
        let kube_event = Event {
            type_: match event.severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: event.reason.to_owned(),
            note: Some(truncated(event.note)),
            action: event.action.to_owned(),
            secondary: None,
        };
        match recorder.publish(&kube_event, &event.about).await {
            Ok(()) => written.inc(),
            Err(error) => {
                failed.inc();
                let error = explain(&error);
                tracing::debug!(reason = event.reason, error, "Cannot write an event");
            }
        }
    }
}

fn truncated(mut note: String) -> String {
    if note.len() > MAX_NOTE_LENGTH {
        note.truncate(note.floor_char_boundary(MAX_NOTE_LENGTH - "…".len()));
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_truncated_between_characters() {
        assert_eq!(truncated("short".to_owned()), "short");
        let long = truncated("ä".repeat(600));
        assert!(
            long.len() <= MAX_NOTE_LENGTH && long.ends_with("ä…"),
            "{long}"
        );
    }
}
