//! When a candidate may claim a Lease, and how long its holder may write. Without I/O; a model of
//! the protocol compiles this file too (models/tests/lease.rs).

use std::time::Duration;

use tokio::time::Instant;

/// How long a process remains the holder after a renewal. Candidates of this implementation take
/// over after that time, so that a failed holder is replaced within 15 s.
pub(crate) const HOLD_DURATION: Duration = Duration::from_secs(10);

/// The interval of renewals. Two may fail before leadership ends.
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(3);

/// How often a candidate reads the Lease.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(3);

/// The delay after a failed request.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The maximum duration of one write of a status. A replica may write for 10 s after a renewal of
/// its Lease, and renews it every 3 s. The maximum is less than the remaining 7 s.
pub const MAX_WRITE_DURATION: Duration = Duration::from_secs(6);

/// The fields of a Lease that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) version: Option<String>,
    /// `None` if it is released.
    pub(crate) holder: Option<String>,
    pub(crate) transitions: i32,
    /// How long the holder remains the holder after a renewal.
    pub(crate) hold_duration: Duration,
}

/// A Lease, and since when it is known to be as it is.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) record: Record,
    pub(crate) since: Instant,
    pub(crate) lost: Option<LostHolder>,
}

/// The holder of a newer state that the API server has lost. It writes until it learns that, or
/// until its time is over.
#[derive(Clone, Debug)]
pub(crate) struct LostHolder {
    name: String,
    until: Instant,
}

/// The next step of a candidate or holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Claim,
    /// The Lease is held for this time unless it is renewed.
    Wait(Duration),
}

/// Returns how long the holder may write after a renewal that it sent at this time. No candidate
/// has seen the renewal earlier.
pub(crate) fn held_until(sent: Instant) -> Instant {
    sent + HOLD_DURATION
}

/// Returns whether a process that holds the Lease `until` remains the only writer for this time.
pub(crate) fn lasts(until: Option<Instant>, duration: Duration, now: Instant) -> bool {
    until.is_some_and(|until| now + duration <= until)
}

impl Observation {
    /// Returns the observation of a record at a time. An earlier observation of the same record
    /// continues. A record that is older than the one before comes from an API server with an older
    /// state; its holder is not the one of the newer state.
    pub(crate) fn update(before: Option<Self>, record: Record, now: Instant) -> Self {
        let lost = match before {
            Some(before) if before.record == record => return before,
            Some(before) if record.is_older_than(&before.record) => {
                let until = now + before.record.hold_duration;
                let lost = |name| LostHolder { name, until };
                before.record.holder.map(lost).or(before.lost)
            }
            Some(before) => before.lost,
            None => None,
        };
        Self {
            record,
            since: now,
            lost,
        }
    }

    /// Returns the observation of a Lease that was deleted.
    pub(crate) fn deleted(self, now: Instant) -> Self {
        let record = Record {
            version: None,
            ..self.record.clone()
        };
        Self::update(Some(self), record, now)
    }

    /// Returns how long a process that has read a Lease waits before it creates another one. A
    /// holder may have renewed the Lease just before it was deleted, and may not know of that yet.
    pub(crate) fn creates_in(&self, now: Instant) -> Duration {
        (self.since + self.record.hold_duration).saturating_duration_since(now)
    }

    pub(crate) fn next(&self, claimant: &str, now: Instant) -> Step {
        let held = self.record.holder.as_deref();
        let held = held.map(|name| (name, self.since + self.record.hold_duration));
        let lost = self.lost.as_ref().map(|lost| (&*lost.name, lost.until));
        let others = held.into_iter().chain(lost);
        let others = others.filter(|(name, _)| *name != claimant);
        let remaining = others.map(|(_, until)| until.saturating_duration_since(now));
        match remaining.max().unwrap_or_default() {
            Duration::ZERO => Step::Claim,
            remaining => Step::Wait(remaining),
        }
    }
}

impl Record {
    /// Whether both have versions, which are numbers, and this one is lower.
    fn is_older_than(&self, other: &Self) -> bool {
        let number = |record: &Self| record.version.as_ref()?.parse::<u64>().ok();
        number(self)
            .zip(number(other))
            .is_some_and(|(own, other)| own < other)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn held(version: &str) -> Record {
        Record {
            version: Some(version.to_owned()),
            holder: Some("a".to_owned()),
            transitions: 0,
            hold_duration: HOLD_DURATION,
        }
    }

    #[test]
    fn holder_of_a_lost_state_is_honoured_for_as_long_as_it_declares() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let held = |holder: Option<&str>, version: &str| Record {
            holder: holder.map(str::to_owned),
            ..held(version)
        };
        let newest = Observation::update(None, held(Some("a"), "20"), at(0));
        for old in [Some("b"), None] {
            let restored = Observation::update(Some(newest.clone()), held(old, "5"), at(7));
            // The last renewal may have been later than the one that was seen.
            let wait = |seconds| Step::Wait(Duration::from_secs(seconds));
            assert_eq!(restored.next("b", at(7)), wait(10), "{old:?}");
            assert_eq!(restored.next("b", at(17)), Step::Claim, "{old:?}");
            if old.is_none() {
                assert_eq!(restored.next("a", at(7)), Step::Claim, "its own state");
            }
        }
        // An older record may be from any holder; a newer one is a release.
        let released = Observation::update(Some(newest), held(None, "21"), at(7));
        assert_eq!(released.next("b", at(7)), Step::Claim);
    }

    #[test]
    fn time_counts_from_the_last_seen_change() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
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
