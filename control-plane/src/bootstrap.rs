//! `mesh-controller bootstrap`: creates a trust anchor and an issuer in a cluster without them. A
//! Job of the chart runs it at each installation and upgrade.
//!
//! It reads the existing objects, performs the next step of [`plan`], and repeats this until
//! nothing is left to do. Existing objects are never overwritten: each object is created, and when
//! a concurrent Job or a user has created it first, the next read finds it. So any number of Jobs
//! may run at any time and be killed at any point. The exception is an issuer that this command
//! created: it is replaced after two thirds of its lifetime.

use std::time::SystemTime;

use mesh_cluster::api_server::{self, ConnectError, explain};
use mesh_cluster::certificate::authority::{Authority, GenerateError};
use mesh_core::identity::trust_domain;
use mesh_k8s::trust::IssuerNames;

use self::objects::{Objects, WriteOutcome};
use self::plan::Step;
use crate::config;

mod objects;
mod plan;

pub(crate) use self::objects::rights;
pub use self::plan::PlanError;

/// The settings of the certificates.
#[derive(Clone, Debug)]
struct Settings {
    authority: Authority,
    names: IssuerNames,
}

#[cfg(test)]
impl Settings {
    /// The settings of the chart, in Linkerd's scheme.
    fn for_tests() -> Self {
        const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
        Self {
            names: IssuerNames::for_scheme("linkerd.io/tls"),
            authority: Authority {
                control_namespace: "linkerd".to_owned(),
                trust_domain: "cluster.local".to_owned(),
                anchor_lifetime: DAY * 3650,
                issuer_lifetime: DAY * 90,
            },
        }
    }
}

/// Why the certificates could not be created.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("cannot read existing certificates: {0}")]
    Read(String),
    #[error("cannot write {what}: {problem}")]
    Write { what: &'static str, problem: String },
    #[error("cannot generate a certificate")]
    Generate(#[source] GenerateError),
    #[error(transparent)]
    Plan(PlanError),
    #[error("too many conflicting writes to the objects of the certificates")]
    Contended,
}

/// The maximum number of steps, including repetitions after conflicting writes.
const MAX_STEPS: usize = 20;

/// Creates the certificates unless they exist.
pub(crate) async fn run(config: config::Bootstrap) -> Result<(), BootstrapError> {
    let client = api_server::connect(
        &config.cluster,
        "mesh-controller bootstrap",
        rights().collect(),
    )
    .await
    .map_err(BootstrapError::Connect)?;
    let settings = Settings {
        names: IssuerNames::for_scheme(&config.identity_scheme),
        authority: Authority {
            control_namespace: config.controller_namespace,
            trust_domain: trust_domain(&config.identity_trust_domain, &config.cluster_domain)
                .to_owned(),
            anchor_lifetime: config.trust_anchor_lifetime,
            issuer_lifetime: config.issuer_lifetime,
        },
    };
    let authority = &settings.authority;
    let objects = Objects::new(client, settings.clone());
    for _ in 0..MAX_STEPS {
        let now = SystemTime::now();
        let state = read_state(&objects).await?;
        let step = plan::next(&state, &settings.names, now).map_err(BootstrapError::Plan)?;
        let outcome = match step {
            Step::Done => {
                tracing::info!(
                    namespace = authority.control_namespace,
                    "Trust anchors and issuer are in place"
                );
                return Ok(());
            }
            Step::CreateAnchor => {
                let anchor = authority.anchor(now).map_err(BootstrapError::Generate)?;
                objects.create_anchor(&anchor).await?
            }
            Step::CreateIssuer(anchor) => {
                let issuer = authority
                    .issuer(&anchor, now)
                    .map_err(BootstrapError::Generate)?;
                objects.create_issuer(&issuer).await?
            }
            Step::RenewIssuer {
                anchor,
                cross_certificates,
                version,
            } => {
                let mut issuer = authority
                    .issuer(&anchor, now)
                    .map_err(BootstrapError::Generate)?;
                issuer.certificate += &cross_certificates;
                objects.replace_issuer(&issuer, version).await?
            }
            Step::CreateTrustRoots(bundle) => objects.create_trust_roots(&bundle).await?,
        };
        if outcome == WriteOutcome::Conflict {
            tracing::info!("Conflicting write by another client; retrying");
        }
    }
    Err(BootstrapError::Contended)
}

/// Reads the existing objects. Retries while the API server is unreachable, because the Job may
/// start together with the cluster.
async fn read_state(objects: &Objects) -> Result<plan::ExistingObjects, BootstrapError> {
    api_server::retry_while_unreachable(async || objects.read().await)
        .await
        .map_err(|error| BootstrapError::Read(explain(&error)))
}
