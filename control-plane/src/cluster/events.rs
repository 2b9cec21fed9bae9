//! Kubernetes events, which tell people what happened to an object.
//!
//! Best effort: an event that cannot be written is counted and forgotten, and nobody ever waits for
//! one. Events about one object with one reason that follow each other within minutes become one
//! with a count.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use mesh_runtime::metrics::{Counter, Labels, Registry};
use tokio::sync::mpsc;

use super::{Pace, Rate, explain};

/// Where to post events. Clones post to the same place.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    postings: mpsc::Sender<Posting>,
    dropped: Counter,
}

/// One event.
#[derive(Debug)]
pub(crate) struct Posting {
    /// With namespace, or it stands in `default`.
    pub(crate) about: ObjectReference,
    pub(crate) severity: Severity,
    /// One word, by which people search.
    pub(crate) reason: &'static str,
    /// What we were doing, one word.
    pub(crate) action: &'static str,
    /// For reading.
    pub(crate) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// Events wait here for their turn. When a whole cluster restarts, the first few hundred tell what
/// there is to tell.
const CHANNEL_CAPACITY: usize = 256;

/// Events end up in etcd and are kept for an hour; this is what a controller may fill it with.
const RATE: Rate = Rate {
    per_second: 10.0,
    burst: 50,
};

/// The API server refuses longer notes.
const LONGEST_NOTE: usize = 1024;

impl Events {
    /// Where to post, and the task that writes; it ends when nobody can post any more.
    pub(crate) fn of(
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
        let (postings, received) = mpsc::channel(CHANNEL_CAPACITY);
        let reporter = Reporter {
            controller: controller.to_owned(),
            // The pod's name.
            instance: std::env::var("HOSTNAME").ok(),
        };
        let recorder = Recorder::new(client, reporter);
        (
            Self { postings, dropped },
            write(received, recorder, written, failed),
        )
    }

    pub(crate) fn post(&self, posting: Posting) {
        if self.postings.try_send(posting).is_err() {
            self.dropped.inc();
        }
    }
}

async fn write(
    mut postings: mpsc::Receiver<Posting>,
    recorder: Recorder,
    written: Counter,
    failed: Counter,
) {
    let pace = Pace::new(RATE);
    while let Some(posting) = postings.recv().await {
        // One task waits for one turn at a time, which is never further away than this.
        pace.turn_within(Duration::from_secs(60)).await;
        let event = Event {
            type_: match posting.severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: posting.reason.to_owned(),
            note: Some(shortened(posting.note)),
            action: posting.action.to_owned(),
            secondary: None,
        };
        match recorder.publish(&event, &posting.about).await {
            Ok(()) => written.inc(),
            Err(error) => {
                failed.inc();
                let error = explain(&error);
                tracing::debug!(reason = posting.reason, error, "Cannot write an event");
            }
        }
    }
}

fn shortened(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE - "…".len())
            .rev()
            .find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        let long = shortened("ä".repeat(600));
        assert!(long.len() <= LONGEST_NOTE && long.ends_with("ä…"), "{long}");
    }
}
