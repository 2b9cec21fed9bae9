//! Numbers the trust anchors that running proxies receive.
//!
//! A proxy refuses a bundle with a lower number than its anchors have, so the numbers must increase
//! across restarts and replicas. The replicas see a change at different times, because the kubelet
//! updates their volumes. The ConfigMap [`RECORD`] has the last number and its bundle, and is
//! written by compare-and-swap. A replica reads the record first and then the source, the ConfigMap
//! of the anchors; [`publish_step`] decides whether it writes.
//!
//! Without an API server the service has one replica, and the time is the only record.
//!
//! The record has the bundles of foreign trust domains as well, and one number for all
//! ([`foreign`]). A replica fetches them after it has read the record, and its write names the
//! version of that, so that a replica that has fetched an earlier bundle does not replace a later
//! one. [`endpoint`] serves the anchors to other clusters.
//!
//! A number is at least the time of its creation in seconds. It therefore also increases when the
//! record is deleted or restored from a backup.

pub(crate) mod endpoint;
pub(crate) mod foreign;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_api::identity::MAX_TRUST_BUNDLE;
use mesh_core::trust_bundle::{PublishStep, TrustBundle, publish_step};
use mesh_core::trust_domain::ForeignAnchors;
use mesh_k8s::foreign_domain::recorded::Recorded;
use mesh_k8s::inject::{TRUST_ROOTS_CONFIG_MAP, TRUST_ROOTS_KEY};
use mesh_k8s::trust::{BUNDLE_CONFIG_MAP, FOREIGN_KEY, NUMBER_KEY};
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use mesh_cluster::api_server::explain;

use self::foreign::ForeignDomains;

/// Publishes the numbered anchors to the streams of proxies.
pub(crate) struct Publisher {
    record: Option<(Record, ForeignDomains)>,
    /// The anchors in the files of this process, which verified its issuer.
    verified: watch::Receiver<Arc<[u8]>>,
    sent: Sent,
    /// The last problem. Only changes are logged.
    problem: Option<String>,
    failed: Counter,
}

/// What the streams of proxies get.
struct Sent {
    bundles: watch::Sender<Option<Arc<TrustBundle>>>,
    number: Gauge,
}

/// The ConfigMaps of the anchors and of their number, in the namespace of the control plane.
pub(crate) struct Record {
    config_maps: Api<ConfigMap>,
}

