//! Certificates of the SPIFFE Workload API, for proxies of machines outside Kubernetes.
//!
//! Runs on the control thread. An agent on the machine, as SPIRE's, has a Unix socket and
//! recognizes the process of the proxy by itself. It sends the certificate with its key and the
//! bundle of its trust domain, at once and after each change, so that nothing is requested for a
//! renewal. While the agent cannot be reached or sends nothing usable, the last certificate stays
//! in use, until it expires and after that; the proxy connects again with back-off.
//!
//! Bundles are valid for the identities of their trust domain only, and these for no other anchor;
//! all other names are verified by the anchors of the mesh (docs/adr/0224).

mod client;

use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mesh_api::spiffe::wire::X509svidResponse;
use mesh_api::spiffe::{self, Svid, SvidError};
use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;
use mesh_runtime::log;
use mesh_runtime::metrics::{Gauge, Labels, Registry};
use tonic::{Code, Status};

use super::published::Published;
use super::schedule::Schedule;
use super::wall_clock;
use crate::config::{IdentityConfig, StreamLimits, WorkloadApiConfig};
use crate::control::follow::{Event, RetryDecision, follow};
use crate::control::reason;
use crate::tls::{Credentials, CredentialsError, DomainBundles, TrustAnchors, TrustAnchorsError};
use crate::watch;

/// Keeps the proxy's credentials valid, with certificates of the Workload API.
#[derive(Debug)]
pub(super) struct WorkloadApi {
    socket: PathBuf,
    backoff: Backoff,
    schedule: Schedule,
    anchors: watch::Receiver<TrustAnchors>,
    svids: Svids,
}

/// The certificate and bundles in use, and where they are published.
#[derive(Debug)]
struct Svids {
    id: Identity,
    server_name: Arc<str>,
    published: Published,
    /// The anchors of the mesh.
    mesh: TrustAnchors,
    current: Option<Current>,
    /// What the last response had besides.
    unused: Vec<String>,
    /// Why there was no certificate last. Only changes are logged.
    failure: Option<String>,
    /// Whether peers without bundles accept the certificate. Only changes are logged.
    is_trusted_in_mesh: bool,
    unreachable: Gauge,
}

#[derive(Debug)]
struct Current {
    /// In DER, one certificate after the other.
    chain: Vec<u8>,
    domains: DomainBundles,
}

/// Why a response is not used.
#[derive(Debug, thiserror::Error)]
enum SvidRefusal {
    #[error(transparent)]
    Svid(#[from] SvidError),
    #[error("the bundle of trust domain {domain} is invalid: it {problem}")]
    Bundle {
        domain: String,
        problem: TrustAnchorsError,
    },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// A server responds at once, unless it finds out about the process by asking others: SPIRE's agent
/// asks the kubelet for up to 30 s.
const FIRST_MESSAGE: Duration = Duration::from_secs(60);

/// After this time the stream is opened again, in case that the server has lost it.
const LIFETIME: Duration = Duration::from_secs(3600);

/// How often a server is asked again that does not know the call, or takes it for one of another
/// kind. The standard says not to, but another server may take over the socket.
const RETRY_MISTAKEN: Duration = Duration::from_secs(60);

impl WorkloadApi {
    pub(super) fn new(
        config: &IdentityConfig,
        api: &WorkloadApiConfig,
        published: Published,
        anchors: watch::Receiver<TrustAnchors>,
        registry: &Registry,
    ) -> Self {
        let mesh = anchors.borrow().clone();
        let unreachable = registry.gauge_family(
            "mesh_proxy_workload_api_unreachable",
            "1 while the SPIFFE Workload API cannot be reached or gives this proxy no usable certificate, so that the last one stays in use, else 0",
        );
        Self {
            socket: api.socket.clone(),
            backoff: api.backoff,
            schedule: Schedule::new(config.min_refresh, config.max_refresh),
            anchors,
            svids: Svids {
                id: config.id.clone(),
                server_name: config.server_name.clone(),
                published,
                mesh,
                current: None,
                unused: Vec::new(),
                failure: None,
                is_trusted_in_mesh: true,
                unreachable: unreachable.with(&Labels::new()),
            },
        }
    }

    /// Runs for the life of the process.
    pub(super) async fn run(mut self) {
        let limits = StreamLimits {
            initial: Some(FIRST_MESSAGE),
            idle: None,
            lifetime: Some(LIFETIME),
        };
        let credentials = self.svids.published.subscribe();
        loop {
            let open = || client::fetch(&self.socket);
            let svids = &mut self.svids;
            let following = follow(limits, self.backoff, open, |event| svids.apply(event));
            tokio::select! {
                biased;
                () = following => {}
                () = overdue(credentials.clone(), &self.schedule) => self.svids.report_overdue(),
                () = changed(&mut self.anchors) => {
                    let mesh = self.anchors.borrow_and_update().clone();
                    self.svids.replace_mesh(mesh);
                }
            }
        }
    }
}

/// Waits until the certificate should have been replaced: as long as the proxy would wait itself
/// with the identity service. A server sends the next one after half of the life; one that has lost
/// the stream sends it when the stream is opened again.
async fn overdue(mut credentials: watch::Receiver<Option<Arc<Credentials>>>, schedule: &Schedule) {
    loop {
        let expires = credentials
            .borrow_and_update()
            .as_ref()
            .map(|own| own.not_after());
        let due = async {
            match expires {
                Some(expires) => {
                    let now = SystemTime::now();
                    wall_clock::sleep_until(now + schedule.renew_after(expires, now)).await;
                }
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = changed(&mut credentials) => {}
            () = due => return,
        }
    }
}

/// Waits for another value.
async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        // There is none: the value does not change any longer.
        pending::<()>().await;
    }
}

impl Svids {
    fn apply(&mut self, event: Event<X509svidResponse>) -> RetryDecision {
        match event {
            Event::Message { message, .. } => {
                match self.adopt(message) {
                    Ok(()) => self.recover(),
                    Err(refusal) => self.fail(log::chain(&refusal)),
                }
                RetryDecision::Retry
            }
            Event::Failed(status) => {
                self.fail(failure(&status));
                decide(status.code())
            }
        }
    }

