//! What was put right without being asked: decided from what was seen before a step (pure), and
//! told in an event, in metrics and in the log.
//!
//! A first certificate and a renewal in time are the ordinary course of things, and no repairs.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::ObjectReference;
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use parking_lot::Mutex;

use super::plan::{Seen, Step};
use crate::cluster::{Events, Posting, Severity};

/// What was damaged; in metrics the label `found`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Damage {
    /// The registration's `caBundle` was another's, or was taken away.
    BundleAltered,
    /// The Secret was deleted.
    CertificateMissing,
    CertificateExpired,
    /// The Secret holds no certificate, or a key that is another's.
    CertificateUnreadable,
}

/// Who is told of repairs.
pub(crate) struct Repairs {
    of: [Arc<OfKind>; 4],
    events: Events,
}

/// The repairs of one kind of damage.
struct OfKind {
    all: Counter,
    lately: Gauge,
    last: Gauge,
    /// Of the last day, the newest at the end; the lock protects nothing but them.
    times: Mutex<VecDeque<SystemTime>>,
}

/// Over this time repairs are counted for `meshctl check`.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Times that are kept of each kind of damage. A program that breaks it again every second is
/// reported with this number.
const KEPT: usize = 1000;

impl Damage {
    pub(crate) const ALL: [Self; 4] = [
        Self::BundleAltered,
        Self::CertificateMissing,
        Self::CertificateExpired,
        Self::CertificateUnreadable,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BundleAltered => "ca-bundle-altered",
            Self::CertificateMissing => "certificate-missing",
            Self::CertificateExpired => "certificate-expired",
            Self::CertificateUnreadable => "certificate-unreadable",
        }
    }

    /// For the event of the registration.
    fn text(self) -> &'static str {
        match self {
            Self::BundleAltered => {
                "The caBundle was not the authority of the injector's certificate: the API server could not have called it. It is written again"
            }
            Self::CertificateMissing => {
                "The Secret of the injector's certificate was deleted. It is made again"
            }
            Self::CertificateExpired => {
                "The injector's certificate had expired: the API server could not have called it. It is made again"
            }
            Self::CertificateUnreadable => {
                "The Secret of the injector's certificate could not be used. It is made again"
            }
        }
    }
}

/// What a step puts right. `in_order` is the UID of the registration that was last seen in order,
/// `served` says whether a certificate is served.
pub(super) fn damage(
    seen: &Seen,
    step: &Step,
    in_order: Option<&str>,
    served: bool,
    now: SystemTime,
) -> Option<Damage> {
    match step {
        Step::Publish(authorities) => {
            let hook = seen.hook.as_ref()?.as_ref()?;
            let altered = hook.bundles.iter().any(|(_, bundle)| {
                let bundle = bundle.trim();
                match bundle.is_empty() {
                    // That of a registration that was made this moment.
                    true => in_order == Some(hook.uid.as_str()),
                    // After a renewal the old authority is among the new.
                    false => !authorities.contains(bundle),
                }
            });
            altered.then_some(Damage::BundleAltered)
        }
        Step::Make => match seen.secret.as_ref()? {
            None => served.then_some(Damage::CertificateMissing),
            Some(Err(_broken)) => Some(Damage::CertificateUnreadable),
            Some(Ok(held)) => (now >= held.pair.not_after()).then_some(Damage::CertificateExpired),
        },
        Step::Look | Step::Wait(_) | Step::Serve => None,
    }
}

impl Repairs {
    pub(crate) fn new(events: Events, registry: &Registry) -> Self {
        let all = registry.counter_family(
            "mesh_injector_repairs_total",
            "Damage to the webhook's certificate or registration that the injector put right, by what it found",
        );
        let lately = registry.gauge_family(
            "mesh_injector_repairs_last_day",
            "The same of the last 24 hours, since the injector started",
        );
        let last = registry.gauge_family(
            "mesh_injector_last_repair_timestamp_seconds",
            "When the latest repair was, in seconds since 1970; 0 without one",
        );
        let of = Damage::ALL.map(|damage| {
            let labels = Labels::new().with("found", damage.as_str());
            Arc::new(OfKind {
                all: all.with(&labels),
                lately: lately.with(&labels),
                last: last.with(&labels),
                times: Mutex::default(),
            })
        });
        let exported = of.clone();
        registry.on_scrape(move |_scrape| {
            for of in &exported {
                of.forget(SystemTime::now());
            }
        });
        Self { of, events }
    }

    /// Tells of one, in an event of the registration `about`.
    pub(super) fn tell(&self, damage: Damage, about: ObjectReference, now: SystemTime) {
        let of = Damage::ALL.iter().zip(&self.of);
        for (_, of) in of.filter(|(kind, _)| **kind == damage) {
            of.add(now);
        }
        tracing::warn!(found = damage.as_str(), "Repaired: {}", damage.text());
        self.events.post(Posting {
            about,
            severity: Severity::Warning,
            reason: "Repaired",
            action: "Repair",
            note: damage.text().to_owned(),
        });
    }
}

