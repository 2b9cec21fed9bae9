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
//! one. [`endpoint`] serves the anchors to other clusters. The list of denied identities is part of
//! the record, too ([`denied`]).
//!
//! A number is at least the time of its creation in seconds. It therefore also increases when the
//! record is deleted or restored from a backup.

pub(crate) mod denied;
pub(crate) mod endpoint;
pub(crate) mod foreign;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_api::identity::MAX_TRUST_BUNDLE;
use mesh_core::deny_list::DenyList;
use mesh_core::trust_bundle::{PublishStep, TrustBundle, publish_step};
use mesh_core::trust_domain::ForeignAnchors;
use mesh_k8s::denied_identities;
use mesh_k8s::foreign_domain::recorded::Recorded;
use mesh_k8s::inject::{TRUST_ROOTS_CONFIG_MAP, TRUST_ROOTS_KEY};
use mesh_k8s::trust::{BUNDLE_CONFIG_MAP, DENIED_KEY, FOREIGN_KEY, NUMBER_KEY};
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use mesh_cluster::api_server::explain;

use self::denied::DeniedIdentities;
use self::foreign::ForeignDomains;

/// Publishes the numbered anchors to the streams of proxies.
pub(crate) struct Publisher {
    cluster: Option<Cluster>,
    /// The anchors in the files of this process, which verified its issuer.
    verified: watch::Receiver<Arc<[u8]>>,
    sent: Sent,
    /// The last problem. Only changes are logged.
    problem: Option<String>,
    failed: Counter,
}

/// The objects of the API server.
pub(crate) struct Cluster {
    record: Record,
    domains: ForeignDomains,
    denied: DeniedIdentities,
    /// Told about changes of the denied identities.
    denied_changed: Arc<Notify>,
    /// The denied identities have not been sent, because a request failed, or another replica has
    /// written the record.
    is_late: bool,
}

