//! Repairs: detected from the observed objects before a step, and reported in an event, metrics and
//! the log.
//!
//! The first certificate and a timely renewal are not repairs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use parking_lot::Mutex;

use super::plan::{ObservedState, Step};
use crate::api_server::{Events, ObjectEvent, Severity};

mesh_core::names! {
    /// The kind of damage, the label `found` of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Damage, ALL {
        /// The `caBundle` of the registration was changed or removed.
        BundleAltered = "ca-bundle-altered",
        /// The Secret was deleted.
        CertificateMissing = "certificate-missing",
        CertificateExpired = "certificate-expired",
        /// The Secret contained no valid certificate and key.
        CertificateUnreadable = "certificate-unreadable",
        /// The certificate was not for all names of the server.
        CertificateMisnamed = "certificate-misnamed",
        /// The Secret contained another certificate than the served one, close to its end.
        CertificateReplaced = "certificate-replaced",
    }
}

/// Reports repairs.
pub struct RepairReporter {
    statistics: [Arc<DamageStatistics>; Damage::ALL.len()],
    events: Events,
}

/// The metrics of one kind of damage.
struct DamageStatistics {
    total: Counter,
    last_day: Gauge,
    last_timestamp: Gauge,
    /// The times of repairs within the last day, in ascending order.
    times: Mutex<VecDeque<SystemTime>>,
}

/// Repairs in this period are counted for `meshctl check`.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of times for each kind of damage, and so the maximum of the gauge.
const MAX_TIMES: usize = 1000;

impl Damage {
    /// Returns the text of the event.
    fn text(self) -> &'static str {
        match self {
            Self::BundleAltered => {
                "The caBundle did not contain the CA of the serving certificate, so the API server could not call the server. Restored the caBundle"
            }
            Self::CertificateMissing => {
                "The Secret of the serving certificate was deleted. Generated a new certificate"
            }
            Self::CertificateExpired => {
                "The serving certificate had expired, so the API server could not call the server. Generated a new certificate"
            }
            Self::CertificateUnreadable => {
                "The Secret of the serving certificate was invalid. Generated a new certificate"
            }
            Self::CertificateMisnamed => {
                "The serving certificate was for another name, so the API server could not call the server. Generated a new certificate"
            }
            Self::CertificateReplaced => {
                "The Secret of the serving certificate was replaced by one with a certificate that was about to expire. Generated a new certificate"
            }
        }
    }
}

/// Returns the damage that a step repairs. `intact_uid` is the UID of the registration that was
/// last intact, `served` the certificate that is served, `names` are the names that it must have.
pub(super) fn damage(
    seen: &ObservedState,
    step: &Step,
    names: &[String],
    intact_uid: Option<&str>,
    served: Option<&str>,
    now: SystemTime,
) -> Option<Damage> {
    match step {
        Step::PublishAuthorities(authorities) => {
            let registration = seen.registration.as_ref()?.as_ref()?;
            let altered = registration.bundles.iter().any(|(_, bundle)| {
                let bundle = bundle.trim();
                if bundle.is_empty() {
                    // A new registration has no bundle yet.
                    intact_uid == Some(registration.uid.as_str())
                } else {
                    // After a renewal the new bundle contains the old CA.
                    !authorities.contains(bundle)
                }
            });
            altered.then_some(Damage::BundleAltered)
        }
        Step::Generate => match seen.secret.as_ref()? {
            None => served.map(|_certificate| Damage::CertificateMissing),
            Some(Err(_broken)) => Some(Damage::CertificateUnreadable),
            Some(Ok(held)) if now >= held.pair.not_after() => Some(Damage::CertificateExpired),
            Some(Ok(held)) if !names.iter().all(|name| held.pair.is_for(name)) => {
                Some(Damage::CertificateMisnamed)
            }
            // A timely renewal replaces the served certificate.
            Some(Ok(held)) => served
                .is_some_and(|served| served != held.certificate)
                .then_some(Damage::CertificateReplaced),
        },
        Step::Observe | Step::Wait(_) | Step::Unregistered | Step::Serve => None,
    }
}

impl RepairReporter {
    pub fn new(events: Events, registry: &Registry) -> Self {
        let total = registry.counter_family(
            "mesh_injector_repairs_total",
            "Repairs of the serving certificate or its caBundle, by the damage found",
        );
        let last_day = registry.gauge_family(
            "mesh_injector_repairs_last_day",
            "Repairs within the last 24 hours, since the injector started, by the damage found",
        );
        let last_timestamp = registry.gauge_family(
            "mesh_injector_last_repair_timestamp_seconds",
            "Time of the last repair, in seconds since 1970; 0 without one",
        );
        let statistics = Damage::ALL.map(|damage| {
            let labels = Labels::new().with("found", damage.as_str());
            Arc::new(DamageStatistics {
                total: total.with(&labels),
                last_day: last_day.with(&labels),
                last_timestamp: last_timestamp.with(&labels),
                times: Mutex::default(),
            })
        });
        let exported = statistics.clone();
        registry.on_scrape(move |_scrape| {
            for statistics in &exported {
                statistics.remove_expired(SystemTime::now());
            }
        });
        Self { statistics, events }
    }

    /// Reports a repair, in an event of the registration `about`.
    pub(super) fn report(&self, damage: Damage, about: ObjectReference, now: SystemTime) {
        let statistics = Damage::ALL.iter().zip(&self.statistics);
        for (_, statistics) in statistics.filter(|(kind, _)| **kind == damage) {
            statistics.add(now);
        }
        tracing::warn!(found = damage.as_str(), "Repaired: {}", damage.text());
        self.events.post(ObjectEvent {
            about,
            severity: Severity::Warning,
            reason: "Repaired",
            action: "Repair",
            note: damage.text().to_owned(),
        });
    }
}