    /// Uses a response, which is complete: what it does not have is not used any longer.
    fn adopt(&mut self, response: X509svidResponse) -> Result<(), SvidRefusal> {
        let svid = spiffe::svid(response, &self.id)?;
        let (domains, unused) = self.bundles(&svid)?;
        let anchors = self.mesh.with_domains(domains.clone());
        match &self.current {
            Some(current) if current.chain == svid.chain && current.domains == domains => {}
            Some(current) if current.chain == svid.chain => {
                if let Some(replaced) = self.published.replace_anchors(&anchors) {
                    replaced?;
                    tracing::info!("Bundles of trust domains changed");
                }
            }
            _ => {
                let generation = self.published.next_generation();
                let own = Credentials::from_svid(
                    &self.id,
                    &self.server_name,
                    &svid.chain,
                    &svid.key,
                    &anchors,
                    generation,
                )?;
                self.published.certify(own);
            }
        }
        self.current = Some(Current {
            chain: svid.chain,
            domains,
        });
        self.report_trust();
        self.report_unused(unused);
        Ok(())
    }

    /// Returns the bundles of the own trust domain and of foreign ones, and what is not used.
    fn bundles(&self, svid: &Svid) -> Result<(DomainBundles, Vec<String>), SvidRefusal> {
        let mut bundles = DomainBundles::default();
        let domain = self.id.spiffe_trust_domain().unwrap_or_default();
        bundles
            .insert(domain, &svid.bundle)
            .map_err(|problem| SvidRefusal::Bundle {
                domain: domain.to_owned(),
                problem,
            })?;
        let mut unused = svid.unused.clone();
        for (domain, bundle) in &svid.federated {
            if let Err(error) = bundles.insert(domain, bundle) {
                unused.push(format!("bundle of {domain:?}: it {error}"));
            }
        }
        Ok((bundles, unused))
    }

    /// Uses other anchors of the mesh.
    fn replace_mesh(&mut self, mesh: TrustAnchors) {
        let count = mesh.len();
        self.mesh = mesh;
        let Some(current) = &self.current else {
            return;
        };
        let anchors = self.mesh.with_domains(current.domains.clone());
        match self.published.replace_anchors(&anchors) {
            Some(Err(error)) => {
                let error = log::chain(&error);
                tracing::warn!(error, "Cannot use the changed trust anchors");
            }
            _ => tracing::info!(anchors = count, "Trust anchors changed"),
        }
        self.report_trust();
    }

    fn recover(&mut self) {
        self.unreachable.set(0);
        if self.failure.take().is_some() {
            tracing::info!("The Workload API has sent a usable certificate again");
        }
    }

    fn fail(&mut self, error: String) {
        self.unreachable.set(1);
        if self.failure.as_deref() == Some(&*error) {
            self.published.fail_again();
        } else {
            self.published.fail(&error, None);
            self.failure = Some(error);
        }
    }

    fn report_overdue(&self) {
        let now = SystemTime::now();
        if self
            .published
            .expires()
            .is_some_and(|expires| expires <= now)
        {
            tracing::error!(
                "The Workload API has not replaced the expired certificate; peers reject this proxy"
            );
        } else {
            tracing::debug!("No other certificate in time; opening the stream again");
        }
    }

    /// Warns if only peers with the bundle of the trust domain accept the certificate.
    fn report_trust(&mut self) {
        let is_trusted = self.published.is_trusted_in_mesh();
        let was_trusted = std::mem::replace(&mut self.is_trusted_in_mesh, is_trusted);
        if was_trusted && !is_trusted {
            tracing::warn!(
                "The certificate chains to none of the mesh's trust anchors: the control plane and proxies without the bundle of its trust domain reject it"
            );
        }
    }

    fn report_unused(&mut self, unused: Vec<String>) {
        if self.unused == unused {
            return;
        }
        for unused in &unused {
            tracing::warn!(unused, "A part of the Workload API's response is not used");
        }
        self.unused = unused;
    }
}

/// Returns why a call failed, for logs.
fn failure(status: &Status) -> String {
    let reason = reason(status);
    match status.code() {
        Code::PermissionDenied => format!(
            "the Workload API has no identity for this process: {reason} (is it registered, by its user or path?)"
        ),
        Code::InvalidArgument | Code::Unimplemented => {
            format!("the server at the socket does not have the Workload API: {reason}")
        }
        _ => format!("the Workload API failed: {reason}"),
    }
}

fn decide(code: Code) -> RetryDecision {
    match code {
        Code::InvalidArgument | Code::Unimplemented => RetryDecision::RetryAfter(RETRY_MISTAKEN),
        _ => RetryDecision::Retry,
    }
}

#[cfg(test)]
mod tests;
