//! What the identity service did, as Kubernetes events: on the ServiceAccount that got a
//! certificate, on the service's own Deployment when its issuer changes. Reasons and objects are
//! Linkerd's; people alert on them. Without an API server there is nobody to tell.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ObjectReference};
use kube::{Api, Client};
use sha2::{Digest as _, Sha256};

use super::Certified;
use crate::cluster::{Events, Posting, Severity, explain};

/// Writes events, where there is an API server.
#[derive(Clone, Debug, Default)]
pub struct Record {
    cluster: Option<Cluster>,
}

#[derive(Clone, Debug)]
struct Cluster {
    events: Events,
    deployment: ObjectReference,
}

/// The Deployment whose pods these are.
const DEPLOYMENT: &str = "linkerd-identity";

/// Serving certificates does not wait for what only makes events prettier.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl Record {
    /// Writes about the Deployment of `namespace`. Without its uid `kubectl describe` would not
    /// find the events, so it is asked for once.
    pub(crate) async fn on(client: &Client, events: Events, namespace: &str) -> Self {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let asking = deployments.get_metadata(DEPLOYMENT);
        let uid = match tokio::time::timeout(LONGEST_WAIT, asking).await {
            Ok(Ok(found)) => found.metadata.uid,
            Ok(Err(error)) => without_uid(&explain(&error)),
            Err(elapsed) => without_uid(&elapsed.to_string()),
        };
        let deployment = ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some("Deployment".to_owned()),
            name: Some(DEPLOYMENT.to_owned()),
            namespace: Some(namespace.to_owned()),
            uid,
            ..ObjectReference::default()
        };
        Self {
            cluster: Some(Cluster { events, deployment }),
        }
    }

    pub(crate) fn issued(&self, identity: &str, certified: &Certified) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let account = &certified.proved.account;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ServiceAccount".to_owned()),
            name: Some(account.name.clone()),
            namespace: Some(account.namespace.clone()),
            uid: certified.proved.uid.clone(),
            ..ObjectReference::default()
        };
        let hash: String = Sha256::digest(&certified.issued.leaf)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let until = timestamp(certified.issued.valid_until);
        cluster.events.post(Posting {
            about,
            severity: Severity::Normal,
            reason: "IssuedLeafCertificate",
            action: "Certify",
            note: format!("issued certificate for {identity} until {until}: {hash}"),
        });
    }

    pub(crate) fn issuer_updated(&self, until: SystemTime) {
        let note = format!(
            "Updated identity issuer; it is valid until {}",
            timestamp(until)
        );
        self.about_us(Severity::Normal, "IssuerUpdated", note);
    }

    pub(crate) fn issuer_update_skipped(&self, why: &str) {
        let note = format!("Skipping issuer update as certs could not be read from disk: {why}");
        self.about_us(Severity::Warning, "IssuerUpdateSkipped", note);
    }

    pub(crate) fn issuer_expired(&self, why: &str) {
        self.about_us(Severity::Warning, "IssuerValidationFailed", why.to_owned());
    }

    fn about_us(&self, severity: Severity, reason: &'static str, note: String) {
        if let Some(cluster) = &self.cluster {
            cluster.events.post(Posting {
                about: cluster.deployment.clone(),
                severity,
                reason,
                action: "FollowIssuer",
                note,
            });
        }
    }
}

fn without_uid(error: &str) -> Option<String> {
    tracing::debug!(
        error,
        "Events will not carry the uid of Deployment {DEPLOYMENT}"
    );
    None
}

fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|error| error.to_string(), |timestamp| timestamp.to_string())
}