impl DamageStatistics {
    fn add(&self, now: SystemTime) {
        self.total.inc();
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        self.last_timestamp
            .set(i64::try_from(seconds).unwrap_or(i64::MAX));
        {
            let mut times = self.times.lock();
            times.push_back(now);
            while times.len() > MAX_TIMES {
                times.pop_front();
            }
        }
        self.remove_expired(now);
    }

    /// Removes times older than a day.
    fn remove_expired(&self, now: SystemTime) {
        let mut times = self.times.lock();
        let is_old = |time: &SystemTime| now.duration_since(*time).is_ok_and(|since| since >= DAY);
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        self.last_day
            .set(i64::try_from(times.len()).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::managed::plan::{self, CertificateSecret};
    use crate::webhook::{
        certificate::{GeneratedCertificate, generate},
        managed::plan::tests::{names, registration, secret},
    };

    /// Returns the damage that the next step of the plan repairs.
    fn repaired(
        seen: &ObservedState,
        intact_uid: Option<&str>,
        served: Option<&GeneratedCertificate>,
        now: SystemTime,
    ) -> Option<Damage> {
        let step = plan::next(seen, &names(), now);
        let served = served.map(|made| &*made.certificate_pem);
        damage(seen, &step, &names(), intact_uid, served, now)
    }

    fn seen(made: Option<&GeneratedCertificate>, bundle: &str) -> ObservedState {
        ObservedState {
            secret: Some(made.map(|made| CertificateSecret::read(secret(made, true)))),
            registration: registration(&[bundle]),
        }
    }

    #[test]
    fn damage_of_intact_state_is_repaired() {
        let now = SystemTime::now();
        let made = generate(&names(), now).unwrap();
        let other = generate(&names(), now).unwrap();
        let check = |seen: ObservedState, intact_uid, now, damage| {
            assert_eq!(repaired(&seen, intact_uid, Some(&made), now), Some(damage));
        };
        // Another CA was written.
        let altered = seen(Some(&made), &other.authority_pem);
        check(altered, None, now, Damage::BundleAltered);
        // The bundle was removed.
        let emptied = seen(Some(&made), "");
        check(emptied, Some("u"), now, Damage::BundleAltered);
        let deleted = seen(None, &made.authority_pem);
        check(deleted, Some("u"), now, Damage::CertificateMissing);
        let late = now + Duration::from_secs(400 * 24 * 3600);
        let held = seen(Some(&made), &made.authority_pem);
        check(held, Some("u"), late, Damage::CertificateExpired);
        let mut broken = secret(&made, true);
        broken.data = None;
        let broken = ObservedState {
            secret: Some(Some(CertificateSecret::read(broken))),
            registration: registration(&[&made.authority_pem]),
        };
        check(broken, Some("u"), now, Damage::CertificateUnreadable);
        let misnamed = generate(&["other.example".to_owned()], now).unwrap();
        let misnamed = seen(Some(&misnamed), &made.authority_pem);
        check(misnamed, Some("u"), now, Damage::CertificateMisnamed);
        let near_its_end = now + Duration::from_secs(61 * 24 * 3600);
        let replaced = seen(Some(&other), &made.authority_pem);
        check(
            replaced,
            Some("u"),
            near_its_end,
            Damage::CertificateReplaced,
        );
    }

    #[test]
    fn first_certificate_and_renewal_are_not_repairs() {
        let now = SystemTime::now();
        let made = generate(&names(), now).unwrap();
        // The first certificate and the first bundle.
        assert_eq!(repaired(&seen(None, ""), None, None, now), None);
        assert_eq!(repaired(&seen(Some(&made), ""), None, None, now), None);
        // A recreated registration.
        assert_eq!(
            repaired(&seen(Some(&made), ""), Some("another"), Some(&made), now),
            None
        );
        // A timely renewal, whose bundle contains the old CA.
        let renewal = now + Duration::from_secs(61 * 24 * 3600);
        let held = seen(Some(&made), &made.authority_pem);
        assert_eq!(repaired(&held, Some("u"), Some(&made), renewal), None);
        let mut new = generate(&names(), renewal).unwrap();
        let both = plan::with_old_authorities(&new.authority_pem, &made.authority_pem, renewal);
        new.authority_pem = both;
        let renewed = seen(Some(&new), &made.authority_pem);
        assert_eq!(repaired(&renewed, Some("u"), Some(&made), renewal), None);
    }

    #[test]
    fn repairs_are_counted_over_a_day_with_a_bound() {
        let registry = Registry::new();
        let family = registry.gauge_family("recent", "");
        let of = DamageStatistics {
            total: registry.counter_family("all", "").with(&Labels::new()),
            last_day: family.with(&Labels::new()),
            last_timestamp: registry.gauge_family("last", "").with(&Labels::new()),
            times: Mutex::default(),
        };
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        of.add(start);
        of.add(start + Duration::from_secs(10));
        assert_eq!(of.times.lock().len(), 2);
        of.remove_expired(start + DAY);
        assert_eq!(of.times.lock().len(), 1);
        for second in 0..2 * MAX_TIMES as u64 {
            of.add(start + DAY + Duration::from_secs(second));
        }
        assert_eq!(of.times.lock().len(), MAX_TIMES);
        let text = String::from_utf8(registry.encode()).unwrap();
        assert!(text.contains("recent 1000"), "{text}");
        assert!(text.contains("all 2002"), "{text}");
    }
}
