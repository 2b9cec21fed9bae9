//! Obtains and renews the proxy's certificates.
//!
//! Runs on the control thread. The environment chooses the source: the identity service
//! ([`Certifier`], below), or the SPIFFE Workload API ([`workload_api`]).
//!
//! Each certificate of the identity service has a new key, which is generated in this process and
//! never stored. The service account token is read for each request, because the kubelet rotates
//! it. A certificate stays in use until the next one is issued; while the identity service is
//! unavailable, the proxy retries. It is renewed after 70 % of its remaining lifetime, by default
//! after 10 seconds at the earliest and a day at the latest ([`schedule`]).

mod anchors;
mod bundle;
mod published;
mod schedule;
mod wall_clock;
mod workload_api;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mesh_api::proto::identity::identity_client::IdentityClient;
use mesh_runtime::admin::Condition;
use mesh_runtime::log;
use mesh_runtime::metrics::Registry;
use mesh_runtime::task::Supervisor;
use tokio::time::timeout;
use tonic::Status;

use self::bundle::{BundleFollower, Bundles, Own};
use self::published::Published;
use self::schedule::Schedule;
use self::workload_api::WorkloadApi;
use crate::config::{Config, ControlAddr, IdentityConfig, IdentityService, IdentitySource};
use crate::control::{self, Client, Trust};
use crate::tls::{
    CertificateRequest, Credentials, CredentialsError, CredentialsRx, IssuedCertificate, Peers,
    TrustAnchors,
};
use crate::watch;

/// Keeps the proxy's credentials valid, with certificates of the identity service.
#[derive(Debug)]
struct Certifier {
    config: IdentityConfig,
    token_file: PathBuf,
    client: Client,
    published: Published,
    anchors: watch::Receiver<TrustAnchors>,
    schedule: Schedule,
}

/// Why no certificate was obtained.
#[derive(Debug, thiserror::Error)]
enum CertifyError {
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

/// Starts the tasks that keep the proxy's credentials and the mesh's trust anchors current, and
/// returns the credentials. `client` creates a client of the identity service; `ready` is set with
/// the first certificate.
pub(crate) fn start(
    config: &Config,
    client: impl Fn(&ControlAddr, Trust) -> Client,
    ready: Condition,
    registry: &Registry,
    supervisor: &Supervisor,
) -> CredentialsRx {
    let own = &config.identity;
    let (publish, credentials) = watch::channel(None);
    let (publish_anchors, anchors) = watch::channel(own.trust_anchors.clone());
    let peers = Peers::new(registry);
    let published = Published::new(publish, peers.clone(), ready, registry);
    let client = |service| {
        client(
            service,
            Trust::Anonymous(credentials.clone(), anchors.clone()),
        )
    };
    let sender_of_anchors = match &own.source {
        IdentitySource::Service(service) => {
            let client = client(&service.addr);
            let certifier =
                Certifier::new(own, service, client.clone(), published, anchors.clone());
            supervisor.spawn("identity", certifier.run());
            Some(client)
        }
        IdentitySource::WorkloadApi(api) => {
            let source = WorkloadApi::new(own, api, published, anchors.clone(), registry);
            supervisor.spawn("identity", source.run());
            api.anchors.as_ref().map(client)
        }
    };
    let publish_anchors = match own.trust_anchors_file.clone() {
        Some(file) => {
            let watching = anchors::watch_file(file, publish_anchors);
            supervisor.spawn("trust anchors of a file", watching);
            None
        }
        None => Some(publish_anchors),
    };
    // Without a service no identity is denied, and without a file the anchors do not change.
    if let Some(client) = sender_of_anchors {
        let backoff = config.control.backoff;
        let credentials = credentials.clone();
        let own = Own {
            id: own.id.clone(),
            domain: own.mesh_trust_domain().map(str::to_owned),
        };
        let bundles = Bundles::new(own, publish_anchors, peers, registry);
        let follower = BundleFollower::new(client, backoff, credentials, bundles);
        supervisor.spawn("trust-anchors", follower.run());
    }
    credentials
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
    /// Creates a certifier that publishes credentials with these anchors.
    fn new(
        config: &IdentityConfig,
        service: &IdentityService,
        client: Client,
        published: Published,
        anchors: watch::Receiver<TrustAnchors>,
    ) -> Self {
        Self {
            config: config.clone(),
            token_file: service.token_file.clone(),
            client,
            published,
            anchors,
            schedule: Schedule::new(config.min_refresh, config.max_refresh),
        }
    }

    /// Runs for the life of the process.
    async fn run(mut self) {
        loop {
            let due = match self.certify().await {
                Ok(own) => {
                    let due = self
                        .schedule
                        .after_success(own.not_after(), SystemTime::now());
                    self.published.certify(own);
                    due
                }
                Err(error) => {
                    let expires = self.published.expires();
                    let is_refusal = error.is_refusal();
                    let now = SystemTime::now();
                    let due = self.schedule.after_failure(expires, is_refusal, now);
                    let retry_in = due.duration_since(now).unwrap_or_default();
                    self.published.fail(&log::chain(&error), Some(retry_in));
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
        let own = Credentials::new(
            &self.config.id,
            &self.config.server_name,
            request,
            &issued,
            &anchors,
            self.published.next_generation(),
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
        let path = &self.token_file;
        let token = std::fs::read(path).map_err(|source| CertifyError::Token {
            path: path.clone(),
            source,
        })?;
        if token.is_empty() {
            return Err(CertifyError::EmptyToken { path: path.clone() });
        }
        Ok(token)
    }

    /// Waits until `due`, or until new trust anchors require another certificate.
    async fn wait(&mut self, due: SystemTime) {
        loop {
            tokio::select! {
                biased;
                () = wall_clock::sleep_until(due) => return,
                changed = self.anchors.changed() => {
                    if changed.is_err() {
                        // The anchors do not change, because no file is configured.
                        return wall_clock::sleep_until(due).await;
                    }
                    if !self.adopt_anchors() {
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
        match self.published.replace_anchors(&anchors) {
            None => false,
            Some(Ok(())) => {
                tracing::info!(anchors = anchors.len(), "Trust anchors changed");
                true
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "Current certificate does not chain to the changed trust anchors; requesting another");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
