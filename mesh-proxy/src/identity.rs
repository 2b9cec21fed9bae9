//! Requests and renews the proxy's certificates.
//!
//! Runs on the control thread. Each certificate has a new key, which is generated in this process
//! and never stored. The service account token is read for each request, because the kubelet
//! rotates it. A certificate stays in use until the next one is issued; while the identity service
//! is unavailable, the proxy retries. It is renewed after 70 % of its remaining lifetime, by
//! default after 10 seconds at the earliest and a day at the latest ([`schedule`]).

mod anchors;
mod bundle;
mod schedule;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_runtime::admin::Condition;
use mesh_runtime::log;
use mesh_runtime::metrics::{Counter, Gauge, GaugeFamily, Labels, Registry};
use tokio::time::timeout;
use tonic::Status;

pub(crate) use self::anchors::watch_file;
pub(crate) use self::bundle::BundleFollower;
use self::schedule::Schedule;
use crate::config::IdentityConfig;
use crate::control::{self, Client};
use crate::tls::{
    CertificateRequest, Credentials, CredentialsError, IssuedCertificate, TrustAnchors,
};
use crate::watch;

/// Keeps the proxy's credentials valid.
#[derive(Debug)]
pub(crate) struct Certifier {
    config: IdentityConfig,
    client: Client,
    credentials: watch::Sender<Option<Arc<Credentials>>>,
    anchors: watch::Receiver<TrustAnchors>,
    ready: Condition,
    generation: u64,
    schedule: Schedule,
    metrics: Metrics,
}

