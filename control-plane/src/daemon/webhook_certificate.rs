//! The certificate of an admission webhook: read from a directory, or generated and renewed by the
//! controller.

use std::path::PathBuf;
use std::sync::Arc;

use super::Daemon;
use crate::cluster::Events;
use crate::webhook::ServingCertificate;
use crate::webhook::managed::{self, Expiry, ManagedCertificate, RepairReporter};
use crate::webhook::mounted::MountedCertificate;

/// Where the certificate comes from, and the objects that are about it.
pub(super) struct WebhookCertificate {
    /// The directory of an externally managed certificate.
    pub(super) dir: Option<PathBuf>,
    /// The namespace of the Service and of the Secret.
    pub(super) namespace: String,
    pub(super) cluster_domain: String,
    /// The Service through which the API server calls the webhook.
    pub(super) service: String,
    /// The Secret of the certificate that the controller generates.
    pub(super) secret: String,
    /// The MutatingWebhookConfiguration, whose caBundle the controller then writes.
    pub(super) configuration: String,
}

impl WebhookCertificate {
    /// Keeps `serving` up to date.
    pub(super) fn spawn(
        self,
        daemon: &Daemon,
        client: kube::Client,
        events: &Events,
        serving: Arc<ServingCertificate>,
    ) {
        let expiry = Expiry::export(&daemon.registry);
        let ready = daemon
            .readiness
            .condition("a certificate that the API server trusts");
        if let Some(dir) = self.dir {
            let mounted = MountedCertificate { dir };
            daemon
                .supervisor
                .spawn("certificate", mounted.run(serving, expiry, ready));
            return;
        }
        let host = format!("{}.{}.svc", self.service, self.namespace);
        let managed = ManagedCertificate {
            client,
            namespace: self.namespace,
            secret: self.secret,
            hook: managed::mutating(),
            configuration: self.configuration,
            names: vec![host.clone(), format!("{host}.{}", self.cluster_domain)],
            repairs: RepairReporter::new(events.clone(), &daemon.registry),
        };
        daemon
            .supervisor
            .spawn("certificate", managed.run(serving, expiry, ready));
    }
}
