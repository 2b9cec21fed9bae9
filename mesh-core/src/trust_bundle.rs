//! Trust anchors with numbers: how the identity service numbers a change, and which anchors a proxy
//! takes from it (docs/adr/0173). Foreign trust domains have the number of the bundle that they are
//! part of (docs/adr/0228), and so has the list of denied identities (docs/adr/0231).

use std::cmp::Ordering;
use std::time::SystemTime;

use crate::deny_list::DenyList;
use crate::trust_domain::ForeignAnchors;

/// The trust anchors of the mesh. A higher number replaces a lower one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrustBundle {
    /// Not 0. Increases with each change, across restarts and replicas of the identity service.
    pub number: u64,
    /// In PEM.
    pub anchors: String,
    /// The anchors of foreign trust domains, each valid for its names only.
    pub foreign: ForeignAnchors,
    /// `None` if the identity service does not know of denied identities, as an earlier version:
    /// proxies keep their last list.
    pub denied: Option<DenyList>,
}

/// What a replica of the identity service does with the anchors that it has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishStep {
    /// Sends the bundle of the record.
    Send(TrustBundle),
    /// Replaces the record by this bundle, and sends it if that succeeded.
    Write(TrustBundle),
    /// The files of this process and the source differ. One of them is about to change.
    Wait,
}

/// Why a proxy refuses a bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleRefusal {
    /// A replica with an earlier bundle, or a service that was restored from a backup, sent it.
    #[error("its number {number} is lower than {current}, the number of the anchors in use")]
    Outdated {
        /// The number of the refused bundle.
        number: u64,
        /// The number of the bundle in use.
        current: u64,
    },
    /// Two bundles have this number.
    #[error("it has the number {0} of the anchors in use, but is not the same")]
    Ambiguous(u64),
}

impl TrustBundle {
    /// Returns the bundle with other anchors that follows `last`. Its number is at least the time
    /// in seconds, so that it also increases when the last one is lost.
    pub fn following(
        last: Option<&Self>,
        anchors: &str,
        foreign: &ForeignAnchors,
        denied: Option<&DenyList>,
        now: SystemTime,
    ) -> Self {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since_1970.map_or(1, |since| since.as_secs());
        let least = last.map_or(1, |last| last.number.saturating_add(1));
        Self {
            number: least.max(seconds),
            anchors: anchors.to_owned(),
            foreign: foreign.clone(),
            denied: denied.cloned(),
        }
    }

    /// Returns whether the bundle replaces the one in use; false if they are the same. `None` are
    /// the anchors of a proxy's environment. During an update an earlier version of the identity
    /// service sends the bundle of a number without its list of denied identities.
    ///
    /// # Errors
    ///
    /// The bundle has a lower number, or other anchors with the same number.
    pub fn replaces(&self, current: Option<&Self>) -> Result<bool, BundleRefusal> {
        let Some(current) = current else {
            return Ok(true);
        };
        match self.number.cmp(&current.number) {
            Ordering::Greater => Ok(true),
            Ordering::Equal if self == current => Ok(false),
            Ordering::Equal if self.differs_by_unknown_list(current) => {
                Ok(current.denied.is_none())
            }
            Ordering::Equal => Err(BundleRefusal::Ambiguous(self.number)),
            Ordering::Less => Err(BundleRefusal::Outdated {
                number: self.number,
                current: current.number,
            }),
        }
    }

    fn differs_by_unknown_list(&self, other: &Self) -> bool {
        let is_unknown = self.denied.is_none() || other.denied.is_none();
        is_unknown && self.anchors == other.anchors && self.foreign == other.foreign
    }
}

