//! The credentials that a source of certificates publishes, with their log lines, metrics and
//! readiness. Used by both sources.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_runtime::admin::Condition;
use mesh_runtime::metrics::{Counter, Gauge, GaugeFamily, Labels, Registry};
use tracing::field::debug;

use crate::tls::{Credentials, CredentialsError, Peers, TrustAnchors};
use crate::watch;

/// The current credentials of the proxy.
#[derive(Debug)]
pub(super) struct Published {
    credentials: watch::Sender<Option<Arc<Credentials>>>,
    /// All credentials have these.
    peers: Peers,
    ready: Condition,
    generation: u64,
    metrics: Metrics,
}

#[derive(Debug)]
struct Metrics {
    /// Exported from the first certificate on, because a time of 0 would look expired.
    expires: Option<Gauge>,
    refreshed: Option<Gauge>,
    expires_family: GaugeFamily,
    refreshed_family: GaugeFamily,
    ok: Counter,
    failed: Counter,
}

impl Published {
    /// Publishes to `credentials`. `ready` is set with the first certificate.
    pub(super) fn new(
        credentials: watch::Sender<Option<Arc<Credentials>>>,
        peers: Peers,
        ready: Condition,
        registry: &Registry,
    ) -> Self {
        Self {
            credentials,
            peers,
            ready,
            generation: 0,
            metrics: Metrics::new(registry),
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Arc<Credentials>>> {
        self.credentials.subscribe()
    }

    /// Returns the number of the next credentials.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Returns when the current certificate expires, `None` if there is none.
    pub(super) fn expires(&self) -> Option<SystemTime> {
        let credentials = self.credentials.borrow();
        credentials.as_ref().map(|own| own.not_after())
    }

    /// Returns whether peers without bundles of SPIFFE trust domains accept the certificate; also
    /// if there is none.
    pub(super) fn is_trusted_in_mesh(&self) -> bool {
        let credentials = self.credentials.borrow();
        let own = credentials.as_ref();
        own.is_none_or(|own| own.is_trusted_in_mesh())
    }

    /// Publishes a new certificate.
    pub(super) fn certify(&mut self, own: Credentials) {
        let expires = own.not_after();
        let lifetime = expires
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        tracing::info!(id = %own.id(), ?lifetime, "Certified identity");
        self.metrics.certified(expires, SystemTime::now());
        self.publish(own);
        self.ready.set(true);
    }

    /// Publishes the current certificate with other anchors. Returns `None` if there is no
    /// certificate, and an error if it does not chain to them.
    pub(super) fn replace_anchors(
        &mut self,
        anchors: &TrustAnchors,
    ) -> Option<Result<(), CredentialsError>> {
        let current = self.credentials.borrow().clone()?;
        let generation = self.next_generation();
        let replaced = current.with_anchors(anchors, generation).map(|own| {
            self.publish(own);
        });
        Some(replaced)
    }

    fn publish(&self, own: Credentials) {
        let own = own.with_peers(&self.peers);
        self.credentials.send_replace(Some(Arc::new(own)));
    }

    /// Counts and logs that no certificate was obtained. The current one stays.
    pub(super) fn fail(&self, error: &str, retry_in: Option<Duration>) {
        self.metrics.failed.inc();
        let retry_in = retry_in.map(debug);
        match self.expires() {
            None => tracing::warn!(error, retry_in, "Failed to certify identity"),
            Some(expires) if expires <= SystemTime::now() => {
                tracing::error!(
                    error,
                    retry_in,
                    "Failed to renew the expired certificate; peers reject this proxy"
                );
            }
            Some(_) => {
                tracing::warn!(
                    error,
                    retry_in,
                    "Failed to renew the certificate; the current one stays in use"
                );
            }
        }
    }

    /// Counts that no certificate was obtained, for a reason that has been logged.
    pub(super) fn fail_again(&self) {
        self.metrics.failed.inc();
    }
}

impl Metrics {
    fn new(registry: &Registry) -> Self {
        let refreshes = registry.counter_family(
            "control_identity_cert_refreshes_total",
            "The total number of times this proxy's mTLS identity certificate has been refreshed by the Identity service",
        );
        Self {
            expires: None,
            refreshed: None,
            expires_family: registry.gauge_family(
                "control_identity_cert_expiration_timestamp_seconds",
                "Time when this proxy's current mTLS identity certificate will expire (in seconds since the UNIX epoch)",
            ),
            refreshed_family: registry.gauge_family(
                "control_identity_cert_refresh_timestamp_seconds",
                "Time when this proxy's mTLS identity certificate was last refreshed (in seconds since the UNIX epoch)",
            ),
            ok: refreshes.with(&Labels::new().with("result", "ok")),
            failed: refreshes.with(&Labels::new().with("result", "error")),
        }
    }

    fn certified(&mut self, expires: SystemTime, now: SystemTime) {
        self.ok.inc();
        let none = Labels::new();
        self.expires
            .get_or_insert_with(|| self.expires_family.with(&none))
            .set(unix_seconds(expires));
        self.refreshed
            .get_or_insert_with(|| self.refreshed_family.with(&none))
            .set(unix_seconds(now));
    }
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