/// Why the anchors could not be numbered.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("cannot read ConfigMap {name}: {problem}")]
    Read { name: &'static str, problem: String },
    #[error("ConfigMap {0} does not exist; upgrade the chart to restore it")]
    Missing(&'static str),
    #[error("cannot write ConfigMap {RECORD}: {0}")]
    Write(String),
    #[error("cannot write the bundles of foreign trust domains")]
    Foreign(#[source] serde_json::Error),
    #[error("the trust anchors have {0} bytes, more than {MAX_TRUST_BUNDLE}")]
    TooLarge(usize),
    #[error("the trust anchors are not text")]
    Text,
}

/// The ConfigMap of the anchors.
const SOURCE: &str = TRUST_ROOTS_CONFIG_MAP;
/// The ConfigMap of the last number and its bundle. The chart creates it without data.
const RECORD: &str = BUNDLE_CONFIG_MAP;

/// How often the ConfigMaps are read. A rotation of anchors takes hours, and the kubelet takes
/// about a minute to update a volume.
const INTERVAL: Duration = Duration::from_secs(10);

/// The same while a bundle is due that could not be fetched, as when the record was written by
/// another replica.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

impl Publisher {
    /// `record` is `None` if this is the only replica of the service.
    pub(crate) fn new(
        record: Option<(Record, ForeignDomains)>,
        verified: watch::Receiver<Arc<[u8]>>,
        bundles: watch::Sender<Option<Arc<TrustBundle>>>,
        registry: &Registry,
    ) -> Self {
        let none = Labels::new();
        let number = registry.gauge_family(
            "mesh_trust_bundle_number",
            "Number of the trust anchors that this replica sends to proxies; 0 before the first",
        );
        let failed = registry.counter_family(
            "mesh_trust_bundle_failures_total",
            "Attempts to number changed trust anchors that failed, so that proxies do not receive them",
        );
        Self {
            record,
            verified,
            sent: Sent {
                bundles,
                number: number.with(&none),
            },
            problem: None,
            failed: failed.with(&none),
        }
    }

    /// Runs until the sender of the anchors is dropped, when the process exits.
    pub(crate) async fn run(mut self) {
        loop {
            let published = self.publish().await;
            self.report(published.err());
            let next = self.next(Instant::now());
            tokio::select! {
                () = sleep_until(next) => {}
                changed = self.verified.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn publish(&mut self) -> Result<(), PublishError> {
        let verified = self.verified.borrow_and_update().clone();
        let verified = std::str::from_utf8(&verified).map_err(|_error| PublishError::Text)?;
        if verified.len() > MAX_TRUST_BUNDLE {
            return Err(PublishError::TooLarge(verified.len()));
        }
        let Some((record, domains)) = &mut self.record else {
            let current = self.sent.bundles.borrow().clone();
            if current
                .as_ref()
                .is_none_or(|current| current.anchors != verified)
            {
                let (none, now) = (ForeignAnchors::new(), SystemTime::now());
                let bundle = TrustBundle::following(current.as_deref(), verified, &none, now);
                self.sent.send(bundle);
            }
            return Ok(());
        };
        // In this order; see above.
        let recorded = record.read(RECORD).await?;
        let source = record.read(SOURCE).await?;
        let known = read_foreign(&recorded);
        let trusted = domains.observe(&known).await;
        let anchors = (entry(&source, TRUST_ROOTS_KEY), verified);
        let settled = record.settle(recorded, anchors, &known, &trusted).await?;
        let Some((bundle, recorded)) = settled else {
            return Ok(());
        };
        // Before bundles are fetched, which may take seconds.
        self.sent.send(bundle);
        let Some(next) = domains.refresh(&trusted).await else {
            return Ok(());
        };
        match record.settle(recorded, anchors, &trusted, &next).await {
            Ok(Some((bundle, _recorded))) => self.sent.send(bundle),
            // After a conflict the next step reads what the other replica has written.
            lost => {
                domains.fetch_again();
                lost?;
            }
        }
        Ok(())
    }

    /// Returns when the ConfigMaps are read again, or a bundle is fetched before that.
    fn next(&self, now: Instant) -> Instant {
        let due = self.record.as_ref().and_then(|(_, domains)| domains.due());
        let due = due.unwrap_or(now + INTERVAL);
        due.clamp(now + MIN_INTERVAL, now + INTERVAL)
    }

    fn report(&mut self, error: Option<PublishError>) {
        let problem = error.as_ref().map(ToString::to_string);
        if problem.is_some() {
            self.failed.inc();
        }
        if problem != self.problem {
            match &problem {
                Some(problem) => {
                    tracing::warn!(problem, "Running proxies do not receive new trust anchors");
                }
                None => tracing::info!("Running proxies receive new trust anchors again"),
            }
        }
        self.problem = problem;
    }
}

impl Sent {
    fn send(&self, bundle: TrustBundle) {
        self.number
            .set(i64::try_from(bundle.number).unwrap_or(i64::MAX));
        self.bundles.send_if_modified(|current| {
            let is_new = current.as_deref() != Some(&bundle);
            if is_new {
                tracing::info!(number = bundle.number, "Sending trust anchors to proxies");
                *current = Some(Arc::new(bundle));
            }
            is_new
        });
    }
}

impl Record {
    pub(crate) fn new(client: Client, control_namespace: &str) -> Self {
        Self {
            config_maps: Api::namespaced(client, control_namespace),
        }
    }

    async fn read(&self, name: &'static str) -> Result<ConfigMap, PublishError> {
        let found = self.config_maps.get_opt(name).await;
        let found = found.map_err(|error| PublishError::Read {
            name,
            problem: explain(&error),
        })?;
        found.ok_or(PublishError::Missing(name))
    }

    /// Writes the record if something else is trusted now, and returns the bundle to send, with the
    /// record after that. `None` if nothing is sent, because the anchors are about to change or
    /// another replica has written the record. `known` are the foreign bundles of the record.
    async fn settle(
        &self,
        recorded: ConfigMap,
        (source, verified): (Option<&str>, &str),
        known: &Recorded,
        trusted: &Recorded,
    ) -> Result<Option<(TrustBundle, ConfigMap)>, PublishError> {
        let last = read_record(&recorded, known);
        let now = SystemTime::now();
        match publish_step(last, source, verified, &trusted.anchors(), now) {
            PublishStep::Wait => Ok(None),
            PublishStep::Send(bundle) if trusted == known => Ok(Some((bundle, recorded))),
            PublishStep::Send(bundle) | PublishStep::Write(bundle) => {
                let written = self.write(recorded, &bundle, trusted).await?;
                Ok(written.map(|recorded| (bundle, recorded)))
            }
        }
    }

    /// Replaces the record unless it was changed since it was read. Returns the new one if it was
    /// replaced.
    async fn write(
        &self,
        mut recorded: ConfigMap,
        bundle: &TrustBundle,
        foreign: &Recorded,
    ) -> Result<Option<ConfigMap>, PublishError> {
        let entries = [
            (NUMBER_KEY, bundle.number.to_string()),
            (TRUST_ROOTS_KEY, bundle.anchors.clone()),
            (
                FOREIGN_KEY,
                foreign.to_text().map_err(PublishError::Foreign)?,
            ),
        ];
        recorded.data = Some(entries.map(|(key, value)| (key.to_owned(), value)).into());
        let params = PostParams::default();
        match self.config_maps.replace(RECORD, &params, &recorded).await {
            Ok(written) => Ok(Some(written)),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
            Err(error) => Err(PublishError::Write(explain(&error))),
        }
    }
}

/// Returns the bundle of the record; `None` if it has none or was damaged.
fn read_record(recorded: &ConfigMap, foreign: &Recorded) -> Option<TrustBundle> {
    Some(TrustBundle {
        number: entry(recorded, NUMBER_KEY)?.parse().ok()?,
        anchors: entry(recorded, TRUST_ROOTS_KEY)?.to_owned(),
        foreign: foreign.anchors(),
    })
}

/// Returns the foreign bundles of the record. Damaged ones count as none, so that the first bundles
/// are used again.
fn read_foreign(recorded: &ConfigMap) -> Recorded {
    Recorded::read(entry(recorded, FOREIGN_KEY)).unwrap_or_else(|error| {
        tracing::error!(%error, "The recorded bundles of foreign trust domains are damaged; beginning with the first ones");
        Recorded::default()
    })
}

fn entry<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> ConfigMap {
        let entries = entries.iter();
        let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ConfigMap {
            data: Some(entries.collect()),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn damaged_record_counts_as_none() {
        let bundle = TrustBundle {
            number: 7,
            anchors: "one".to_owned(),
            foreign: ForeignAnchors::new(),
        };
        for (entries, expected) in [
            (&[][..], None),
            (&[(NUMBER_KEY, "7")], None),
            (&[(NUMBER_KEY, "many"), (TRUST_ROOTS_KEY, "one")], None),
            (&[(NUMBER_KEY, "7"), (TRUST_ROOTS_KEY, "one")], Some(bundle)),
        ] {
            assert_eq!(read_record(&map(entries), &Recorded::default()), expected);
        }
    }
}
