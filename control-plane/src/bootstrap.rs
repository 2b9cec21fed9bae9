//! `mesh-controller bootstrap`: a trust anchor and an issuer for a cluster whose owner brought
//! none. Run by a Job of the chart at each installation and upgrade.
//!
//! It looks, does the one next thing that [`plan`] names, and looks again until nothing is left to
//! do. What is there is never overwritten: each object is created, and when somebody else was
//! quicker (a second Job, a person) the next look takes what that one made. So it can be run at any
//! time, by several, and be killed at any point. The one exception is an issuer that was made here:
//! it is replaced when it has lived two thirds of its life.

use std::time::SystemTime;

use mesh_core::identity::trust_domain;

use crate::{
    cluster::{self, Backoff, ConnectError, explain},
    config,
    identity::IssuerNames,
};

mod certificates;
mod objects;
mod plan;

pub use self::plan::PlanError;
use self::{
    certificates::{Issuance, MakeError},
    objects::{Objects, Wrote},
    plan::Step,
};

/// What a cluster's certificates are made for.
#[derive(Clone, Debug)]
struct Settings {
    control_namespace: String,
    trust_domain: String,
    names: IssuerNames,
    issuance: Issuance,
}

#[cfg(test)]
impl Settings {
    /// The chart's, in Linkerd's scheme.
    fn usual() -> Self {
        const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
        Self {
            control_namespace: "linkerd".to_owned(),
            trust_domain: "cluster.local".to_owned(),
            names: IssuerNames::of_scheme("linkerd.io/tls"),
            issuance: Issuance {
                anchor_lifetime: DAY * 3650,
                issuer_lifetime: DAY * 90,
            },
        }
    }
}

/// Why the certificates are not there.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("cannot use an API server")]
    Connect(#[source] ConnectError),
    #[error("cannot read what is there: {0}")]
    Read(String),
    #[error("cannot write {what}: {problem}")]
    Write { what: &'static str, problem: String },
    #[error("cannot make a certificate")]
    Make(#[source] MakeError),
    #[error(transparent)]
    Plan(PlanError),
    #[error("others keep changing the same objects")]
    Contended,
}

/// Steps and looks after lost races together are fewer than this, unless somebody works against us.
const MOST_LOOKS: usize = 20;

/// Brings the certificates into being, or finds them there.
pub(crate) async fn run(config: config::Bootstrap) -> Result<(), BootstrapError> {
    let client = cluster::connect(&config.cluster, "bootstrap")
        .await
        .map_err(BootstrapError::Connect)?;
    let settings = Settings {
        names: IssuerNames::of_scheme(&config.identity_scheme),
        control_namespace: config.controller_namespace,
        trust_domain: trust_domain(&config.identity_trust_domain, &config.cluster_domain)
            .to_owned(),
        issuance: Issuance {
            anchor_lifetime: config.trust_anchor_lifetime,
            issuer_lifetime: config.issuer_lifetime,
        },
    };
    let objects = Objects::new(client, settings.clone());
    for _ in 0..MOST_LOOKS {
        let now = SystemTime::now();
        let state = look(&objects).await?;
        let step = plan::next(&state, &settings.names, now).map_err(BootstrapError::Plan)?;
        let wrote = match step {
            Step::Nothing => {
                tracing::info!(
                    namespace = settings.control_namespace,
                    "Trust anchors and issuer are in place"
                );
                return Ok(());
            }
            Step::MakeAnchor => {
                let anchor = certificates::anchor(&settings, now).map_err(BootstrapError::Make)?;
                objects.create_anchor(&anchor).await?
            }
            Step::MakeIssuer(anchor) => {
                let issuer =
                    certificates::issuer(&settings, &anchor, now).map_err(BootstrapError::Make)?;
                objects.create_issuer(&issuer).await?
            }
            Step::RenewIssuer { anchor, version } => {
                let issuer =
                    certificates::issuer(&settings, &anchor, now).map_err(BootstrapError::Make)?;
                objects.replace_issuer(&issuer, version).await?
            }
            Step::PublishAnchors(bundle) => objects.create_trust_roots(&bundle).await?,
        };
        if wrote == Wrote::SomebodyElse {
            tracing::info!("Somebody else was quicker; looking again");
        }
    }
    Err(BootstrapError::Contended)
}

/// What is there. An API server that does not answer yet is asked again for a while: the Job may
/// start with the cluster.
async fn look(objects: &Objects) -> Result<plan::State, BootstrapError> {
    const ATTEMPTS: usize = 12;
    let mut backoff = Backoff::for_api_server();
    let mut attempts = 0;
    loop {
        attempts += 1;
        match objects.read().await {
            Ok(state) => return Ok(state),
            // It answered, and the answer will be the same the next time.
            Err(error @ kube::Error::Api(_)) => return Err(BootstrapError::Read(explain(&error))),
            Err(error) if attempts >= ATTEMPTS => {
                return Err(BootstrapError::Read(explain(&error)));
            }
            Err(error) => {
                let error = explain(&error);
                tracing::warn!(error, "The API server does not answer; asking again");
                backoff.wait().await;
            }
        }
    }
}