impl OfKind {
    fn add(&self, now: SystemTime) {
        self.all.inc();
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        self.last.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        {
            let mut times = self.times.lock();
            times.push_back(now);
            while times.len() > KEPT {
                times.pop_front();
            }
        }
        self.forget(now);
    }

    /// Those that are older than a day count no more.
    fn forget(&self, now: SystemTime) {
        let mut times = self.times.lock();
        let is_old = |time: &SystemTime| now.duration_since(*time).is_ok_and(|since| since >= DAY);
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        self.lately
            .set(i64::try_from(times.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::managed::plan::{self, Held};
    use crate::webhook::{
        certificate::{Made, make},
        managed::plan::tests::{hook, names, secret},
    };

    /// What the next step of the plan repairs.
    fn repaired(
        seen: &Seen,
        in_order: Option<&str>,
        served: bool,
        now: SystemTime,
    ) -> Option<Damage> {
        let step = plan::next(seen, &names(), now);
        damage(seen, &step, in_order, served, now)
    }

    fn seen(made: Option<&Made>, bundle: &str) -> Seen {
        Seen {
            secret: Some(made.map(|made| Held::read(secret(made, true)))),
            hook: hook(&[bundle]),
        }
    }

    #[test]
    fn what_was_in_order_and_is_not_is_repaired() {
        let now = SystemTime::now();
        let made = make(&names(), now).unwrap();
        let other = make(&names(), now).unwrap();
        // Another wrote its authority.
        let altered = seen(Some(&made), &other.authority_pem);
        assert_eq!(
            repaired(&altered, None, true, now),
            Some(Damage::BundleAltered)
        );
        // It was there, and is gone.
        let emptied = seen(Some(&made), "");
        assert_eq!(
            repaired(&emptied, Some("u"), true, now),
            Some(Damage::BundleAltered)
        );
        let deleted = seen(None, &made.authority_pem);
        assert_eq!(
            repaired(&deleted, Some("u"), true, now),
            Some(Damage::CertificateMissing)
        );
        let late = now + Duration::from_secs(400 * 24 * 3600);
        let held = seen(Some(&made), &made.authority_pem);
        assert_eq!(
            repaired(&held, Some("u"), true, late),
            Some(Damage::CertificateExpired)
        );
        let mut broken = secret(&made, true);
        broken.data = None;
        let broken = Seen {
            secret: Some(Some(Held::read(broken))),
            hook: hook(&[&made.authority_pem]),
        };
        assert_eq!(
            repaired(&broken, Some("u"), true, now),
            Some(Damage::CertificateUnreadable)
        );
    }

    #[test]
    fn the_ordinary_course_of_things_is_no_repair() {
        let now = SystemTime::now();
        let made = make(&names(), now).unwrap();
        // The first certificate, and the first that the API server hears of it.
        assert_eq!(repaired(&seen(None, ""), None, false, now), None);
        assert_eq!(repaired(&seen(Some(&made), ""), None, false, now), None);
        // A registration that was made anew.
        assert_eq!(
            repaired(&seen(Some(&made), ""), Some("another"), true, now),
            None
        );
        // A renewal in time, and the authority of before among the new ones.
        let renewal = now + Duration::from_secs(61 * 24 * 3600);
        let held = seen(Some(&made), &made.authority_pem);
        assert_eq!(repaired(&held, Some("u"), true, renewal), None);
        let mut new = make(&names(), renewal).unwrap();
        let both = plan::with_old_authorities(&new.authority_pem, &made.authority_pem, renewal);
        new.authority_pem = both;
        let renewed = seen(Some(&new), &made.authority_pem);
        assert_eq!(repaired(&renewed, Some("u"), true, renewal), None);
    }

    #[test]
    fn repairs_are_counted_over_a_day_and_within_bounds() {
        let registry = Registry::new();
        let family = registry.gauge_family("lately", "");
        let of = OfKind {
            all: registry.counter_family("all", "").with(&Labels::new()),
            lately: family.with(&Labels::new()),
            last: registry.gauge_family("last", "").with(&Labels::new()),
            times: Mutex::default(),
        };
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        of.add(start);
        of.add(start + Duration::from_secs(10));
        assert_eq!(of.times.lock().len(), 2);
        of.forget(start + DAY);
        assert_eq!(of.times.lock().len(), 1);
        for second in 0..2 * KEPT as u64 {
            of.add(start + DAY + Duration::from_secs(second));
        }
        assert_eq!(of.times.lock().len(), KEPT);
        let text = String::from_utf8(registry.encode()).unwrap();
        assert!(text.contains("lately 1000"), "{text}");
        assert!(text.contains("all 2002"), "{text}");
    }
}
