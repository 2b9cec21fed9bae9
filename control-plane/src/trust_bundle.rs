//! Numbers the trust anchors that running proxies receive.
//!
//! A proxy refuses a bundle with a lower number than its anchors have, so the numbers must increase
//! across restarts and replicas. The replicas see a change at different times, because the kubelet
//! updates their volumes. The ConfigMap [`RECORD`] has the last number and its bundle, and is
//! written by compare-and-swap. A replica reads the record first and then the source, the ConfigMap
//! of the anchors. It writes only if both its own files, which it has verified with the issuer, and
//! the source differ from the record in the same way. So a replica whose volume is late writes
//! nothing, and one that writes has read a source at least as new as the record.
//!
//! Without an API server the service has one replica, and the time is the only record.
//!
//! A number is at least the time of its creation in seconds. It therefore also increases when the
//! record is deleted or restored from a backup.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use mesh_api::identity::{MAX_TRUST_BUNDLE, TrustBundle};
use mesh_runtime::metrics::{Counter, Gauge, Labels, Registry};
use tokio::sync::watch;
use tokio::time::sleep;

use mesh_cluster::api_server::explain;

/// Publishes the numbered anchors to the streams of proxies.
pub(crate) struct Publisher {
    record: Option<Record>,
    /// The anchors in the files of this process, which verified its issuer.
    verified: watch::Receiver<Arc<[u8]>>,
    bundles: watch::Sender<Option<Arc<TrustBundle>>>,
    /// The last problem. Only changes are logged.
    problem: Option<String>,
    number: Gauge,
    failed: Counter,
}

/// The ConfigMaps of the anchors and of their number, in the namespace of the control plane.
pub(crate) struct Record {
    config_maps: Api<ConfigMap>,
}

/// The next step after both ConfigMaps were read.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Sends the bundle of the record.
    Send(TrustBundle),
    /// Replaces the record.
    Write(TrustBundle),
    /// The files of this process and the source differ. One of them is about to change.
    Wait,
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
    #[error("the trust anchors have {0} bytes, more than {MAX_TRUST_BUNDLE}")]
    TooLarge(usize),
    #[error("the trust anchors are not text")]
    Text,
}

/// The ConfigMap of the anchors, with Linkerd's name and key.
const SOURCE: &str = "linkerd-identity-trust-roots";
const BUNDLE_KEY: &str = "ca-bundle.crt";

/// The ConfigMap of the last number and its bundle. The chart creates it without data.
const RECORD: &str = "linkerd-identity-trust-bundle";
const NUMBER_KEY: &str = "number";

/// How often the ConfigMaps are read. A rotation of anchors takes hours, and the kubelet takes
/// about a minute to update a volume.
const INTERVAL: Duration = Duration::from_secs(10);

