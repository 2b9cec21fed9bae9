//! Kubernetes events of the identity service: on the ServiceAccount that got a certificate, and on
//! the service's Deployment when its issuer changes. Reasons and objects are the same as Linkerd's,
//! because alerts depend on them. Without an API server nothing is recorded.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client};
use mesh_cluster::api_server::{Events, ObjectEvent, Severity, explain};
use sha2::{Digest as _, Sha256};

use super::{AuthenticatedAccount, GrantedCertificate};

/// Records events, if there is an API server.
#[derive(Clone, Debug, Default)]
pub struct EventRecorder {
    cluster: Option<Cluster>,
}

#[derive(Clone, Debug)]
struct Cluster {
    events: Events,
    deployment: ObjectReference,
}

/// The Deployment of the identity service.
const DEPLOYMENT: &str = "linkerd-identity";

/// Startup only waits briefly for the UID, which events can do without.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

impl EventRecorder {
    /// Returns a recorder of events on the Deployment of `namespace`. `kubectl describe` finds
    /// events by the UID of the object, so it is looked up once.
    pub(crate) async fn new(client: &Client, events: Events, namespace: &str) -> Self {
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

    pub(crate) fn issued(&self, identity: &str, granted: &GrantedCertificate) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        // The objects of machines have no events.
        let Some(authenticated) = &granted.authenticated else {
            return;
        };
        let hash: String = Sha256::digest(&granted.issued.leaf)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let until = timestamp(granted.issued.valid_until);
        cluster.events.post(ObjectEvent {
            about: reference(authenticated),
            severity: Severity::Normal,
            reason: "IssuedLeafCertificate",
            action: "Certify",
            note: format!("issued certificate for {identity} until {until}: {hash}"),
        });
    }

    pub(crate) fn denied(&self, account: &AuthenticatedAccount, note: String) {
        if let Some(cluster) = &self.cluster {
            cluster.events.post(ObjectEvent {
                about: reference(account),
                severity: Severity::Warning,
                reason: "IdentityDenied",
                action: "Certify",
                note,
            });
        }
    }

    pub(crate) fn issuer_updated(&self, until: SystemTime) {
        let note = format!(
            "Updated identity issuer; it is valid until {}",
            timestamp(until)
        );
        self.post_about_deployment(Severity::Normal, "IssuerUpdated", note);
    }

    pub(crate) fn issuer_update_skipped(&self, why: &str) {
        let note = format!("Skipping issuer update as certs could not be read from disk: {why}");
        self.post_about_deployment(Severity::Warning, "IssuerUpdateSkipped", note);
    }

    pub(crate) fn issuer_expired(&self, why: &str) {
        self.post_about_deployment(Severity::Warning, "IssuerValidationFailed", why.to_owned());
    }

    fn post_about_deployment(&self, severity: Severity, reason: &'static str, note: String) {
        if let Some(cluster) = &self.cluster {
            cluster.events.post(ObjectEvent {
                about: cluster.deployment.clone(),
                severity,
                reason,
                action: "FollowIssuer",
                note,
            });
        }
    }
}

fn reference(authenticated: &AuthenticatedAccount) -> ObjectReference {
    let account = &authenticated.account;
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("ServiceAccount".to_owned()),
        name: Some(account.name.clone()),
        namespace: Some(account.namespace.clone()),
        uid: authenticated.uid.clone(),
        ..ObjectReference::default()
    }
}

fn without_uid(error: &str) -> Option<String> {
    tracing::debug!(error, "Events have no UID of Deployment {DEPLOYMENT}");
    None
}

fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|error| error.to_string(), |timestamp| timestamp.to_string())
}