/// Why no certificate was obtained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertifyError {
    #[error("cannot read the token {path:?} (is it projected into the pod?)")]
    Token {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("token {path:?} is empty")]
    EmptyToken { path: PathBuf },
    #[error("identity service did not issue a certificate: {}", control::reason(.0))]
    Refused(Box<Status>),
    #[error("identity service did not respond within {0:?}")]
    TimedOut(Duration),
    #[error("invalid response from the identity service")]
    Response(#[source] mesh_api::InvalidField),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
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

/// Signing takes milliseconds, but the service's TokenReview may take seconds.
const CERTIFY_TIMEOUT: Duration = Duration::from_secs(15);

impl CertifyError {
    /// Whether the service has responded, and would give the same response soon after.
    fn is_refusal(&self) -> bool {
        match self {
            // A status that the proxy's client created has a source; see `control::reason`.
            Self::Refused(status) => std::error::Error::source(status).is_none(),
            Self::Response(_) | Self::Credentials(_) => true,
            Self::Token { .. } | Self::EmptyToken { .. } | Self::TimedOut(_) => false,
        }
    }
}

impl Certifier {
    /// Creates a certifier that publishes to `credentials` and sets `ready` with the first
    /// certificate.
    pub(crate) fn new(
        config: &IdentityConfig,
        client: Client,
        credentials: watch::Sender<Option<Arc<Credentials>>>,
        anchors: watch::Receiver<TrustAnchors>,
        ready: Condition,
        registry: &Registry,
    ) -> Self {
        Self {
            config: config.clone(),
            client,
            credentials,
            anchors,
            ready,
            generation: 0,
            schedule: Schedule::new(config.min_refresh, config.max_refresh),
            metrics: Metrics::new(registry),
        }
    }

    /// Runs for the life of the process.
    pub(crate) async fn run(mut self) {
        loop {
            let due = match self.certify().await {
                Ok(own) => {
                    let due = self
                        .schedule
                        .after_success(own.not_after(), SystemTime::now());
                    self.publish(own);
                    due
                }
                Err(error) => {
                    self.metrics.failed.inc();
                    let expires = self
                        .credentials
                        .borrow()
                        .as_ref()
                        .map(|own| own.not_after());
                    let is_refusal = error.is_refusal();
                    let due = self
                        .schedule
                        .after_failure(expires, is_refusal, SystemTime::now());
                    self.report(&error, due);
                    due
                }
            };
            self.wait(due).await;
        }
    }

    async fn certify(&mut self) -> Result<Credentials, CertifyError> {
        let anchors = self.anchors.borrow_and_update().clone();
        let request = CertificateRequest::new(&self.config.id)?;
        let issued = self.request_certificate(&request).await?;
        self.generation += 1;
        let own = Credentials::new(
            &self.config.id,
            &self.config.server_name,
            request,
            &issued,
            &anchors,
            self.generation,
        )?;
        Ok(own)
    }

    async fn request_certificate(
        &self,
        request: &CertificateRequest,
    ) -> Result<IssuedCertificate, CertifyError> {
        let message = mesh_api::identity::certify_request(
            self.config.id.as_str(),
            self.read_token()?,
            request.der().to_vec(),
        );
        let mut client = IdentityClient::new(self.client.clone());
        let response = timeout(CERTIFY_TIMEOUT, client.certify(message))
            .await
            .map_err(|_elapsed| CertifyError::TimedOut(CERTIFY_TIMEOUT))?
            .map_err(|status| CertifyError::Refused(Box::new(status)))?;
        let issued =
            mesh_api::identity::issued(response.into_inner()).map_err(CertifyError::Response)?;
        Ok(IssuedCertificate {
            leaf: issued.leaf,
            intermediates: issued.intermediates,
        })
    }

    /// Blocks, which is acceptable for a few kilobytes from a tmpfs volume once per certificate.
    fn read_token(&self) -> Result<Vec<u8>, CertifyError> {
        let path = &self.config.token_file;
        let token = std::fs::read(path).map_err(|source| CertifyError::Token {
            path: path.clone(),
            source,
        })?;
        if token.is_empty() {
            return Err(CertifyError::EmptyToken { path: path.clone() });
        }
        Ok(token)
    }

    fn publish(&mut self, own: Credentials) {
        let expires = own.not_after();
        let lifetime = expires
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        tracing::info!(id = %own.id(), ?lifetime, "Certified identity");
        self.metrics.certified(expires, SystemTime::now());
        self.credentials.send_replace(Some(Arc::new(own)));
        self.ready.set(true);
    }

    fn report(&self, error: &CertifyError, due: SystemTime) {
        let retry_in = due.duration_since(SystemTime::now()).unwrap_or_default();
        let error = log::chain(error);
        match &*self.credentials.borrow() {
            None => tracing::warn!(error, ?retry_in, "Failed to certify identity"),
            Some(own) if own.not_after() <= SystemTime::now() => {
                tracing::error!(
                    error,
                    ?retry_in,
                    "Failed to renew the expired certificate; peers reject this proxy"
                );
            }
            Some(_) => {
                tracing::warn!(
                    error,
                    ?retry_in,
                    "Failed to renew the certificate; the current one stays in use"
                );
            }
        }
    }

    /// Waits until `due`, or until new trust anchors require another certificate.
    async fn wait(&mut self, due: SystemTime) {
        loop {
            // In short intervals, because the monotonic clock stops while the machine is suspended,
            // but certificates expire.
            let left = due.duration_since(SystemTime::now()).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(left.min(CLOCK_CHECK_INTERVAL)) => {}
                changed = self.anchors.changed() => {
                    if changed.is_err() {
                        // The anchors do not change, because no file is configured.
                        tokio::time::sleep(left.min(CLOCK_CHECK_INTERVAL)).await;
                    } else if !self.adopt_anchors() {
                        return;
                    }
                }
            }
        }
    }

    /// Publishes the current certificate with the new anchors. Returns false when it does not chain
    /// to them.
    fn adopt_anchors(&mut self) -> bool {
        let anchors = self.anchors.borrow_and_update().clone();
        let Some(current) = self.credentials.borrow().clone() else {
            return false;
        };
        self.generation += 1;
        match current.with_anchors(&anchors, self.generation) {
            Ok(own) => {
                tracing::info!(anchors = anchors.len(), "Trust anchors changed");
                self.credentials.send_replace(Some(Arc::new(own)));
                true
            }
            Err(error) => {
                tracing::warn!(%error, "Current certificate does not chain to the changed trust anchors; requesting another");
                false
            }
        }
    }
}

/// The longest time between two readings of the wall clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

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

#[cfg(test)]
mod tests;
