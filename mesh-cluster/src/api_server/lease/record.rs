//! The content of a Lease, and when a candidate may claim it. Without I/O.

use std::time::Duration;

use mesh_k8s::kinds::Lease;
use tokio::time::Instant;

/// The fields of a Lease that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) version: Option<String>,
    /// `None` if it is released.
    pub(super) holder: Option<String>,
    pub(super) transitions: i32,
    /// How long the holder remains the holder after a renewal.
    hold_duration: Duration,
}

/// A Lease, and since when it is known to be as it is.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) record: Record,
    since: Instant,
}

/// The next step of a candidate or holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Claim,
    /// The Lease is held for this time unless it is renewed.
    Wait(Duration),
}

/// A holder of this implementation declares a shorter time than the duration of the Lease by this
/// annotation. It contains the holder's name, because Linkerd's controllers do not remove it when
/// they take the Lease over.
const HOLDS_FOR: &str = "mesh-controller/holds-for-seconds";

/// Linkerd's duration, for a Lease that declares none.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);

/// A Lease with a longer duration would prevent all writes for longer if its holder has failed.
const MAX_DURATION: Duration = Duration::from_secs(300);

/// Returns the annotation of a holder.
pub(super) fn holds_for(holder: &str, duration: Duration) -> (&'static str, String) {
    (HOLDS_FOR, format!("{holder} {}", duration.as_secs()))
}

impl Record {
    pub(super) fn read(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        let annotations = lease.metadata.annotations.as_ref();
        let declared = annotations
            .and_then(|annotations| annotations.get(HOLDS_FOR)?.rsplit_once(' '))
            .filter(|(by, _)| holder.as_deref() == Some(*by))
            .and_then(|(_, seconds)| seconds.parse().ok())
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs);
        let duration = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(DEFAULT_DURATION, Duration::from_secs)
            .min(MAX_DURATION);
        Self {
            version: lease.metadata.resource_version.clone(),
            holder,
            transitions: spec.lease_transitions.unwrap_or_default(),
            hold_duration: declared.map_or(duration, |declared| declared.min(duration)),
        }
    }
}

impl Observation {
    /// Returns the observation of a record at a time. An earlier observation of the same record
    /// continues.
    pub(super) fn update(before: Option<Self>, record: Record, now: Instant) -> Self {
        match before {
            Some(before) if before.record == record => before,
            _ => Self { record, since: now },
        }
    }

    pub(super) fn next(&self, claimant: &str, now: Instant) -> Step {
        let free = match &self.record.holder {
            None => return Step::Claim,
            Some(holder) if holder == claimant => return Step::Claim,
            Some(_) => self.since + self.record.hold_duration,
        };
        match free.saturating_duration_since(now) {
            Duration::ZERO => Step::Claim,
            remaining => Step::Wait(remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn record(spec: Value, annotation: &str) -> Record {
        let lease = json!({
            "metadata": { "resourceVersion": "3", "annotations": { HOLDS_FOR: annotation } },
            "spec": spec,
        });
        Record::read(&serde_json::from_value(lease).unwrap())
    }

    fn wait(record: Record) -> Step {
        let now = Instant::now();
        Observation::update(None, record, now).next("me", now)
    }

    #[test]
    fn free_or_own_lease_is_claimed_at_once() {
        for spec in [
            json!({}),
            json!({ "holderIdentity": "" }),
            json!({ "holderIdentity": null, "leaseDurationSeconds": 30 }),
            json!({ "holderIdentity": "me", "leaseDurationSeconds": 30 }),
        ] {
            assert_eq!(wait(record(spec, "")), Step::Claim);
        }
    }

    #[test]
    fn lease_of_another_holder_is_honoured_for_as_long_as_it_declares() {
        let seconds = |seconds| Step::Wait(Duration::from_secs(seconds));
        let held =
            |duration: i64| json!({ "holderIdentity": "a b", "leaseDurationSeconds": duration });
        for (spec, annotation, expect) in [
            (json!({ "holderIdentity": "a b" }), "", seconds(30)),
            (held(30), "", seconds(30)),
            (held(12), "", seconds(12)),
            (held(30), "a b 10", seconds(10)),
            // Left by a holder before this one.
            (held(30), "c 10", seconds(30)),
            (held(30), "10", seconds(30)),
            (held(30), "a b ten", seconds(30)),
            (held(30), "a b 0", seconds(30)),
            (held(30), "a b -5", seconds(30)),
            (held(30), "a b 99", seconds(30)),
            (held(i64::from(i32::MAX)), "", seconds(300)),
            (held(-1), "", seconds(30)),
        ] {
            assert_eq!(wait(record(spec, annotation)), expect, "{annotation}");
        }
    }

    #[test]
    fn time_counts_from_the_last_seen_change() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = |renewed: &str| {
            let mut record = record(json!({ "holderIdentity": "a" }), "a 10");
            record.version = Some(renewed.to_owned());
            record
        };
        let first = Observation::update(None, held("1"), at(0));
        let same = Observation::update(Some(first), held("1"), at(6));
        assert_eq!(same.next("b", at(6)), Step::Wait(Duration::from_secs(4)));
        let renewed = Observation::update(Some(same), held("2"), at(9));
        assert_eq!(
            renewed.next("b", at(10)),
            Step::Wait(Duration::from_secs(9))
        );
        assert_eq!(renewed.next("b", at(19)), Step::Claim);
    }
}
