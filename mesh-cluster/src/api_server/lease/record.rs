//! Reads the content of a Lease. Without I/O.

use std::time::Duration;

use mesh_k8s::kinds::Lease;

use super::rules::Record;

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::api_server::lease::rules::{Observation, Step};

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
}