/// The foreign trust domains, and the denied identities.
struct Trust {
    foreign: Recorded,
    /// `None` if it is unknown.
    denied: Option<DenyList>,
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

/// The result of a step.
enum Settled {
    /// The bundle to send, and the record that has it.
    Send(Box<(TrustBundle, ConfigMap)>),
    /// The anchors are about to change.
    Wait,
    /// Another replica has written the record since it was read.
    Lost,
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

/// The same while a bundle is due that could not be fetched, or while the denied identities wait
/// for a request that failed or for another replica.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

impl Publisher {
    /// `cluster` is `None` if this is the only replica of the service.
    pub(crate) fn new(
        cluster: Option<Cluster>,
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
            cluster,
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
            let denied_changed = self.denied_changed();
            tokio::select! {
                () = sleep_until(next) => {}
                () = denied_changed.notified() => {}
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
        let Some(cluster) = &mut self.cluster else {
            let verified = check_anchors(&verified)?;
            let current = self.sent.bundles.borrow().clone();
            if current
                .as_ref()
                .is_none_or(|current| current.anchors != verified)
            {
                let (none, now) = (ForeignAnchors::new(), SystemTime::now());
                let bundle = TrustBundle::following(current.as_deref(), verified, &none, None, now);
                self.sent.send(bundle);
            }
            return Ok(());
        };
        let published = cluster.publish(&verified, &self.sent).await;
        cluster.is_late = match &published {
            Ok(is_complete) => !is_complete,
            Err(_) => !self.sent.has(&cluster.denied),
        };
        published.map(drop)
    }

    /// Returns when the ConfigMaps are read again, or a bundle is fetched before that.
    fn next(&self, now: Instant) -> Instant {
        let cluster = self.cluster.as_ref();
        let due = cluster.and_then(|cluster| {
            if cluster.is_late {
                return Some(now);
            }
            cluster.domains.due()
        });
        let due = due.unwrap_or(now + INTERVAL);
        due.clamp(now + MIN_INTERVAL, now + INTERVAL)
    }

    /// Never told without an API server.
    fn denied_changed(&self) -> Arc<Notify> {
        let cluster = self.cluster.as_ref();
        cluster
            .map(|it| it.denied_changed.clone())
            .unwrap_or_default()
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

impl Cluster {
    pub(crate) fn new(
        record: Record,
        domains: ForeignDomains,
        denied: DeniedIdentities,
        denied_changed: Arc<Notify>,
    ) -> Self {
        Self {
            record,
            domains,
            denied,
            denied_changed,
            is_late: false,
        }
    }

    /// Returns false if another replica has written the record: this one reads it again.
    async fn publish(&mut self, verified: &[u8], sent: &Sent) -> Result<bool, PublishError> {
        // The record first; see above.
        let recorded = self.record.read(RECORD).await;
        let last = recorded.as_ref().ok().and_then(read_denied);
        // Also without a record: a denied identity gets no certificate.
        let denied = self.denied.observe(last.as_ref()).await;
        let recorded = recorded?;
        let verified = check_anchors(verified)?;
        let source = self.record.read(SOURCE).await?;
        let known = read_foreign(&recorded);
        let foreign = self.domains.observe(&known).await;
        let mut trust = Trust { foreign, denied };
        let anchors = (entry(&source, TRUST_ROOTS_KEY), verified);
        let settled = self
            .record
            .settle(recorded, anchors, &known, &trust)
            .await?;
        let (bundle, recorded) = match settled {
            Settled::Send(settled) => *settled,
            Settled::Wait => return Ok(true),
            Settled::Lost => return Ok(false),
        };
        // Before bundles are fetched, which may take seconds.
        sent.send(bundle);
        let fetched = tokio::select! {
            biased;
            () = self.denied_changed.notified() => {
                self.denied_changed.notify_one();
                None
            }
            fetched = self.domains.refresh(&trust.foreign) => fetched,
        };
        let Some(fetched) = fetched else {
            return Ok(true);
        };
        let before = std::mem::replace(&mut trust.foreign, fetched);
        match self.record.settle(recorded, anchors, &before, &trust).await {
            Ok(Settled::Send(settled)) => sent.send(settled.0),
            // After a conflict the next step reads the other replica's record.
            lost => {
                self.domains.fetch_again();
                lost?;
            }
        }
        Ok(true)
    }
}

impl Sent {
    /// Returns whether proxies have the denied identities.
    fn has(&self, denied: &DeniedIdentities) -> bool {
        let sent = self.bundles.borrow();
        let list = sent.as_ref().and_then(|bundle| bundle.denied.as_ref());
        list == denied.known().as_deref()
    }

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

    /// Writes the record if something else is trusted now. `known` are the foreign bundles of the
    /// record.
    async fn settle(
        &self,
        recorded: ConfigMap,
        (source, verified): (Option<&str>, &str),
        known: &Recorded,
        trust: &Trust,
    ) -> Result<Settled, PublishError> {
        let Trust { foreign, denied } = trust;
        let last = read_record(&recorded, known);
        let (now, denied) = (SystemTime::now(), denied.as_ref());
        match publish_step(last, source, verified, &foreign.anchors(), denied, now) {
            PublishStep::Wait => Ok(Settled::Wait),
            PublishStep::Send(bundle) if foreign == known => {
                Ok(Settled::Send(Box::new((bundle, recorded))))
            }
            PublishStep::Send(bundle) | PublishStep::Write(bundle) => {
                let written = self.write(recorded, &bundle, foreign).await?;
                Ok(written.map_or(Settled::Lost, |recorded| {
                    Settled::Send(Box::new((bundle, recorded)))
                }))
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
        let denied = bundle.denied.as_ref();
        let denied = denied.map(|list| (DENIED_KEY, denied_identities::to_text(list)));
        let foreign = foreign.to_text().map_err(PublishError::Foreign)?;
        let entries = [
            (NUMBER_KEY, bundle.number.to_string()),
            (TRUST_ROOTS_KEY, bundle.anchors.clone()),
            (FOREIGN_KEY, foreign),
        ];
        let entries = entries.into_iter().chain(denied);
        recorded.data = Some(
            entries
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        );
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
        denied: read_denied(recorded),
    })
}

/// Returns the denied identities of the record; `None` if an earlier version has written it, or it
/// was damaged.
fn read_denied(recorded: &ConfigMap) -> Option<DenyList> {
    denied_identities::from_text(entry(recorded, DENIED_KEY)?).ok()
}

fn check_anchors(verified: &[u8]) -> Result<&str, PublishError> {
    if verified.len() > MAX_TRUST_BUNDLE {
        return Err(PublishError::TooLarge(verified.len()));
    }
    std::str::from_utf8(verified).map_err(|_error| PublishError::Text)
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
            denied: None,
        };
        let list = DenyList::parse(["web.test"]).unwrap();
        let with_list = TrustBundle {
            denied: Some(list),
            ..bundle.clone()
        };
        let recorded = [(NUMBER_KEY, "7"), (TRUST_ROOTS_KEY, "one")];
        let with = |denied| [&recorded[..], &[(DENIED_KEY, denied)]].concat();
        for (entries, expected) in [
            (&[][..], None),
            (&[(NUMBER_KEY, "7")], None),
            (&[(NUMBER_KEY, "many"), (TRUST_ROOTS_KEY, "one")], None),
            (&recorded, Some(bundle.clone())),
            (&with("web.test\n"), Some(with_list)),
            (&with("a b"), Some(bundle)),
        ] {
            assert_eq!(read_record(&map(entries), &Recorded::default()), expected);
        }
    }
}