impl Publisher {
    /// `record` is `None` if this is the only replica of the service.
    pub(crate) fn new(
        record: Option<Record>,
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
            bundles,
            problem: None,
            number: number.with(&none),
            failed: failed.with(&none),
        }
    }

    /// Runs until the sender of the anchors is dropped, when the process exits.
    pub(crate) async fn run(mut self) {
        loop {
            let published = self.publish().await;
            self.report(published.err());
            tokio::select! {
                () = sleep(INTERVAL) => {}
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
        let now = SystemTime::now();
        let Some(record) = &self.record else {
            let current = self.bundles.borrow().clone();
            if current
                .as_ref()
                .is_none_or(|current| current.anchors != verified)
            {
                self.send(next(current.as_deref(), verified, now));
            }
            return Ok(());
        };
        // In this order; see above.
        let recorded = record.read(RECORD).await?;
        let source = record.read(SOURCE).await?;
        match step(&recorded, &source, verified, now) {
            Step::Send(bundle) => self.send(bundle),
            // After a conflict the next step reads what the other replica has written.
            Step::Write(bundle) => {
                if record.write(recorded, &bundle).await? {
                    self.send(bundle);
                }
            }
            Step::Wait => {}
        }
        Ok(())
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

    /// Replaces the record unless it was changed since it was read. Returns whether it was
    /// replaced.
    async fn write(
        &self,
        mut recorded: ConfigMap,
        bundle: &TrustBundle,
    ) -> Result<bool, PublishError> {
        let entries = [
            (NUMBER_KEY, bundle.number.to_string()),
            (BUNDLE_KEY, bundle.anchors.clone()),
        ];
        recorded.data = Some(entries.map(|(key, value)| (key.to_owned(), value)).into());
        let params = PostParams::default();
        match self.config_maps.replace(RECORD, &params, &recorded).await {
            Ok(_written) => Ok(true),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
            Err(error) => Err(PublishError::Write(explain(&error))),
        }
    }
}

/// Decides how the anchors are numbered. `verified` are the anchors in the files of this process.
fn step(recorded: &ConfigMap, source: &ConfigMap, verified: &str, now: SystemTime) -> Step {
    let last = read_record(recorded);
    let is_recorded = last.as_ref().is_some_and(|last| last.anchors == verified);
    if !is_recorded && entry(source, BUNDLE_KEY) == Some(verified) {
        return Step::Write(next(last.as_ref(), verified, now));
    }
    last.map_or(Step::Wait, Step::Send)
}

/// Returns the bundle of the record; `None` if it has none or was damaged.
fn read_record(recorded: &ConfigMap) -> Option<TrustBundle> {
    Some(TrustBundle {
        number: entry(recorded, NUMBER_KEY)?.parse().ok()?,
        anchors: entry(recorded, BUNDLE_KEY)?.to_owned(),
    })
}

fn entry<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

/// Returns the bundle that follows `last`.
fn next(last: Option<&TrustBundle>, anchors: &str, now: SystemTime) -> TrustBundle {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since_1970.map_or(1, |since| since.as_secs());
    let least = last.map_or(1, |last| last.number.saturating_add(1));
    TrustBundle {
        number: least.max(seconds),
        anchors: anchors.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn map(entries: &[(&str, &str)]) -> ConfigMap {
        let entries = entries.iter();
        let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ConfigMap {
            data: Some(entries.collect()),
            ..ConfigMap::default()
        }
    }

    fn bundle(number: u64, anchors: &str) -> TrustBundle {
        TrustBundle {
            number,
            anchors: anchors.to_owned(),
        }
    }

    #[test]
    fn changed_anchors_get_the_next_number_once_files_and_source_agree() {
        let number = NOW.to_string();
        let recorded = map(&[(NUMBER_KEY, &number), (BUNDLE_KEY, "one")]);
        let future = (NOW + 900).to_string();
        let future = map(&[(NUMBER_KEY, &future), (BUNDLE_KEY, "one")]);
        let damaged = map(&[(NUMBER_KEY, "many"), (BUNDLE_KEY, "one")]);
        let empty = ConfigMap::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        for (recorded, source, verified, expected) in [
            // The first bundle.
            (&empty, "one", "one", Step::Write(bundle(NOW, "one"))),
            (&empty, "two", "one", Step::Wait),
            (&damaged, "one", "one", Step::Write(bundle(NOW, "one"))),
            (&recorded, "one", "one", Step::Send(bundle(NOW, "one"))),
            // The volume of this replica is late, or only this replica has the change so far.
            (&recorded, "two", "one", Step::Send(bundle(NOW, "one"))),
            (&recorded, "one", "two", Step::Send(bundle(NOW, "one"))),
            // At the same second, and with a record from the future.
            (&recorded, "two", "two", Step::Write(bundle(NOW + 1, "two"))),
            (&future, "two", "two", Step::Write(bundle(NOW + 901, "two"))),
        ] {
            let source = map(&[(BUNDLE_KEY, source)]);
            assert_eq!(step(recorded, &source, verified, now), expected);
        }
    }

    #[test]
    fn number_does_not_overflow() {
        let last = bundle(u64::MAX, "one");
        let next = next(Some(&last), "two", SystemTime::UNIX_EPOCH);
        assert_eq!(next.number, u64::MAX);
    }
}