/// Decides how the anchors are numbered. `last` is the bundle of the record, and `source` the
/// anchors of the object that operators write, which must be read after the record. `verified` are
/// the anchors in the files of this process, which it has verified with its issuer. So a replica
/// whose files are late writes nothing, and one that writes has read a source at least as new as
/// the record. `foreign` are the anchors of the foreign trust domains that are trusted now, and
/// `denied` are the identities that are denied now; `None` if that is unknown.
pub fn publish_step(
    last: Option<TrustBundle>,
    source: Option<&str>,
    verified: &str,
    foreign: &ForeignAnchors,
    denied: Option<&DenyList>,
    now: SystemTime,
) -> PublishStep {
    let recorded = last.as_ref().map(|last| last.anchors.as_str());
    let anchors = source.filter(|source| *source == verified).or(recorded);
    let recorded_list = last.as_ref().and_then(|last| last.denied.as_ref());
    let denied = denied.or(recorded_list);
    let is_recorded = |last: &TrustBundle, anchors: &str| {
        last.anchors == anchors && last.foreign == *foreign && last.denied.as_ref() == denied
    };
    let next = match (anchors, &last) {
        (None, _) => return PublishStep::Wait,
        (Some(anchors), Some(last)) if is_recorded(last, anchors) => None,
        (Some(anchors), last) => {
            let last = last.as_ref();
            Some(TrustBundle::following(last, anchors, foreign, denied, now))
        }
    };
    match (next, last) {
        (Some(next), _) => PublishStep::Write(next),
        (None, last) => last.map_or(PublishStep::Wait, PublishStep::Send),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn bundle(number: u64, anchors: &str) -> TrustBundle {
        TrustBundle {
            number,
            anchors: anchors.to_owned(),
            foreign: ForeignAnchors::new(),
            denied: None,
        }
    }

    fn west(anchors: &str) -> ForeignAnchors {
        [("west.example".to_owned(), anchors.to_owned())].into()
    }

    #[test]
    fn changed_anchors_get_the_next_number_once_files_and_source_agree() {
        let recorded = || Some(bundle(NOW, "one"));
        let future = || Some(bundle(NOW + 900, "one"));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let write = |number, anchors| PublishStep::Write(bundle(number, anchors));
        let send = PublishStep::Send(bundle(NOW, "one"));
        for (last, source, verified, expected) in [
            // The first bundle.
            (None, Some("one"), "one", write(NOW, "one")),
            (None, Some("two"), "one", PublishStep::Wait),
            (None, None, "one", PublishStep::Wait),
            (recorded(), Some("one"), "one", send.clone()),
            // The volume of this replica is late, or only this replica has the change so far.
            (recorded(), Some("two"), "one", send.clone()),
            (recorded(), Some("one"), "two", send),
            // At the same second, and with a record from the future.
            (recorded(), Some("two"), "two", write(NOW + 1, "two")),
            (future(), Some("two"), "two", write(NOW + 901, "two")),
        ] {
            let none = ForeignAnchors::new();
            let step = publish_step(last, source, verified, &none, None, now);
            assert_eq!(step, expected);
        }
    }

    #[test]
    fn changed_foreign_anchors_get_the_next_number_with_the_recorded_own_ones() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let with = |number, anchors, foreign| TrustBundle {
            foreign,
            ..bundle(number, anchors)
        };
        let step = |last, source, verified, foreign: &ForeignAnchors| {
            publish_step(last, Some(source), verified, foreign, None, now)
        };
        let none = ForeignAnchors::new();
        let before = || Some(with(NOW, "one", west("a")));
        for (source, verified, foreign, expected) in [
            (
                "one",
                "one",
                west("a"),
                PublishStep::Send(with(NOW, "one", west("a"))),
            ),
            (
                "one",
                "one",
                west("b"),
                PublishStep::Write(with(NOW + 1, "one", west("b"))),
            ),
            (
                "one",
                "one",
                none.clone(),
                PublishStep::Write(bundle(NOW + 1, "one")),
            ),
            // The files of this replica are late.
            (
                "two",
                "one",
                west("b"),
                PublishStep::Write(with(NOW + 1, "one", west("b"))),
            ),
            (
                "two",
                "two",
                west("b"),
                PublishStep::Write(with(NOW + 1, "two", west("b"))),
            ),
        ] {
            assert_eq!(step(before(), source, verified, &foreign), expected);
        }
        assert_eq!(step(None, "two", "one", &west("a")), PublishStep::Wait);
    }

    #[test]
    fn changed_list_of_denied_identities_gets_the_next_number_and_an_unknown_one_changes_nothing() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let with = |number, anchors, denied: Option<&DenyList>| TrustBundle {
            denied: denied.cloned(),
            ..bundle(number, anchors)
        };
        let (none, web) = (DenyList::default(), DenyList::parse(["web.test"]).unwrap());
        for (recorded, source, denied, expected) in [
            (None, "one", Some(&none), Some(&none)),
            (Some(&web), "one", Some(&none), Some(&none)),
            (Some(&none), "one", Some(&web), Some(&web)),
            // The object cannot be read, and the anchors change.
            (Some(&web), "two", None, Some(&web)),
        ] {
            let last = Some(with(NOW, "one", recorded));
            let foreign = ForeignAnchors::new();
            let step = publish_step(last, Some(source), source, &foreign, denied, now);
            assert_eq!(step, PublishStep::Write(with(NOW + 1, source, expected)));
        }
        for denied in [None, Some(&web)] {
            let last = with(NOW, "one", Some(&web));
            let foreign = ForeignAnchors::new();
            let step = publish_step(Some(last.clone()), None, "two", &foreign, denied, now);
            assert_eq!(step, PublishStep::Send(last));
        }
    }

    #[test]
    fn number_does_not_overflow() {
        let last = bundle(u64::MAX, "one");
        let foreign = ForeignAnchors::new();
        let next =
            TrustBundle::following(Some(&last), "two", &foreign, None, SystemTime::UNIX_EPOCH);
        assert_eq!(next.number, u64::MAX);
    }

    #[test]
    fn only_a_higher_number_replaces_the_bundle() {
        let current = bundle(5, "one");
        let outdated = BundleRefusal::Outdated {
            number: 4,
            current: 5,
        };
        for (new, expected) in [
            (bundle(6, "two"), Ok(true)),
            (bundle(6, "one"), Ok(true)),
            (bundle(5, "one"), Ok(false)),
            (bundle(5, "two"), Err(BundleRefusal::Ambiguous(5))),
            (bundle(4, "one"), Err(outdated)),
        ] {
            assert_eq!(new.replaces(Some(&current)), expected, "{new:?}");
            assert_eq!(new.replaces(None), Ok(true));
        }
        let other = TrustBundle {
            foreign: west("a"),
            ..current.clone()
        };
        assert_eq!(
            other.replaces(Some(&current)),
            Err(BundleRefusal::Ambiguous(5))
        );
    }

    #[test]
    fn bundle_with_a_list_replaces_the_one_of_its_number_without_but_not_with_another_one() {
        let with = |entries: Option<&str>| TrustBundle {
            denied: entries.map(|entry| DenyList::parse([entry]).unwrap()),
            ..bundle(5, "one")
        };
        for (new, current, expected) in [
            (with(Some("web.test")), with(None), Ok(true)),
            (with(None), with(Some("web.test")), Ok(false)),
            (
                with(Some("db.test")),
                with(Some("web.test")),
                Err(BundleRefusal::Ambiguous(5)),
            ),
            (
                with(Some("web.test")),
                bundle(5, "two"),
                Err(BundleRefusal::Ambiguous(5)),
            ),
        ] {
            assert_eq!(new.replaces(Some(&current)), expected, "{new:?}");
        }
    }
}
